"""Stage load: snapshot -> papers.parquet.

Reads    the lines of an opened snapshot
Writes   papers.parquet (one row a paper, snapshot order), corpus.json (its facts and sha256, last), and
         rejected.jsonl when bad records are moved aside
Holds    one explicit schema, no value coerced, every line counted; memory does not grow with the texts
Resumes  a corpus of the same snapshot, texts and record table is kept; anything else is tabulated from the start
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl
from polars.io.plugins import register_io_source
from pydantic import BaseModel, ConfigDict, ValidationError

from manifests.collection import FIELD, KEY, SEARCH_TEXT, paper_digest
from manifests.contract import Catalogue, CorpusFacts, Counts, SnapshotFacts, TextVersions
from manifests.embedding.local import cores_available
from manifests.errors import InputRefused
from manifests.files import file_sha256, sync_folder, write_atomically
from manifests.strict_json import canonical_json
from manifests.texts import EMBED_TEXT_VERSION, SEARCH_TEXT_VERSION
from pipeline.blocks import SCHEMA, Tabulated, tabulate_blocks
from pipeline.errors import MachineRefused
from pipeline.progress import Report, silent
from pipeline.records import TEXT_KEY, rules
from pipeline.snapshot import Block, Snapshot
from pipeline.tally import Tally

FORMAT: Literal[1] = 1
PAPERS = "papers.parquet"
FACTS = "corpus.json"
REJECTED = "rejected.jsonl"

ROW_GROUP_ROWS = 16_384
# Starting worker processes costs about a second; below this many papers one interpreter is as fast.
PARALLEL_PAPERS_MIN = 50_000
WORKERS_MAX = 8


class _CorpusFile(BaseModel):
    """The content of corpus.json; `source` is the snapshot's folder, `table_sha256` of the rules it was read by."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: Literal[1]
    source: str
    snapshot: SnapshotFacts
    corpus: CorpusFacts
    texts: TextVersions
    catalogue: Catalogue
    table_sha256: str
    parquet_sha256: str


@dataclass(frozen=True)
class Corpus:
    """All papers as rows of `path` (papers.parquet, columns of `SCHEMA`), and the facts that the manifest pins.

    Its bytes were those of `parquet_sha256` when it was opened. `source` is the folder of the snapshot it was made
    from; `reused` says that the stage found it already there.
    """

    path: Path
    source: Path
    snapshot: SnapshotFacts
    facts: CorpusFacts
    texts: TextVersions
    catalogue: Catalogue
    parquet_sha256: str
    reused: bool

    def scan(self) -> pl.LazyFrame:
        """The papers in snapshot order."""
        return pl.scan_parquet(self.path, schema=SCHEMA, glob=False)

    def slices(self, *columns: str) -> Iterator[pl.DataFrame]:
        """These columns (without any, all) of the papers in snapshot order, at most `ROW_GROUP_ROWS` at a time."""
        papers = self.scan().select(columns or SCHEMA.names())
        for first in itertools.count(0, ROW_GROUP_ROWS):
            frame = papers.slice(first, ROW_GROUP_ROWS).collect()
            if frame.is_empty():
                return
            yield frame

    def paper_digests(self) -> Iterator[tuple[str, bytes]]:
        """Id and `paper_digest` of every paper, in snapshot order."""
        for frame in self.slices():
            yield from ((row[KEY], paper_digest(row)) for row in frame.iter_rows(named=True))

    def digests(self) -> dict[str, bytes]:
        """`paper_digest` of every paper by its id."""
        return dict(self.paper_digests())

    def text_sha256s(self) -> list[str]:
        """Sha256 of every paper's embed text, in snapshot order; equal texts repeat."""
        return self.scan().select(TEXT_KEY).collect()[TEXT_KEY].to_list()


def tabulate(
    snapshot: Snapshot, work: Path, *, quarantine: bool, report: Report = silent, workers: int | None = None
) -> Corpus:
    """Make `work`/papers.parquet of the snapshot's records, or keep the one that is already of this snapshot.

    `workers` is the number of processes that read records (default: by the number of papers and cores).

    Raises:
        BadRecords: records break the record table and `quarantine` is off; nothing in `work` has changed.
        InputRefused: no record, another number than snapshot.json says, or a file that is not whole.
        MachineRefused: the disk is full or `work` cannot be written; nothing in `work` has changed.
    """
    known = _reusable(snapshot, work, quarantine=quarantine)
    if known is not None:
        return known
    # Fixed names: what a killed run left is overwritten, never piled up.
    parquet, rejected = work / f".{PAPERS}.part", work / f".{REJECTED}.part"
    tally = Tally(snapshot, rejected if quarantine else None)
    try:
        work.mkdir(parents=True, exist_ok=True)
        rejected.unlink(missing_ok=True)
        tabulated = tabulate_blocks(snapshot.blocks(), workers or _workers(snapshot), work / ".blocks")
        _sink(_frames(tabulated, snapshot, tally, report), parquet)
        counts, corpus, catalogue = tally.settle()
        content = _CorpusFile(
            format=FORMAT,
            source=str(snapshot.folder.resolve()),
            snapshot=_snapshot_facts(snapshot, counts),
            corpus=corpus,
            texts=_texts(),
            catalogue=catalogue,
            table_sha256=_table_sha256(),
            parquet_sha256=file_sha256(parquet),
        )
        _install(work, parquet, rejected, content)
    except (OSError, pl.exceptions.PolarsError) as error:
        # The frames have the schema, so polars can only fail to write; it has no class of its own for that.
        raise MachineRefused(
            f"{work}: {error}; nothing is lost: make room or give another --work, then run the same command again"
        ) from error
    finally:
        tally.close()
        parquet.unlink(missing_ok=True)
        rejected.unlink(missing_ok=True)
    return _corpus(work, content, reused=False)


