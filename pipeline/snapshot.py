"""A snapshot: the immutable source copy every index starts from.

Reads    NAME/snapshot.json, then the sha256 of the papers file, then its lines
Writes   nothing; snapshot_write.py does
Holds    the papers file is byte for byte the one that snapshot.json pins before its first line is read
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, NamedTuple, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from manifests.errors import InputRefused
from manifests.files import file_sha256
from manifests.strict_json import unique_keys

CARD = "snapshot.json"
PapersFile = Literal["papers.jsonl", "papers.jsonl.gz"]
PLAIN: PapersFile = "papers.jsonl"
GZIP: PapersFile = "papers.jsonl.gz"

BLOCK_BYTES = 4 << 20
# The longest line a record within every field limit could need is about 1 MB; beyond this the file is not ours.
LINE_BYTES_MAX = 16 << 20
BOM = b"\xef\xbb\xbf"

# Also the stem of manifests/NAME.json and builds/NAME on every file system.
NAME_GRAMMAR = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?"


def _utc(text: str) -> str:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() != timedelta(0):
        raise ValueError("must be a UTC time such as 2026-07-10T00:00:00Z")
    return text


def _one_line(text: str) -> str:
    if any(character < " " or character == "\x7f" for character in text):
        raise ValueError("must hold no control characters")
    return text


Line = Annotated[str, Field(max_length=2_000), AfterValidator(_one_line)]
Sha256 = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]


class Provenance(BaseModel):
    """Where the papers come from; `retrieved_at` is UTC (ISO 8601)."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=rf"\A{NAME_GRAMMAR}\z")]
    title: Annotated[Line, Field(min_length=1)]
    source: Line
    url: Line
    retrieved_at: Annotated[str, AfterValidator(_utc)]
    licence: Line


class Card(Provenance):
    """The content of snapshot.json; `papers` counts the records of the one papers file."""

    papers: Annotated[int, Field(ge=0)]
    files: Annotated[dict[PapersFile, Sha256], Field(min_length=1, max_length=1)]


class Block(NamedTuple):
    """Whole lines in a row: `first` is the number of the first (from 1), `text` their bytes with line ends."""

    first: int
    text: bytes


@dataclass(frozen=True)
class Snapshot:
    """An opened snapshot: its papers file had the pinned sha256 when it was opened."""

    folder: Path
    card: Card

    @property
    def file(self) -> str:
        """Name of the papers file."""
        return next(iter(self.card.files))

    @property
    def sha256(self) -> str:
        """Sha256 of the papers file."""
        return next(iter(self.card.files.values()))

    @property
    def path(self) -> Path:
        """The papers file."""
        return self.folder / self.file

    def blocks(self, bytes_max: int = BLOCK_BYTES) -> Iterator[Block]:
        """The lines in order, in blocks of at least `bytes_max` bytes; a UTF-8 BOM is taken off the first.

        Raises:
            InputRefused: damaged or truncated gzip, or a line beyond `LINE_BYTES_MAX`.
        """
        first = 1
        with _opened(self.path) as file:
            for text in _texts(file, self.path, bytes_max):
                yield Block(first, text)
                first += text.count(b"\n")

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every line with its number (from 1), without its line end; blank lines too."""
        for block in self.blocks():
            yield from enumerate(split(block.text), block.first)


def split(text: bytes) -> list[bytes]:
    r"""The lines of a block without `\n` and without the `\r` before it."""
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def open_snapshot(folder: Path) -> Snapshot:
    """The snapshot in `folder`, its digest checked before any line is read.

    Raises:
        InputRefused: no such folder, snapshot.json not strictly right, or the papers file absent or not the pinned one.
    """
    snapshot = Snapshot(folder, read_card(folder))
    try:
        found = file_sha256(snapshot.path)
    except OSError as error:
        raise InputRefused(f"{snapshot.path}: {error.strerror}; {CARD} pins this file, restore it beside it") from error
    if found != snapshot.sha256:
        raise InputRefused(
            f"{snapshot.path} is not the file that {CARD} pins: sha256 expected {snapshot.sha256}, found {found}. "
            f"{_remedy(snapshot)}"
        )
    return snapshot


def read_card(folder: Path) -> Card:
    """What snapshot.json in `folder` says; the papers file is not looked at.

    Raises:
        InputRefused: no such folder, or snapshot.json not strictly right.
    """
    path = folder / CARD
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"), object_pairs_hook=unique_keys)
        return Card.model_validate(content)
    except OSError as error:
        raise InputRefused(
            f"{path}: {error.strerror}; expected a snapshot folder with {CARD} and {PLAIN} or {GZIP}"
        ) from error
    except ValidationError as error:
        faults = "".join(
            f"\n  - {'.'.join(map(str, fault['loc'])) or 'content'}: {fault['msg']}, found {fault['input']!r:.80}"
            for fault in error.errors()
        )
        raise InputRefused(f"{path} does not describe a snapshot; correct it or fetch again:{faults}") from error
    except (ValueError, RecursionError) as error:
        raise InputRefused(f"{path} is not one UTF-8 JSON object: {error}; restore it or fetch again") from error


def _remedy(snapshot: Snapshot) -> str:
    """What to do about a digest that differs; a translation of line ends is told apart from other changes."""
    if snapshot.file == PLAIN and snapshot.sha256 in _other_line_ends(snapshot.path):
        return (
            "Only the line ends differ (CRLF against LF): something such as git's core.autocrlf translated them. "
            "Restore the original bytes (mark the file `-text` in .gitattributes and check it out again); "
            f"do not write the new digest into {CARD}."
        )
    return f"Restore the original file, or fetch the snapshot again under a new name; {CARD} is never edited to fit."


def _other_line_ends(path: Path) -> set[str]:
    """Sha256 of the file with LF line ends and with CRLF line ends."""
    unix, windows = hashlib.sha256(), hashlib.sha256()
    with path.open("rb") as file:
        for line in file:
            bare = line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
            unix.update(bare + (b"\n" if line.endswith(b"\n") else b""))
            windows.update(bare + (b"\r\n" if line.endswith(b"\n") else b""))
    return {unix.hexdigest(), windows.hexdigest()}


def _opened(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _texts(file: BinaryIO, path: Path, bytes_max: int) -> Iterator[bytes]:
    """Whole lines in pieces of at least `bytes_max` bytes (the last may be shorter), without a BOM at the start."""
    try:
        text = file.read(bytes_max).removeprefix(BOM)
        while text:
            if not text.endswith(b"\n"):
                rest = file.readline(LINE_BYTES_MAX)
                if len(rest) == LINE_BYTES_MAX:
                    raise InputRefused(
                        f"{path}: found a line longer than {LINE_BYTES_MAX:,} bytes; "
                        "expected one JSON object a line, each line ended by a newline"
                    )
                text += rest
            yield text
            text = file.read(bytes_max)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputRefused(
            f"{path} is not a whole gzip file ({error}) although it is the pinned one: it was cut or damaged before "
            f"{CARD} was written; fetch the snapshot again"
        ) from error
