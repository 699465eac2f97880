"""Stage: papers.parquet, vectors -> one complete Milvus collection.

Reads    every column of papers.parquet, the vector of every text
Writes   Lite: WORK/COLLECTION.db and its digests in artifact.json; a server: the collection of that name
Holds    one row a paper in the byte order of the ids; on Lite one segment, so that BM25 statistics are global
Resumes  a complete collection is kept; one that is not is built anew, on Lite beside what stands there until then, on a
         server only where a build of this work folder began it
"""

from __future__ import annotations

import errno
import importlib.metadata
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from manifests.artifact import Artifact, BuiltCollection
from manifests.collection import DENSE, KEY, RECORD_FIELDS, SEARCH_TEXT
from manifests.contract import Manifest
from manifests.differences import lite_file_differences
from manifests.errors import Difference, IndexRefused, InputRefused, MilvusError
from manifests.files import sync_tree, write_atomically
from manifests.gate import open_index
from manifests.lite import LiteEngine, folder_digests, is_lite, segments, unflushed, vector_indexes
from manifests.milvus import Milvus
from manifests.scratch import scratch_folder
from manifests.texts import search_text_of
from manifests.visible import visible
from pipeline.embedding_store import ReadVectors, windowed
from pipeline.errors import MachineRefused
from pipeline.progress import Report
from pipeline.records import TEXT_KEY
from pipeline.work import BUILDING, Target, install, recorded, settle

# A server takes at most 64 MB an insert; a row is some 8 kB.
INSERT_ROWS = 1_000
# All that the engine says of a full disk comes as text.
NO_SPACE = os.strerror(errno.ENOSPC)
# Whose version can change the bytes of a Lite folder.
ENGINE_PACKAGES = ("pymilvus", "milvus-lite", "faiss-cpu", "pyarrow", "numpy")

_NAMED_MAX = 5

Rows = list[dict[str, Any]]
Missing = Callable[[Iterable[str]], list[str]]


def index(
    papers: Path,
    read_vectors: ReadVectors,
    manifest: Manifest,
    target: Target,
    report: Report,
    *,
    missing: Missing | None = None,
) -> bool:
    """Build the manifest's collection at `target`; False when it is already there, complete.

    Args:
        missing: the texts that `read_vectors` cannot give; None where it can give any.

    Raises:
        InputRefused: papers have no vector; nothing was created or removed.
        IndexRefused: artifact.json cannot be replaced, or on the server stands an incomplete collection that another
            work folder began; nothing was created or removed.
        MilvusError: Milvus failed; no complete collection has changed.
    """
    recorded(target.work)
    source = _Source(papers, read_vectors, missing)
    if is_lite(target.uri):
        return _index_lite(source, manifest, target.work, report)
    return _index_server(source, manifest, target, report)


class _Source(NamedTuple):
    """Where the rows come from."""

    papers: Path
    read_vectors: ReadVectors
    missing: Missing | None

    def require_vectors(self) -> None:
        """Name the papers whose vector is missing: halfway into a collection it would be too late."""
        if self.missing is None:
            return
        papers = pl.read_parquet(self.papers, columns=[KEY, "title", TEXT_KEY], glob=False).sort(KEY)
        without = papers.filter(pl.col(TEXT_KEY).is_in(self.missing(papers[TEXT_KEY])))
        if without.is_empty():
            return
        first = without.head(_NAMED_MAX).select(KEY, "title").iter_rows()
        named = ", ".join(f"{paper_id} ({visible(title)})" for paper_id, title in first)
        more = f" and {len(without) - _NAMED_MAX:,} more" if len(without) > _NAMED_MAX else ""
        raise InputRefused(
            f"{len(without):,} of {len(papers):,} papers have no vector: {named}{more}. Run `python -m pipeline embed "
            f"--work {self.papers.parent}` with the same --provider, --model and --store first; nothing was created"
        )


def _index_lite(source: _Source, manifest: Manifest, work: Path, report: Report) -> bool:
    name = manifest.collection.name
    folder, building = work / f"{name}.db", work / f"{BUILDING}{name}.db"
    damage = lite_file_differences(folder, name)
    # A build that was killed on its last steps left a folder that is complete: artifact.json is written after that.
    if damage and lite_file_differences(building, name):
        source.require_vectors()
        if folder.exists():
            report(0, None, f"{folder.name} is not what was built ({damage[0]}); building it again beside it")
        _build_lite(source, manifest, building, report)
    if damage:
        install(work, name)
    settle(work, name)
    return bool(damage)


