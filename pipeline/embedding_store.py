"""The vectors of this machine: one content-addressed store, shared by every build.

STORE/.lock                                    shared by builds, exclusive for `store prune`
STORE/<spec fingerprint>/spec.json             the embedding spec in full
STORE/<spec fingerprint>/part-<sha256>.parquet text_sha256, vector; named by the content, never changed
STORE/<spec fingerprint>/.claims               which texts are being embedded, which parts have come; see claims.py
STORE/<spec fingerprint>/references/*.parquet  the texts a manifest or a corpus needs; `store prune` keeps them

A part is written under a temporary name and renamed, so several builds may append at once, and a crash leaves whole
parts only. Each part is compared with its name whenever it is read: a damaged one stops the build, because taking its
texts for missing would buy them again unasked, and taking its vectors would serve wrong ones.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import polars as pl

from manifests.embedding import VectorsUnusable, check_vectors
from manifests.embedding.spec import EmbeddingSpec, Vectors
from manifests.errors import InputRefused
from manifests.files import write_atomically
from pipeline.errors import StoreDamaged
from pipeline.records import TEXT_KEY
from pipeline.store_folder import PARTS, REFERENCES, SPEC, lock, lock_to_read

VECTOR = "vector"

# Of vectors read at a time; while the next window is read, the one before is still in memory.
WINDOW_BYTES = 1 << 29

ReadVectors = Callable[[Sequence[str]], Vectors]


class Part(NamedTuple):
    """One decoded part: the texts' sha256 and their vectors, shape (len(keys), dimension)."""

    keys: list[str]
    vectors: Vectors


