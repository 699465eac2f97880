"""The folder of the embedding store: whose turn it is to write there, and the specs it holds vectors of."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from manifests.embedding.spec import EmbeddingSpec
from pipeline.errors import MachineRefused, SpecDamaged, StoreHeld

LOCK = ".lock"
SPEC = "spec.json"
REFERENCES = "references"
PARTS = "part-*.parquet"


def lock(folder: Path, *, exclusive: bool) -> int:
    """A file descriptor that holds the store at `folder`; closing it, however the holder ends, lets go.

    Raises:
        StoreHeld: somebody holds it in the other way.
        MachineRefused: its file system has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return _locked(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644), folder, exclusive=exclusive)


def lock_to_read(folder: Path) -> int | None:
    """As `lock`, against `store prune` and without writing: None where nobody has ever locked a store.

    Raises:
        StoreHeld: `store prune` is at work.
        MachineRefused: its file system has no locks.
    """
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _locked(descriptor, folder, exclusive=False)


def _locked(descriptor: int, folder: Path, *, exclusive: bool) -> int:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        who = "a build or another store command" if exclusive else "`store prune`"
        raise StoreHeld(f"the embedding store {folder} is held by {who}; run this again when that has ended") from error
    except OSError as error:
        os.close(descriptor)
        raise MachineRefused(f"cannot lock {folder / LOCK}: {error.strerror}; put --store on a local disk") from error
    return descriptor


@contextmanager
def store_held(folder: Path, *, exclusive: bool) -> Iterator[None]:
    """Hold the store, where there is one.

    Raises:
        StoreHeld: somebody holds it in the other way.
        MachineRefused: its file system has no locks.
    """
    descriptor = lock(folder, exclusive=True) if exclusive and folder.is_dir() else lock_to_read(folder)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def spec_folders(folder: Path) -> list[Path]:
    """The folders of the store that hold a spec or parts, in order."""
    return sorted({path.parent for kind in (SPEC, PARTS) for path in folder.glob(f"*/{kind}")})


def spec_of(folder: Path) -> EmbeddingSpec:
    """The spec whose vectors `folder` holds.

    Raises:
        SpecDamaged: spec.json is absent or is not that of its folder.
    """
    path = folder / SPEC
    try:
        spec = EmbeddingSpec.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SpecDamaged(path, f"it cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise SpecDamaged(path, f"it is no embedding spec: {error.errors()[0]['msg']}") from error
    if spec.fingerprint != folder.name:
        raise SpecDamaged(path, f"it describes {spec.fingerprint}, another spec than its folder's")
    return spec
