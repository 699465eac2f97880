"""What the references of the embedding store need: the one place that decides which vectors count.

A text is needed while the manifest or the papers.parquet that listed it exists. Of a file that was published several
times, the list with the file's present digest counts; without one, all of them do. A file that is not there may have
moved, lie on another branch or on a disk that is not mounted: what it listed is needed until somebody forgets it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import polars as pl

from manifests.errors import InputRefused
from manifests.files import file_sha256
from pipeline.errors import ReferenceDamaged
from pipeline.records import TEXT_KEY
from pipeline.store_folder import REFERENCES

_NAMED_MAX = 20


@dataclass(frozen=True)
class Missing:
    """A file that listed `texts` texts, last at `listed_at` (UTC), and is not there now."""

    path: str
    texts: int
    listed_at: str

    def __str__(self) -> str:
        return f"{self.path} ({self.texts:,} texts, last listed {self.listed_at})"


@dataclass(frozen=True)
class Needs:
    """What the references of one embedding spec ask for.

    Attributes:
        texts: file -> the texts whose vectors it needs, of files that are there and of missing ones.
        by: files that are there and need some.
        missing: files that are not there and keep theirs.
        dead: the lists that no longer count.
    """

    texts: dict[str, set[str]] = field(default_factory=dict)
    by: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    dead: list[Path] = field(default_factory=list)

    @property
    def keys(self) -> set[str]:
        """Texts whose vectors must stay."""
        return set().union(*self.texts.values())


class _Listed(NamedTuple):
    digest: str
    path: Path
    keys: frozenset[str]


def needs(folder: Path, forget: Sequence[Path] = ()) -> Needs:
    """What is needed of the spec whose folder is given; a missing file at or below a path of `forget` needs nothing.

    Raises:
        ReferenceDamaged: a list is not what was written.
    """
    found = Needs()
    for where, listed in sorted(_by_file(folder).items()):
        there = Path(where).exists()
        if not there and _lies_below(where, forget):
            found.dead.extend(each.path for each in listed)
            continue
        present = _digest(Path(where)) if there else None
        counting = [each for each in listed if each.digest == present] or listed
        found.dead.extend(each.path for each in listed if each not in counting)
        found.texts[where] = set().union(*(each.keys for each in counting))
        if there:
            found.by.append(where)
        else:
            found.missing.append(_missing(where, listed))
    return found


def require_missing(folders: Iterable[Path], forget: Sequence[Path]) -> None:
    """Every path of `forget` is, or holds, a missing file that a spec of `folders` has a list of.

    Raises:
        InputRefused: one is not; it may be mistyped, or its files are there.
        ReferenceDamaged: a list is not what was written.
    """
    if not forget:
        return
    missing = sorted({each.path for folder in folders for each in needs(folder).missing})
    for path in forget:
        if not any(_lies_below(where, [path]) for where in missing):
            named = "".join(f"\n  {where}" for where in missing[:_NAMED_MAX]) or " none"
            raise InputRefused(
                f"--forget {path}: expected the path of a file that the store knows and that is not there, or of a "
                f"folder that held some; missing are:{named}"
            )


def read_reference(path: Path) -> pl.DataFrame:
    """The list at `path`: path and digest of the file that needs them, and the texts.

    Raises:
        ReferenceDamaged: it is not what was written.
    """
    try:
        frame = pl.read_parquet(path, glob=False)
        if frame.columns == ["path", "digest", TEXT_KEY] and len(frame):
            return frame
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ReferenceDamaged(path, f"it should list the texts of a manifest, and cannot be read ({error})") from error
    raise ReferenceDamaged(path, f"it should list the texts of a manifest, and has columns {frame.columns}")


def reference_paths(folder: Path) -> list[Path]:
    """The lists of one spec's folder, in order."""
    return sorted((folder / REFERENCES).glob("*.parquet"))


def _by_file(folder: Path) -> dict[str, list[_Listed]]:
    found: dict[str, list[_Listed]] = {}
    for path in reference_paths(folder):
        frame = read_reference(path)
        found.setdefault(frame["path"][0], []).append(_Listed(frame["digest"][0], path, frozenset(frame[TEXT_KEY])))
    return found


def _missing(where: str, listed: list[_Listed]) -> Missing:
    written = max(each.path.stat().st_mtime for each in listed)
    at = datetime.fromtimestamp(written, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Missing(where, len(set().union(*(each.keys for each in listed))), at)


def _lies_below(where: str, paths: Sequence[Path]) -> bool:
    return any(Path(where).is_relative_to(path) for given in paths for path in (given.absolute(), given.resolve()))


def _digest(path: Path) -> str | None:
    """The digest of the file as it is now; None where a manifest cannot be read."""
    if path.suffix != ".json":
        return file_sha256(path)
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return None
    digest = found.get("digest") if isinstance(found, dict) else None
    return digest if isinstance(digest, str) else None
