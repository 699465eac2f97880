"""Where things are: flags first, then the environment, then the defaults of DESIGN.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from manifests.lite import is_lite
from manifests.places import state_home
from pipeline.corpus import FACTS
from pipeline.errors import UsageError
from pipeline.snapshot import read_card
from pipeline.work import LINK, Target


@dataclass(frozen=True)
class Given:
    """The flags of a command that say where things are; None where one was left out or the command has none."""

    work: Path | None = None
    manifest: Path | None = None
    store: Path | None = None
    ledger: Path | None = None
    milvus_uri: str | None = None


@dataclass(frozen=True)
class Places:
    """The folders and files of one command."""

    work: Path
    manifest: Path
    store: Path
    ledger: Path
    target: Target

    @classmethod
    def of_snapshot(cls, snapshot: Path, given: Given, environment: Mapping[str, str]) -> Self:
        """For a command that starts from a snapshot: NAME is the snapshot's own name."""
        return cls._of(read_card(snapshot).name, given, environment)

    @classmethod
    def of_work(cls, given: Given, environment: Mapping[str, str]) -> Self:
        """For a command that starts from a work folder: NAME is that of its corpus, else of the folder."""
        if given.work is None:
            raise UsageError("--work is needed: which work folder? A build of snapshots/NAME uses builds/NAME")
        return cls._of(_name_in(given.work), given, environment)

    @classmethod
    def of_manifest(cls, given: Given, environment: Mapping[str, str]) -> Self:
        """For a command that starts from a manifest: NAME is the file's, unless the work folder tells."""
        if given.manifest is not None:
            return cls._of(given.manifest.stem, given, environment)
        if given.work is None:
            raise UsageError("--manifest or --work is needed: what shall be compared?")
        return cls._of(_name_in(given.work), given, environment)

    @classmethod
    def of_judged(cls, judged: Path, given: Given, environment: Mapping[str, str]) -> Self:
        """For a judged set: NAME is its folder's, and its work folder stands apart from the builds of snapshots."""
        return cls._of(f"judged-{judged.resolve().name}", given, environment)

    @classmethod
    def _of(cls, name: str, given: Given, environment: Mapping[str, str]) -> Self:
        work = given.work or Path("builds") / name
        return cls(
            work=work,
            manifest=given.manifest or Path("manifests") / f"{name}.json",
            store=given.store or state_home(environment) / "vectors",
            ledger=given.ledger or state_home(environment) / "ledger.db",
            target=Target(work=work, uri=given.milvus_uri or str(work / LINK), token=environment.get("MILVUS_TOKEN")),
        )


def require_buildable(places: Places) -> None:
    """A build makes a link and a manifest, and writes into its work folder or to a server, to no Lite path elsewhere.

    Raises:
        UsageError: what stands at one of them, or `--milvus-uri`, is in the way.
    """
    uri, link = places.target.uri, places.work / LINK
    if link.exists() and not link.is_symlink():
        raise UsageError(
            f"{link} is no link but a folder of its own, as a copy that followed links makes it; move it away: a build "
            "lets that name lead to its collection"
        )
    if places.manifest.is_dir() or places.manifest.parent.is_file():
        raise UsageError(f"--manifest {places.manifest} cannot be written as a file; give another path")
    if is_lite(uri) and Path(uri).absolute() != link.absolute():
        raise UsageError(
            f"--milvus-uri {uri} is a Lite path outside the work folder: a build writes {link}; leave the flag out, "
            "or name a server as http(s)://…"
        )


def _name_in(work: Path) -> str:
    """The name of the corpus in `work`, unverified, since it only chooses default paths; else the folder's own."""
    try:
        return str(json.loads((work / FACTS).read_bytes())["snapshot"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return work.name
