"""Which texts this program is embedding, and which parts it has stored, told to every other program on the store.

STORE/<spec fingerprint>/.claims is both. A text is claimed by a lock on the byte that its sha256 names; the system
ends the locks of a program that ends, however it ends, so nobody waits for the dead. The content is the name of every
part, written just before the part itself, so that nobody lists the folder to learn what has come. `store prune`, which
runs alone, removes the file.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Self

from manifests.embedding.spec import Vectors
from pipeline.embedding_store import EmbeddingStore
from pipeline.errors import MachineRefused

CLAIMS = ".claims"
_PART = re.compile(r"part-[0-9a-f]{32}\.parquet")
_TEXTS_CLAIMED = 128  # at once, while earlier ones are in flight


class Claims:
    """The claims of this program on the store folder of one spec, and the parts announced since this was opened."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CLAIMS
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._read = os.fstat(self._descriptor).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)  # ends every claim

    def take(self, text_sha256: str) -> bool:
        """Whether the text is this program's to embed now; False while it is another's.

        Raises:
            MachineRefused: the file system has no locks.
        """
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(text_sha256))
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
        except OSError as error:
            raise MachineRefused(f"cannot lock {self._path}: {error.strerror}; put --store on a local disk") from error
        return True

    def let_go(self, text_sha256s: Iterable[str]) -> None:
        """Others may take these texts; their parts, if any, were announced."""
        for key in text_sha256s:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _place(key))

    def announce(self, part: str) -> None:
        """Tell the others that the part of this name comes now."""
        os.write(self._descriptor, f"{part}\n".encode())

    def announced(self) -> list[str]:
        """Names of the parts announced since the last look, this program's too; some may never have come."""
        size = os.fstat(self._descriptor).st_size
        if size <= self._read:
            return []
        lines = os.pread(self._descriptor, size - self._read, self._read).rpartition(b"\n")[0]
        self._read += len(lines) + 1 if lines else 0
        return _PART.findall(lines.decode("ascii", "replace"))


class Share:
    """The missing texts of one pass, shared with the other programs that embed for the same store.

    Attributes:
        arrived: texts of this pass whose vectors came from another program.
        elsewhere: the text by sha256 of those that another program is embedding.
    """

    def __init__(self, store: EmbeddingStore, claims: Claims) -> None:
        self.arrived = 0
        self.elsewhere: dict[str, str] = {}
        self._store, self._claims = store, claims
        self._coming: list[str] = []

    def mine(self, texts: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Those of the pairs (sha256, text) that are this program's to embed; it has claimed each.

        Raises:
            StoreDamaged: a part that another program stored is not what it wrote.
        """
        while chunk := list(islice(texts, _TEXTS_CLAIMED)):
            taken = {key for key, _ in chunk if self._claims.take(key)}
            self._look()  # after taking: whoever let go of a text had announced its part before
            self._claims.let_go(key for key in taken if key in self._store)
            for key, text in chunk:
                if key in self._store:
                    self.arrived += 1
                elif key in taken:
                    yield key, text
                else:
                    self.elsewhere[key] = text

    def left_by_others(self) -> Iterator[tuple[str, str]]:
        """`mine` of the texts that another program was embedding."""
        texts, self.elsewhere = self.elsewhere, {}
        return self.mine(iter(texts.items()))

    def keep(self, text_sha256s: Sequence[str], vectors: Vectors) -> None:
        """Store what came back, and let the others know.

        Raises:
            OSError: the disk is full; nothing is kept.
        """
        self._store.append(text_sha256s, vectors, self._claims.announce)
        self._claims.let_go(text_sha256s)

    def refuse(self, text_sha256s: Iterable[str]) -> None:
        """These texts get no vector from this program."""
        self._claims.let_go(text_sha256s)

    def _look(self) -> None:
        """Learn the parts that other programs have stored; one that was announced may still be on its way."""
        names = self._coming + self._claims.announced()
        self._coming = [name for name in names if not self._store.learn(name)]
        for key in [key for key in self.elsewhere if key in self._store]:
            del self.elsewhere[key]
            self.arrived += 1


def _place(text_sha256: str) -> int:
    """The byte that stands for a text, far beyond the content; two texts on one byte only wait for each other."""
    return (1 << 61) + int(text_sha256[:15], 16)