def read_corpus(work: Path) -> Corpus:
    """The corpus that `tabulate` wrote into `work`, its bytes compared with corpus.json.

    Raises:
        InputRefused: absent, written by another version, cut short or changed.
    """
    return _corpus(work, _read(work), reused=True)


def _read(work: Path) -> _CorpusFile:
    path = work / FACTS
    again = "run `python -m pipeline load SNAPSHOT --work WORK` again"
    try:
        content = _CorpusFile.model_validate(json.loads(path.read_bytes().decode()))
        found = file_sha256(work / PAPERS)
    except OSError as error:
        raise InputRefused(f"{error.filename}: {error.strerror}; expected a loaded corpus, {again}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputRefused(f"{path}: {where}: {first['msg']}; written by another version, {again}") from error
    except (ValueError, RecursionError) as error:
        raise InputRefused(f"{path} is not one UTF-8 JSON object ({error}); {again}") from error
    if found != content.parquet_sha256:
        raise InputRefused(
            f"{work / PAPERS} was cut short or changed: sha256 expected {content.parquet_sha256} ({FACTS}), "
            f"found {found}; {again}"
        )
    return content


def _corpus(work: Path, content: _CorpusFile, *, reused: bool) -> Corpus:
    return Corpus(
        path=work / PAPERS,
        source=Path(content.source),
        snapshot=content.snapshot,
        facts=content.corpus,
        texts=content.texts,
        catalogue=content.catalogue,
        parquet_sha256=content.parquet_sha256,
        reused=reused,
    )


def _reusable(snapshot: Snapshot, work: Path, *, quarantine: bool) -> Corpus | None:
    """The corpus in `work` when tabulating the snapshot would give the same again."""
    try:
        known = _read(work)
    except InputRefused:
        return None
    counts = known.snapshot.counts
    same = (
        known.snapshot == _snapshot_facts(snapshot, counts)
        and known.source == str(snapshot.folder.resolve())
        and counts.records == snapshot.card.papers
        and known.texts == _texts()
        and known.table_sha256 == _table_sha256()
    )
    whole = not counts.rejected or (quarantine and (work / REJECTED).is_file())
    return _corpus(work, known, reused=True) if same and whole else None


def _workers(snapshot: Snapshot) -> int:
    if snapshot.card.papers < PARALLEL_PAPERS_MIN:
        return 1
    return min(WORKERS_MAX, cores_available())


def _frames(
    tabulated: Iterator[tuple[Block, Tabulated]], snapshot: Snapshot, tally: Tally, report: Report
) -> Iterator[pl.DataFrame]:
    for block, found in tabulated:
        frame = tally.take(block, found)
        report(tally.records, snapshot.card.papers, "")
        if frame.height and not tally.refusing:
            yield frame


def _sink(frames: Iterator[pl.DataFrame], path: Path) -> None:
    """Stream the frames into one synced Parquet file: polars asks for the next when it has room."""
    source = register_io_source(lambda *_: frames, schema=SCHEMA)
    source.sink_parquet(path, compression="snappy", row_group_size=ROW_GROUP_ROWS, maintain_order=True)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _install(work: Path, parquet: Path, rejected: Path, content: _CorpusFile) -> None:
    """Put the files in place, the facts last: without them there is no corpus, so a stop in between shows."""
    (work / FACTS).unlink(missing_ok=True)
    parquet.replace(work / PAPERS)
    if rejected.exists():
        rejected.replace(work / REJECTED)
    else:
        (work / REJECTED).unlink(missing_ok=True)
    sync_folder(work)
    text = json.dumps(content.model_dump(), ensure_ascii=False, indent=2, sort_keys=True)
    write_atomically(work / FACTS, text.encode() + b"\n")


def _snapshot_facts(snapshot: Snapshot, counts: Counts) -> SnapshotFacts:
    card = snapshot.card
    return SnapshotFacts(
        name=card.name,
        title=card.title,
        source=card.source,
        url=card.url,
        licence=card.licence,
        file=snapshot.file,
        sha256=snapshot.sha256,
        counts=counts,
    )


def _texts() -> TextVersions:
    return TextVersions(search=SEARCH_TEXT_VERSION, embed=EMBED_TEXT_VERSION)


def _table_sha256() -> str:
    return hashlib.sha256(canonical_json([rules(), FIELD[SEARCH_TEXT], SCHEMA.names()])).hexdigest()
