"""What is damaged in the embedding store, and what is needed and not there: verify.

Reads    every part, spec and reference of the store
Writes   nothing
Holds    one damaged file hides no other
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from manifests.embedding.spec import EmbeddingSpec
from pipeline.embedding_store import read_part
from pipeline.errors import StoreDamaged
from pipeline.progress import Report, silent
from pipeline.store_folder import PARTS, spec_folders, spec_of, store_held
from pipeline.store_references import needs, read_reference, reference_paths


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
        why = "a part is gone or damaged" if self.published else "its build is not finished, or a part is gone"
        return (
            f"{self.absent:,} of the {self.texts:,} texts it needs have no vector here: {why}; restore it from a "
            "copy, or run `python -m pipeline embed --work WORK` with the other options of its build"
        )


class Verified(NamedTuple):
    """Every damaged file of the store, and every file that lacks vectors it needs."""

    damaged: list[Damage]
    incomplete: list[Incomplete]

    @property
    def ok(self) -> bool:
        """Nothing is damaged and every manifest has its vectors."""
        return not self.damaged and not any(each.published for each in self.incomplete)


def verify(folder: Path, report: Report = silent) -> Verified:
    """Read every part and list, and name what is damaged and what is needed and not there.

    Raises:
        StoreHeld: `store prune` is at work.
    """
    found = Verified([], [])
    with store_held(folder, exclusive=False):
        for spec_folder in spec_folders(folder):
            with _naming(found.damaged):
                _verify_spec(spec_folder, spec_of(spec_folder), found, report)
    return found


def _verify_spec(folder: Path, spec: EmbeddingSpec, found: Verified, report: Report) -> None:
    sound: set[str] = set()
    paths = sorted(folder.glob(PARTS))
    for done, path in enumerate(paths, start=1):
        with _naming(found.damaged):
            sound.update(read_part(path, spec.dimension).keys)
        report(done, len(paths), str(spec))
    before = len(found.damaged)
    for path in reference_paths(folder):
        with _naming(found.damaged):
            read_reference(path)
    if len(found.damaged) > before:
        return
    for where, texts in needs(folder).texts.items():
        if absent := len(texts - sound):
            found.incomplete.append(Incomplete(where, len(texts), absent))


@contextmanager
def _naming(damages: list[Damage]) -> Iterator[None]:
    """Go on after damage, and name it."""
    try:
        yield
    except StoreDamaged as damage:
        damages.append(Damage(damage.path, damage.reason))
