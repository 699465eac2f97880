"""Scratch folders, gone with the program that made them: at its end or, if it was killed, when another makes one.

Each holds a file that its program keeps locked. A lock ends with its holder however that ends, so a folder whose lock
is free belongs to nobody.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PREFIX = "papers-"
LOCK = "in-use"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A fresh folder of a short path; those of this user's programs that were killed are removed first.

    Raises:
        OSError: there is no folder for temporary files, or it cannot be written.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    with ExitStack() as held, tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        lock = held.enter_context((folder / f".{LOCK}").open("wb"))
        with suppress(OSError):  # a file system without locks: after a kill the folder stays
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Only now, under this name, may another program look whether it is free.
            (folder / f".{LOCK}").replace(folder / LOCK)
        yield folder


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is in use, somebody else's, or another program is removing it
            if _is_ours(folder):
                with (folder / LOCK).open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
