"""The work folder: who holds it, and where each stage leaves what it made.

papers.parquet, corpus.json   load          COLLECTION.db     index, one folder a collection
rejected.jsonl                load          milvus.db         link to the newest complete collection
artifact.json                 index         .building-*.db    index, until it is complete and takes its place
                                            .replaced-*.db    index, what stood in that place, until it is removed
                                            COLLECTION.server index, the server where a build of this folder began it
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TextIO

from manifests.artifact import Artifact, BuiltCollection
from manifests.errors import ArtifactDamaged, Difference, IndexRefused
from manifests.files import sync_folder
from pipeline.errors import MachineRefused, WorkFolderHeld

LINK = "milvus.db"
LOCK = ".lock"
ASKED_S = 1.0  # longer than anybody takes to ask who holds the folder
BUILDING = ".building-"
REPLACED = ".replaced-"


class Target(NamedTuple):
    """Where the collection goes: a Lite path inside `work`, or a server."""

    work: Path
    uri: str
    token: str | None


@contextmanager
def held(work: Path, command: str) -> Iterator[None]:
    """Hold `work` for one build; the lock ends with the holder, however it ends.

    Raises:
        WorkFolderHeld: naming the holder's pid, command and start.
        MachineRefused: the folder cannot be made.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        file = (work / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise MachineRefused(f"cannot use the work folder {work}: {error.strerror}; choose another --work") from error
    with file:
        try:
            _lock(file)
        except BlockingIOError as error:
            file.seek(0)
            raise WorkFolderHeld(
                f"the work folder {work} is held by {_holder(file.read())}; wait for it, or choose another --work"
            ) from error
        except OSError as error:
            raise MachineRefused(f"cannot lock {work / LOCK}: {error.strerror}; put --work on a local disk") from error
        file.truncate(0)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(json.dumps({"pid": os.getpid(), "command": command, "started": started}))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _lock(file: TextIO) -> None:
    """Lock `file` for a build. `holder` has the lock for an instant too, so one refusal says nothing yet.

    Raises:
        BlockingIOError: another build has it.
    """
    until = time.monotonic() + ASKED_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(ASKED_S / 20)
        else:
            return


def holder(work: Path) -> str | None:
    """Who holds `work` now, None when nobody does; a dead holder's mark does not count."""
    path = work / LOCK
    if not path.exists():
        return None
    with path.open("r", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _holder(file.read())
    return None


def _holder(mark: str) -> str:
    try:
        found = json.loads(mark)
        return f"pid {found['pid']} ({found['command']}, since {found['started']})"
    except (ValueError, KeyError, TypeError):
        return "another build that has just started"


def switch_link(work: Path, collection: str) -> None:
    """Let `milvus.db` lead to `collection`, in one step."""
    _lead(work, f"{collection}.db")


def _lead(work: Path, folder: str) -> None:
    link = work / LINK
    if link.is_symlink() and link.readlink() == Path(folder):
        return
    fresh = work / f".{LINK}-{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(folder)
    fresh.replace(link)
    sync_folder(work)


def recorded(work: Path) -> dict[str, BuiltCollection]:
    """What artifact.json says of each collection: of none when it is damaged, so that a build writes it anew.

    Raises:
        IndexRefused: what bears that name is no file, and would stop the build at its end.
    """
    try:
        return Artifact.read(work).collections
    except ArtifactDamaged:
        return {}


def record_seconds(work: Path, collection: str, seconds: Mapping[str, float]) -> None:
    """Note in the artifact of `work` how long the other stages of the build took that completed `collection`."""
    collections = recorded(work)
    built = collections.get(collection)
    if built is None:  # it was on the server already, built from another folder
        return
    timed = built.model_copy(update={"seconds": {**seconds, **built.seconds}})
    Artifact(collections=collections | {collection: timed}).write(work)


def install(work: Path, collection: str) -> None:
    """Let the complete `.building-COLLECTION.db` become `COLLECTION.db`, also where one stands already.

    That takes two renames. From before the first until after the second `milvus.db` leads to the new folder, where the
    gate looks when there is no `COLLECTION.db`: a server that starts in between, or after a kill there, finds it.
    """
    folder, building = work / f"{collection}.db", work / f"{BUILDING}{collection}.db"
    replaced = work / f"{REPLACED}{collection}.db"
    if os.path.lexists(folder):
        _lead(work, building.name)
        _remove(replaced)
        folder.replace(replaced)
    building.replace(folder)
    sync_folder(work)


def settle(work: Path, collection: str) -> None:
    """Remove what is left of a build of `collection`, now that `COLLECTION.db` is complete.

    The link comes last: while it leads elsewhere the index does not count as published, and the same build comes here.
    """
    _remove(work / f"{REPLACED}{collection}.db")
    _remove(work / f"{BUILDING}{collection}.db")
    link = work / LINK
    if link.is_symlink() and link.readlink() == Path(f"{BUILDING}{collection}.db"):
        switch_link(work, collection)


def _remove(path: Path) -> None:
    """Whatever `path` is; a link alone, not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def unfinished(work: Path) -> list[Path]:
    """What builds that ended early left."""
    return sorted([*work.glob(f"{BUILDING}*"), *work.glob(f"{REPLACED}*")])


def leftovers(work: Path, kept: str) -> list[Path]:
    """Folders that neither the collection `kept` nor a running build needs: older collections, dead builds."""
    older = [path for path in work.glob("papers_*.db") if path.name != f"{kept}.db"]
    return sorted(older + unfinished(work))


def prune(work: Path, kept: str) -> list[Path]:
    """Remove what `leftovers` names, first from artifact.json, then from the disk; `milvus.db` leads to `kept`.

    Raises:
        IndexRefused: `kept` is not in `work`, and what is there may be somebody's only index; nothing was removed.
    """
    removed = leftovers(work, kept)
    others = [path.stem for path in removed if not path.name.startswith(BUILDING)]
    here = (work / f"{kept}.db").is_dir()
    if others and not here:
        wanted = "collection to keep; give the manifest of one that is here, or build this one"
        absent = Difference(wanted, kept, ", ".join(others))
        raise IndexRefused(f"prune of {work}", [absent])
    artifact = Artifact.read(work)
    remaining = {name: built for name, built in artifact.collections.items() if name == kept}
    if remaining != artifact.collections:
        Artifact(collections=remaining).write(work)
    if removed and here:
        switch_link(work, kept)
    for path in removed:
        _remove(path)
    return removed