def _build_lite(source: _Source, manifest: Manifest, building: Path, report: Report) -> None:
    """The collection, complete and on the disk, in the folder `building`; artifact.json then vouches for it."""
    shutil.rmtree(building, ignore_errors=True)
    work, started = building.parent, time.monotonic()
    with scratch_folder() as sockets, _prefetched(_batches(source, manifest.embedding.dimension)) as batches:
        engine = LiteEngine(building, sockets)
        try:
            with Milvus(engine.wait_ready().uri) as milvus:
                _fill(milvus, batches, manifest, report)
        except MilvusError as error:
            if NO_SPACE not in str(error):
                raise
            raise MachineRefused(
                f"the disk of {work} is full; the texts and vectors are kept. Free space and run the same command"
            ) from error
        finally:
            engine.close()
    _require_complete(building)
    sync_tree(building)
    digests = folder_digests(building, Path(f"{manifest.collection.name}.db"))
    _record(work, manifest, digests, time.monotonic() - started)


def _index_server(source: _Source, manifest: Manifest, target: Target, report: Report) -> bool:
    name = manifest.collection.name
    # Builds in other folders give the same name to the same papers: this file says which collection was begun here.
    begun = target.work / f"{name}.server"
    with Milvus(target.uri, token=target.token) as milvus:
        if present := name in milvus.collections():
            try:
                open_index(manifest, target.uri, query_spec=manifest.embedding, token=target.token).close()
            except IndexRefused as refusal:
                if not begun.exists() or begun.read_text(encoding="utf-8") != target.uri:
                    raise _begun_elsewhere(refusal, name, target) from refusal
                report(0, None, f"{name} on the server is incomplete ({refusal.differences[0]}); building it again")
            else:
                return False
        source.require_vectors()
        write_atomically(begun, target.uri.encode())
        if present:
            milvus.drop(name)
        started = time.monotonic()
        with _prefetched(_batches(source, manifest.embedding.dimension)) as batches:
            _fill(milvus, batches, manifest, report)
    _record(target.work, manifest, {}, time.monotonic() - started)
    return True


def _begun_elsewhere(refusal: IndexRefused, name: str, target: Target) -> IndexRefused:
    wanted = (
        f"begun by a build in {target.work}; wait for the build that may be filling it and run the same command again, "
        f"or drop the collection {name} there if nobody does"
    )
    begun = Difference("incomplete collection", wanted, "begun elsewhere")
    return IndexRefused(refusal.subject, [begun, *refusal.differences])


def _fill(milvus: Milvus, batches: Iterator[Rows], manifest: Manifest, report: Report) -> None:
    name, rows = manifest.collection.name, manifest.corpus.rows
    milvus.create(name, manifest.embedding.dimension)
    done = 0
    for batch in batches:
        milvus.insert(name, batch)
        done += len(batch)
        report(done, rows, "")
    report(done, rows, "flushing and indexing")
    milvus.seal(name)


def _batches(source: _Source, dimension: int) -> Iterator[Rows]:
    """Rows as Milvus takes them, in the byte order of the ids."""
    papers = pl.read_parquet(source.papers, glob=False).sort(KEY)
    pages = windowed(source.read_vectors, papers[TEXT_KEY].to_list(), dimension, INSERT_ROWS)
    for batch, vectors in zip(papers.iter_slices(INSERT_ROWS), pages, strict=True):
        fields = batch.select(field.name for field in RECORD_FIELDS).iter_rows(named=True)
        yield [
            row | {SEARCH_TEXT: search_text_of(row), DENSE: vector} for row, vector in zip(fields, vectors, strict=True)
        ]


@contextmanager
def _prefetched(batches: Iterator[Rows]) -> Iterator[Iterator[Rows]]:
    """The same, the first made while the engine starts and each other while it is busy with the one before."""
    with ThreadPoolExecutor(1) as maker:
        first = maker.submit(next, batches, None)

        def each() -> Iterator[Rows]:
            following = first
            while (batch := following.result()) is not None:
                following = maker.submit(next, batches, None)
                yield batch

        yield each()


def _require_complete(folder: Path) -> None:
    found, waiting = len(segments(folder)), len(unflushed(folder))
    if found != 1 or waiting:
        raise MilvusError(
            f"Milvus Lite left {found} segments and {waiting} unflushed files in {folder}; expected one "
            "segment and none, else BM25 statistics are not global. Build again; if it stays, report the versions"
        )
    if not vector_indexes(folder):
        raise MilvusError(
            f"Milvus Lite left no vector index in {folder}, so every start would build it. Build again; if it stays, "
            "report the versions"
        )


def _record(work: Path, manifest: Manifest, files: dict[str, str], seconds: float) -> None:
    built = BuiltCollection(
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        manifest_digest=manifest.digest,
        files=files,
        versions={package: importlib.metadata.version(package) for package in ENGINE_PACKAGES},
        seconds={"index": round(seconds, 3)},
    )
    collections = {
        name: known for name, known in recorded(work).items() if not known.files or (work / f"{name}.db").is_dir()
    }
    Artifact(collections=collections | {manifest.collection.name: built}).write(work)
