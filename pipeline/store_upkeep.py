"""What keeps the embedding store sound and small: verify, stats, prune.

Reads    every part, spec and reference of the store
Writes   prune alone: merged parts, then it removes what nothing needs and sets damaged parts aside
Holds    a vector that a published manifest or a corpus in a work folder needs is never removed, also while that file
         is not where it was, unless it is named to be forgotten
Resumes  at any moment the store is whole; a prune that was killed is run again
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from manifests.embedding.spec import EmbeddingSpec, Vectors
from pipeline.claims import CLAIMS
from pipeline.embedding_store import PARTS, REFERENCES, SPEC, lock, read_part, write_part
from pipeline.errors import SpecDamaged, StoreDamaged
from pipeline.progress import Report, silent
from pipeline.store_references import Missing, needs, read_reference, reference_paths, require_missing

DAMAGED = "damaged"
MERGED_BYTES = 64 << 20  # of vectors in one merged part


class Damage(NamedTuple):
    """One file of the store that is not what was written."""

    path: Path
    reason: str


class Incomplete(NamedTuple):
    """A file that needs `texts` texts, of which `absent` have no vector in a sound part."""

    path: str
    texts: int
    absent: int

    @property
    def published(self) -> bool:
        """A manifest, which had every vector once; a corpus may have a build that is not finished."""
        return self.path.endswith(".json")

    @property
    def reason(self) -> str:
        """What is so, and what to do."""
        if self.published:
            why = "a part is gone or damaged; put it back from a copy, or build again: what is absent is embedded again"
        else:
            why = "its build has not embedded them yet, or a part is gone; the build's own command embeds them"
        return f"{self.absent:,} of the {self.texts:,} texts it needs have no vector here: {why}"


class Verified(NamedTuple):
    """Every damaged file of the store, and every file that lacks vectors it needs."""

    damaged: list[Damage]
    incomplete: list[Incomplete]

    @property
    def ok(self) -> bool:
        """Nothing is damaged and every manifest has its vectors."""
        return not self.damaged and not any(each.published for each in self.incomplete)


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


def verify(folder: Path, report: Report = silent) -> Verified:
    """Read every part and list, and name what is damaged and what is needed and not there.

    Raises:
        StoreHeld: `store prune` is at work.
    """
    found = Verified([], [])
    with _held(folder, exclusive=False):
        for spec_folder in _spec_folders(folder):
            with _naming(found.damaged):
                _verify_spec(spec_folder, _spec_of(spec_folder), found, report)
    return found


def _verify_spec(folder: Path, spec: EmbeddingSpec, found: Verified, report: Report) -> None:
    held: set[str] = set()
    paths = sorted(folder.glob(PARTS))
    for done, path in enumerate(paths, start=1):
        with _naming(found.damaged):
            held.update(read_part(path, spec.dimension).keys)
        report(done, len(paths), str(spec))
    before = len(found.damaged)
    for path in reference_paths(folder):
        with _naming(found.damaged):
            read_reference(path)
    if len(found.damaged) > before:
        return
    for where, texts in needs(folder).texts.items():
        if absent := len(texts - held):
            found.incomplete.append(Incomplete(where, len(texts), absent))


@contextmanager
def _naming(damages: list[Damage]) -> Iterator[None]:
    """Go on after damage, and name it."""
    try:
        yield
    except StoreDamaged as damage:
        damages.append(Damage(damage.path, damage.reason))


def stats(folder: Path) -> list[SpecStats]:
    """Parts, vectors and bytes of each embedding spec, and what needs them.

    Raises:
        StoreHeld: `store prune` is at work.
        StoreDamaged: a part, a spec, or a list of needed texts is not what was written.
    """
    found: list[SpecStats] = []
    with _held(folder, exclusive=False):
        for spec_folder in _spec_folders(folder):
            spec = _spec_of(spec_folder)
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


def prune(folder: Path, *, dry_run: bool = False, forget: Sequence[Path] = (), report: Report = silent) -> list[Pruned]:
    """Remove the vectors that nothing needs, merge small parts, set damaged parts aside; `dry_run` only counts.

    Args:
        forget: missing files, or folders that held some, whose texts are needed no longer.

    Raises:
        StoreHeld: a build uses the store.
        InputRefused: nothing that `forget` names is missing; nothing is removed.
        SpecDamaged, ReferenceDamaged: what is held or needed cannot be known; nothing is removed.
    """
    with _held(folder, exclusive=True):
        specs = {spec_folder: _spec_of(spec_folder) for spec_folder in _spec_folders(folder)}
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


def _spec_folders(folder: Path) -> list[Path]:
    return sorted({path.parent for kind in (SPEC, PARTS) for path in folder.glob(f"*/{kind}")})


def _spec_of(folder: Path) -> EmbeddingSpec:
    """The spec whose vectors `folder` holds."""
    path = folder / SPEC
    try:
        spec = EmbeddingSpec.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise SpecDamaged(path, f"it cannot be read: {error}") from error
    if spec.fingerprint != folder.name:
        raise SpecDamaged(path, f"it describes {spec.fingerprint}, another spec than its folder's")
    return spec


@contextmanager
def _held(folder: Path, *, exclusive: bool) -> Iterator[None]:
    if not folder.is_dir():
        yield
        return
    descriptor = lock(folder, exclusive=exclusive)
    try:
        yield
    finally:
        os.close(descriptor)
