"""What changed between two snapshots, work folders or manifests: papers by field, area moves, counts.

Reads    a snapshot folder, a work folder with papers.parquet, or a manifest whose papers are at hand
Writes   nothing that stays; a snapshot is tabulated in a temporary folder
Holds    fields are compared as stored; papers.parquet stands for a manifest only if its digests are the pinned ones
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from manifests.collection import KEY, RECORD_FIELDS
from manifests.contract import Catalogue, CorpusFacts, Manifest, SnapshotFacts, read_manifest
from manifests.errors import InputRefused
from manifests.scratch import scratch_folder
from pipeline.corpus import FACTS, Corpus, read_corpus, tabulate
from pipeline.progress import Report, silent
from pipeline.snapshot import CARD, open_snapshot

# The search text follows from the others, and differs by its version alone.
COMPARED = tuple(field.name for field in RECORD_FIELDS if field.name != KEY)


@dataclass(frozen=True)
class Side:
    """One of the two: its facts, what a manifest pins beyond them, and its papers where they are at hand."""

    name: str
    snapshot: SnapshotFacts
    facts: CorpusFacts
    catalogue: Catalogue
    pins: dict[str, str]
    papers: Path | None


@dataclass(frozen=True)
class Papers:
    """The papers that differ, each by id in byte order; `titles` has one for every id named here."""

    added: list[str]
    removed: list[str]
    changed: dict[str, list[str]]
    area_moves: dict[tuple[str, str], int]
    titles: dict[str, str]

    def fields(self) -> dict[str, int]:
        """How many papers changed in each field, most first."""
        return dict(Counter(field for fields in self.changed.values() for field in fields).most_common())


@dataclass(frozen=True)
class Diff:
    """Two sides and what differs; `papers` is None where the papers of a manifest are not at hand."""

    a: Side
    b: Side
    papers: Papers | None

    def facts(self) -> dict[str, list[str] | dict[str, list[str]]]:
        """The one object of `--json`.

        Raises:
            InputRefused: the papers of a manifest are not at hand, so that no id can be named.
        """
        if self.papers is None:
            raise InputRefused(self.missing())
        return {"added": self.papers.added, "removed": self.papers.removed, "changed": self.papers.changed}

    def missing(self) -> str:
        """Whose papers are not at hand, and what to do."""
        names = " and ".join(side.name for side in (self.a, self.b) if side.papers is None)
        return (
            f"the papers of {names} are not at hand, so which of them differ cannot be told: expected builds/NAME or "
            "snapshots/NAME with the pinned digest; compare the snapshot or work folders instead"
        )

    def counts(self) -> list[tuple[str, int, int]]:
        """What is counted, with both numbers."""
        a, b = self.a.catalogue, self.b.catalogue
        rows = [
            ("papers", self.a.facts.rows, self.b.facts.rows),
            ("rejected records", self.a.snapshot.counts.rejected, self.b.snapshot.counts.rejected),
            ("spotlight", a.spotlight, b.spotlight),
            ("oral", a.oral, b.oral),
            ("without abstract", a.without_abstract, b.without_abstract),
            ("areas", len(a.areas), len(b.areas)),
        ]
        types = sorted(a.paper_types.keys() | b.paper_types.keys())
        return rows + [(f"type {name}", a.paper_types.get(name, 0), b.paper_types.get(name, 0)) for name in types]

    def area_counts(self) -> list[tuple[str, int, int]]:
        """Areas with another number of papers than before, the largest difference first."""
        a, b = self.a.catalogue.areas, self.b.catalogue.areas
        rows = [(name, a.get(name, 0), b.get(name, 0)) for name in sorted(a.keys() | b.keys())]
        return sorted((row for row in rows if row[1] != row[2]), key=lambda row: -abs(row[1] - row[2]))

    def pins(self) -> list[tuple[str, str, str]]:
        """What the two manifests pin beyond their papers, where it differs."""
        return [
            (what, value, self.b.pins[what])
            for what, value in self.a.pins.items()
            if self.b.pins.get(what, value) != value
        ]


def diff(a: Path, b: Path, report: Report = silent) -> Diff:
    """Compare what is at `a` with what is at `b`, from the older to the newer.

    Raises:
        InputRefused: neither a snapshot, a work folder nor a manifest, or one that cannot be used.
        IndexRefused: a manifest that is not strictly right.
    """
    with scratch_folder() as scratch:
        left = _opened(a, scratch / "a", report)
        right = _opened(b, scratch / "b", report)
        return Diff(left, right, _papers(left, right))


def _opened(path: Path, scratch: Path, report: Report) -> Side:
    if (path / CARD).is_file():
        return _of_corpus(tabulate(open_snapshot(path), scratch, quarantine=True, report=report))
    if (path / FACTS).is_file():
        return _of_corpus(read_corpus(path))
    if path.is_file():
        return _of_manifest(path, read_manifest(path), scratch, report)
    raise InputRefused(
        f"{path}: expected a snapshot folder ({CARD}), a work folder ({FACTS}) or a manifest, "
        f"found {'none of them' if path.exists() else 'nothing'}"
    )


def _of_corpus(corpus: Corpus) -> Side:
    return Side(corpus.snapshot.name, corpus.snapshot, corpus.facts, corpus.catalogue, {}, corpus.path)


def _of_manifest(path: Path, manifest: Manifest, scratch: Path, report: Report) -> Side:
    spec = manifest.embedding
    pins = {
        "digest": manifest.digest,
        "search text version": str(manifest.texts.search),
        "embed text version": str(manifest.texts.embed),
        "embedding": f"{spec.provider} {spec.model}, {spec.dimension} dimensions",
        "collection": manifest.collection.name,
    }
    papers = _at_hand(path, manifest, scratch, report)
    return Side(manifest.snapshot.name, manifest.snapshot, manifest.corpus, manifest.catalogue, pins, papers)


def _at_hand(path: Path, manifest: Manifest, scratch: Path, report: Report) -> Path | None:
    """papers.parquet with the pinned digests: in the usual work folders, else made from the usual snapshot."""
    places = [path.parent.absolute(), path.parent.absolute().parent, Path.cwd()]
    for work in _existing(places, ("builds", path.stem), ("builds", manifest.snapshot.name), ("work",), ()):
        # Another corpus there, or a damaged one, is no reason to stop: this one may lie elsewhere.
        with suppress(InputRefused):
            corpus = read_corpus(work)
            if corpus.facts == manifest.corpus:
                return corpus.path
    for folder in _existing(places, ("snapshots", manifest.snapshot.name), ("snapshots", path.stem)):
        with suppress(InputRefused):
            snapshot = open_snapshot(folder)
            if snapshot.sha256 == manifest.snapshot.sha256:
                return tabulate(snapshot, scratch, quarantine=True, report=report).path
    return None


def _existing(places: list[Path], *below: tuple[str, ...]) -> Iterator[Path]:
    for place in dict.fromkeys(places):
        for parts in below:
            if (folder := place.joinpath(*parts)).is_dir():
                yield folder


def _papers(a: Side, b: Side) -> Papers | None:
    if a.facts == b.facts:
        return Papers([], [], {}, {}, {})
    if a.papers is None or b.papers is None:
        return None
    left, right = pl.scan_parquet(a.papers, glob=False), pl.scan_parquet(b.papers, glob=False)
    added = _titles(right.join(left, on=KEY, how="anti"))
    removed = _titles(left.join(right, on=KEY, how="anti"))
    changed: dict[str, list[str]] = {}
    # A field at a time: two columns are in memory, never two corpora.
    for field in COMPARED:
        for paper_id in _pairs(left, right, field).select(KEY).collect()[KEY].to_list():
            changed.setdefault(paper_id, []).append(field)
    moves = _pairs(left, right, "area").group_by("area", "area_right").len().sort("len", "area", "area_right")
    return Papers(
        added=sorted(added),
        removed=sorted(removed),
        changed=dict(sorted(changed.items())),
        area_moves={(old, new): papers for old, new, papers in reversed(moves.collect().rows())},
        titles=removed | added | _titles(right.filter(pl.col(KEY).is_in(list(changed)))),
    )


def _pairs(left: pl.LazyFrame, right: pl.LazyFrame, field: str) -> pl.LazyFrame:
    """Papers of both sides whose `field` differs, as KEY, field, field_right."""
    both = left.select(KEY, field).join(right.select(KEY, field), on=KEY)
    return both.filter(pl.col(field) != pl.col(f"{field}_right"))


def _titles(papers: pl.LazyFrame) -> dict[str, str]:
    return dict(papers.select(KEY, "title").collect().rows())
