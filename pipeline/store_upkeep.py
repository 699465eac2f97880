"""What keeps the embedding store small: stats, prune.

Reads    every part, spec and reference of the store
Writes   prune alone: merged parts, then it removes what nothing needs and sets damaged parts aside
Holds    a vector that a published manifest or a corpus in a work folder needs is never removed, also while that file
         is not where it was, unless it is named to be forgotten
Resumes  at any moment the store is whole; a prune that was killed is run again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from manifests.embedding.spec import EmbeddingSpec, Vectors
from pipeline.claims import CLAIMS
from pipeline.embedding_store import read_part, write_part
from pipeline.errors import StoreDamaged
from pipeline.progress import Report, silent
from pipeline.store_folder import PARTS, REFERENCES, spec_folders, spec_of, store_held
from pipeline.store_references import Missing, needs, require_missing

DAMAGED = "damaged"
MERGED_BYTES = 64 << 20  # of vectors in one merged part


@dataclass(frozen=True)
class SpecStats:
    """What the store holds of one embedding spec; `referenced` counts texts that a file needs."""

    spec: str
    fingerprint: str
    parts: int
    vectors: int
    referenced: int
    bytes: int
    needed_by: list[str]
    missing: list[Missing]


@dataclass(frozen=True)
class Pruned:
    """What `prune` did, or would do, to one embedding spec.

    Attributes:
        kept: distinct texts whose vector stays.
        removed: vectors that nothing needed, and second copies.
        parts_before: parts found.
        parts: parts left.
        damaged: names of the parts set aside in `damaged/`.
        lost: texts that something needs and no sound part holds; the next build embeds them again.
        needed_by: files that are there, whose texts are kept.
        missing: files that are not where they were, whose texts are kept.
    """

    spec: str
    fingerprint: str
    kept: int = 0
    removed: int = 0
    parts_before: int = 0
    parts: int = 0
    damaged: list[str] = field(default_factory=list)
    lost: int = 0
    needed_by: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)


def stats(folder: Path) -> list[SpecStats]:
    """Parts, vectors and bytes of each embedding spec, and what needs them.

    Raises:
        StoreHeld: `store prune` is at work.
        StoreDamaged: a part, a spec, or a list of needed texts is not what was written.
    """
    found: list[SpecStats] = []
    with store_held(folder, exclusive=False):
        for spec_folder in spec_folders(folder):
            spec = spec_of(spec_folder)
            paths = sorted(spec_folder.glob(PARTS))
            keys = {key for path in paths for key in read_part(path, spec.dimension).keys}
            needed = needs(spec_folder)
            found.append(
                SpecStats(
                    spec=str(spec),
                    fingerprint=spec.fingerprint,
                    parts=len(paths),
                    vectors=len(keys),
                    referenced=len(needed.keys & keys),
                    bytes=sum(path.stat().st_size for path in paths),
                    needed_by=needed.by,
                    missing=needed.missing,
                )
            )
    return found


def prune_store(
    folder: Path, *, dry_run: bool = False, forget: Sequence[Path] = (), report: Report = silent
) -> list[Pruned]:
    """Remove the vectors that nothing needs, merge small parts, set damaged parts aside; `dry_run` only counts.

    Args:
        forget: missing files, or folders that held some, whose texts are needed no longer.

    Raises:
        StoreHeld: a build uses the store.
        InputRefused: nothing that `forget` names is missing; nothing is removed.
        SpecDamaged, ReferenceDamaged: what is held or needed cannot be known; nothing is removed.
    """
    with store_held(folder, exclusive=True):
        specs = {spec_folder: spec_of(spec_folder) for spec_folder in spec_folders(folder)}
        require_missing(specs, forget)
        return [_prune_spec(spec_folder, spec, dry_run, forget, report) for spec_folder, spec in specs.items()]


def _prune_spec(folder: Path, spec: EmbeddingSpec, dry_run: bool, forget: Sequence[Path], report: Report) -> Pruned:
    needed = needs(folder, forget)
    keys = needed.keys
    paths = sorted(folder.glob(PARTS))
    merged = _Merger(folder, MERGED_BYTES // (4 * spec.dimension), dry_run=dry_run)
    damaged: list[Path] = []
    rows = 0
    for done, path in enumerate(paths, start=1):
        try:
            part = read_part(path, spec.dimension)
        except StoreDamaged:
            damaged.append(path)
        else:
            rows += len(part.keys)
            merged.take(path.name, part.keys, part.vectors, keys)
        report(done, len(paths), str(spec))
    merged.flush()
    if not dry_run:
        _replace(folder, paths, damaged, merged.names)
        for path in needed.dead:
            path.unlink()
    return Pruned(
        spec=str(spec),
        fingerprint=spec.fingerprint,
        kept=len(merged.keys),
        removed=rows - len(merged.keys),
        parts_before=len(paths),
        parts=len(merged.names),
        damaged=[path.name for path in damaged],
        lost=len(keys - merged.keys),
        needed_by=needed.by,
        missing=needed.missing,
    )


class _Merger:
    """Gathers needed vectors, each text once, into parts of `rows_max`; a part that is large and all needed stays."""

    def __init__(self, folder: Path, rows_max: int, *, dry_run: bool) -> None:
        self.keys: set[str] = set()
        self.names: list[str] = []
        self._folder, self._rows_max, self._dry_run = folder, rows_max, dry_run
        self._waiting: list[str] = []
        self._vectors: list[Vectors] = []

    def take(self, name: str, keys: list[str], vectors: Vectors, needed: set[str]) -> None:
        rows = [row for row, key in enumerate(keys) if key in needed and key not in self.keys]
        self.keys.update(keys[row] for row in rows)
        if len(rows) == len(keys) and len(keys) * 2 > self._rows_max:
            self.names.append(name)
            return
        if rows:
            self._waiting += [keys[row] for row in rows]
            self._vectors.append(vectors[rows])
        if len(self._waiting) >= self._rows_max:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        if self._dry_run:
            self.names.append(f"merged-{len(self.names)}")
        else:
            self.names.append(write_part(self._folder, self._waiting, np.concatenate(self._vectors)))
        self._waiting, self._vectors = [], []


def _replace(folder: Path, before: list[Path], damaged: list[Path], kept: list[str]) -> None:
    """The merged parts are written: now the old ones may go, and what killed writers left."""
    for path in damaged:
        (folder / DAMAGED).mkdir(exist_ok=True)
        path.replace(folder / DAMAGED / path.name)
    for path in before:
        if path not in damaged and path.name not in kept:
            path.unlink()
    for path in [*folder.glob(".part-*"), *folder.glob(f"{REFERENCES}/.*"), *folder.glob(CLAIMS)]:
        path.unlink()