class EmbeddingStore:
    """The stored vectors of one embedding spec. Holds the store against `store prune` until closed."""

    def __init__(self, folder: Path, spec: EmbeddingSpec, *, create: bool = True) -> None:
        """Open the store at `folder` for `spec`; `create` False writes nothing, and an absent store is empty.

        Raises:
            StoreHeld: `store prune` is at work.
            MachineRefused: its file system has no locks.
            OSError: the folder cannot be made.
        """
        self.spec = spec
        self.folder = folder / spec.fingerprint
        self._known: dict[str, tuple[str, int]] = {}
        self._scanned: set[str] = set()
        if create:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / SPEC).exists():
                text = json.dumps(spec.model_dump(), indent=2, sort_keys=True, ensure_ascii=False)
                write_atomically(self.folder / SPEC, f"{text}\n".encode())
        held = lock(folder, exclusive=False) if create else lock_to_read(folder)
        self._release = None if held is None else weakref.finalize(self, os.close, held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let `store prune` run again."""
        if self._release:
            self._release()

    def __contains__(self, text_sha256: str) -> bool:
        """Whether a vector of the text is here, as far as this store has looked."""
        return text_sha256 in self._known

    def missing(self, text_sha256s: Iterable[str]) -> list[str]:
        """The distinct texts that have no vector here, in the order given.

        Raises:
            StoreDamaged: a part is not what its name says.
        """
        wanted = list(dict.fromkeys(text_sha256s))
        if any(key not in self._known for key in wanted):
            self._scan()
        return [key for key in wanted if key not in self._known]

    def learn(self, name: str) -> bool:
        """Learn the texts of the part of this name; False when it is not here.

        Raises:
            StoreDamaged: it is not what its name says.
        """
        if name in self._scanned:
            return True
        if not (self.folder / name).exists():
            return False
        for row, key in enumerate(read_part(self.folder / name, self.spec.dimension).keys):
            self._known.setdefault(key, (name, row))
        self._scanned.add(name)
        return True

    def append(
        self, text_sha256s: Sequence[str], vectors: Vectors, announce: Callable[[str], None] | None = None
    ) -> None:
        """Keep one vector a text, whole or not at all, durably; `announce` is told the name of the part before.

        The vectors have passed `check_vectors`, and do so again whenever they are read.

        Raises:
            OSError: the disk is full; nothing is kept.
        """
        name = write_part(self.folder, text_sha256s, vectors, announce)
        self._scanned.add(name)
        self._known.update((key, (name, row)) for row, key in enumerate(text_sha256s))

    def vectors(self, text_sha256s: Sequence[str]) -> Vectors:
        """Vectors of shape (len(text_sha256s), dimension), in the order given; each part is read once.

        Raises:
            InputRefused: a text has no vector here.
            StoreDamaged: a part is not what its name says.
        """
        if absent := self.missing(text_sha256s):
            raise InputRefused(
                f"{len(absent)} of {len(text_sha256s)} texts have no vector in {self.folder} (first: {absent[0]}); "
                "run `python -m pipeline embed` or `build` first"
            )
        found = np.empty((len(text_sha256s), self.spec.dimension), dtype=np.float32)
        by_part: dict[str, list[tuple[int, int]]] = {}
        for position, key in enumerate(text_sha256s):
            part, row = self._known[key]
            by_part.setdefault(part, []).append((position, row))
        for part, places in by_part.items():
            positions, rows = zip(*places, strict=True)
            found[list(positions)] = read_part(self.folder / part, self.spec.dimension).vectors[list(rows)]
        return found

    def reference(self, path: Path, digest: str, text_sha256s: Iterable[str]) -> None:
        """Keep these texts' vectors for as long as the file at `path` exists with this digest.

        A manifest's digest is its own; any other file's is the sha256 of its bytes.
        """
        keys = sorted(set(text_sha256s))
        where = str(path.resolve())
        frame = pl.DataFrame(
            {"path": [where] * len(keys), "digest": [digest] * len(keys), TEXT_KEY: keys},
            schema={"path": pl.String, "digest": pl.String, TEXT_KEY: pl.String},
        )
        name = hashlib.sha256(f"{where}\n{digest}".encode()).hexdigest()[:32]
        write_atomically(self.folder / REFERENCES / f"{name}.parquet", _parquet(frame))

    def _scan(self) -> None:
        """Learn the texts of the parts that came since the last look, other builds' parts too."""
        for path in sorted(self.folder.glob(PARTS)):
            self.learn(path.name)


def windowed(read: ReadVectors, text_sha256s: Sequence[str], dimension: int, rows: int) -> Iterator[Vectors]:
    """What `read` gives for the texts, `rows` at a time, read in as few calls as memory allows.

    The texts of any one call lie in nearly every part of a store, and each of its calls reads a part once.
    """
    window = max(1, WINDOW_BYTES // (4 * dimension * rows)) * rows
    for start in range(0, len(text_sha256s), window):
        vectors = read(text_sha256s[start : start + window])
        for first in range(0, len(vectors), rows):
            yield vectors[first : first + rows]


def write_part(
    folder: Path, text_sha256s: Sequence[str], vectors: Vectors, announce: Callable[[str], None] | None = None
) -> str:
    """Write one part into `folder` atomically; its name, which its content decides and `announce` is told before."""
    frame = pl.DataFrame(
        [
            pl.Series(TEXT_KEY, text_sha256s, dtype=pl.String),
            pl.Series(VECTOR, np.ascontiguousarray(vectors), dtype=pl.Array(pl.Float32, vectors.shape[1])),
        ]
    )
    content = _parquet(frame)
    name = _part_name(content)
    if announce:
        announce(name)
    if not (folder / name).exists():
        write_atomically(folder / name, content)
    return name


def read_part(path: Path, dimension: int) -> Part:
    """The part at `path`, compared with its name and checked as if it had just come from the provider.

    Raises:
        StoreDamaged: its bytes, columns or vectors are not what they must be.
    """
    try:
        content = path.read_bytes()
        if _part_name(content) != path.name:
            raise StoreDamaged(path, f"its bytes belong to {_part_name(content)}: changed or cut short on the disk")
        frame = pl.read_parquet(io.BytesIO(content))
        if dict(frame.schema) != {TEXT_KEY: pl.String, VECTOR: pl.Array(pl.Float32, dimension)}:
            raise StoreDamaged(path, f"columns {dict(frame.schema)}, expected texts and vectors of {dimension}")
        vectors = check_vectors(frame[VECTOR].to_numpy(), len(frame), dimension)
    except OSError as error:
        raise StoreDamaged(path, f"it cannot be read: {error.strerror}") from error
    except pl.exceptions.PolarsError as error:
        raise StoreDamaged(path, f"it is not Parquet: {error}") from error
    except VectorsUnusable as error:
        raise StoreDamaged(path, str(error)) from error
    return Part(frame[TEXT_KEY].to_list(), vectors)


def _part_name(content: bytes) -> str:
    return f"part-{hashlib.sha256(content).hexdigest()[:32]}.parquet"


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=1)
    return buffer.getvalue()
