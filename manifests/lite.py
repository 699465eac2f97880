"""Milvus Lite: an index folder, its digests, and the engine that runs on it.

The engine takes a lock and may rewrite or delete files of a folder it opens, so a published folder is never given
to it: `linked` lays out real folders with links to every file in scratch space, and only a build opens its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from manifests.collection import FIELDS, KEY, SPARSE
from manifests.errors import MilvusError
from manifests.files import file_sha256

LOCK = "LOCK"  # created empty by the engine, says nothing about the content

# One segment, so that BM25 statistics are global: the memtable is flushed once, by us, at the end of a build.
# milvus-lite reads these when it is imported; the values are bytes.
ONE_SEGMENT = {
    "MILVUS_LITE_MEMTABLE_MEMORY_LIMIT_BYTES": str(1 << 40),
    "MILVUS_LITE_WAL_SIZE_LIMIT_BYTES": str(1 << 40),
}
SECRETS = ("DASHSCOPE_API_KEY", "MILVUS_TOKEN", "SERVE_BEARER_TOKEN", "SERVE_HASH_KEY")  # not the engine's business
# What a search reads of each row inside the engine; see lite_child.make_rows_lean.
SEARCHED = (KEY, SPARSE, *(field.name for field in FIELDS if field.filtered))
_SOCKET_BYTES_MAX = 100  # sockaddr_un holds 108 on Linux and 104 on macOS, with the engine's ":1" and a NUL


def is_lite(uri: str) -> bool:
    """Whether `uri` names a folder of Milvus Lite rather than a server (`http://…`, `https://…`, `unix:…`)."""
    return "://" not in uri and not uri.startswith("unix:")


def folder_digests(folder: Path, called: Path = Path()) -> dict[str, str]:
    """Sha256 of every file below `folder`, the engine's lock left out.

    By its relative POSIX path, with the folder itself `called` so: artifact.json names files as seen from beside it.
    """
    return {
        (called / path.relative_to(folder)).as_posix(): file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LOCK
    }


def segments(folder: Path) -> list[Path]:
    """The files with the rows of `folder`, one a segment; each segment has BM25 statistics of its own papers."""
    return sorted(folder.rglob("data/*.parquet"))


def unflushed(folder: Path) -> list[Path]:
    """The files with rows that are in no segment yet."""
    return sorted(folder.rglob("wal/*"))


def vector_indexes(folder: Path) -> list[Path]:
    """The files with indexes of vectors, which every start would build again where there is none."""
    return sorted(folder.rglob("indexes/*.idx"))


def linked(folder: Path, scratch: Path) -> Path:
    """`scratch` as a copy of `folder` with real directories and links to the files."""
    source = folder.resolve()
    for root, _, names in os.walk(source):
        below = scratch / Path(root).relative_to(source)
        below.mkdir(parents=True, exist_ok=True)
        for name in names:
            if name != LOCK:
                (below / name).symlink_to(Path(root) / name)
    # Folders the engine insists on; an archive or a repository may have dropped them while they were empty.
    for name in ("collections", "databases", ".database-staging"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    for collection in (scratch / "collections").iterdir():
        (collection / "wal").mkdir(exist_ok=True)
    return scratch


class LiteEngine:
    """The engine as a child on `folder`; `uri` is what the Milvus SDK connects to.

    Raises:
        MilvusError: the folder cannot be opened; the engine's own cause is in the message.
    """

    def __init__(self, folder: Path, sockets: Path) -> None:
        socket = sockets / f"{folder.stem[:16]}.sock"
        if len(os.fsencode(socket)) > _SOCKET_BYTES_MAX:
            raise MilvusError(
                f"the scratch folder {sockets} is too long a path for a socket ({_SOCKET_BYTES_MAX} bytes); "
                "set TMPDIR to a shorter one"
            )
        self.uri = f"unix:{socket}:1"
        self._child = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("lite_child.py")), str(folder), str(socket), *SEARCHED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the engine logs there; a failure to open comes on standard output
            env={name: value for name, value in os.environ.items() if name not in SECRETS} | ONE_SEGMENT,
            start_new_session=True,  # Ctrl-C reaches the foreground group; the parent decides when the engine ends
        )

    def wait_ready(self) -> Self:
        """Wait until the engine answers on its socket."""
        assert self._child.stdout is not None  # noqa: S101 -- a pipe was asked for
        said = self._child.stdout.readline().decode(errors="replace").strip()
        if said != "ready":
            self.close()
            cause = said.removeprefix("failed: ") or f"exit code {self._child.returncode}"
            raise MilvusError(f"the Milvus Lite engine did not start: {cause}")
        return self

    @property
    def pid(self) -> int:
        """The child's process id, for measuring it."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the child lives."""
        return self._child.poll() is None

    def close(self) -> None:
        """End the engine in order: its input closes, it flushes, closes its folder and leaves."""
        assert self._child.stdin is not None  # noqa: S101 -- a pipe was asked for
        self._child.stdin.close()
        try:
            self._child.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
