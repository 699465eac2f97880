"""`artifact.json` beside the index: what depends on the machine and the clock, and the digests of the Lite files.

It travels with the index. The manifest says what the index must contain; this file says that the bytes on this disk are
the ones that were validated, which has to be known before the engine may open them.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from manifests.errors import ArtifactDamaged, Difference, IndexRefused
from manifests.files import write_atomically

NAME = "artifact.json"


class BuiltCollection(BaseModel):
    """One collection of the folder; `files` (path from here: sha256) is empty for a collection on a server."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    built_at: str
    manifest_digest: str
    files: dict[str, str]
    versions: dict[str, str]
    seconds: dict[str, float]


class Artifact(BaseModel):
    """Every collection that the folder still holds, by name."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    collections: dict[str, BuiltCollection] = {}

    @classmethod
    def read(cls, folder: Path) -> Artifact:
        """The artifact of `folder`; an absent one holds nothing.

        Raises:
            ArtifactDamaged: there is a file and it is not an artifact.
            IndexRefused: there is something else, which no build can replace.
        """
        path = folder / NAME
        if not path.exists():
            return cls()
        if not path.is_file():
            wanted = "a file; move what is there away"
            raise IndexRefused(f"index {folder}", [Difference(NAME, wanted, "something else")])
        try:
            return cls.model_validate(json.loads(path.read_bytes()))
        except (ValueError, RecursionError) as error:
            found = str(error).splitlines()[0]
            raise ArtifactDamaged(
                f"index {folder}", [Difference(NAME, "what the build wrote; build again to restore it", found)]
            ) from error

    def write(self, folder: Path) -> None:
        """Replace the artifact of `folder` atomically."""
        content = json.dumps(self.model_dump(), ensure_ascii=False, indent=2, sort_keys=True) + "\n"
        write_atomically(folder / NAME, content.encode())


def file_differences(expected: dict[str, str], found: dict[str, str]) -> list[Difference]:
    """Files that are missing, extra or changed, each with both digests."""
    return [
        Difference(f"file {name}", expected.get(name, "no such file"), found.get(name, "no such file"))
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
