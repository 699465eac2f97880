"""The rows of a list file as they are written there: JSONL, JSON, CSV, TSV or Parquet; no type is inferred.

A number stays the digits it was written with (`1e10`, `007`), so that an id that looks like a number is not changed.
A row that cannot be read is a `BadRow` in its place and the rows after it are still read, or the file is refused.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from manifests.errors import InputRefused
from manifests.strict_json import unique_keys

Format = Literal["jsonl", "json", "csv", "tsv", "parquet"]
SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
CELL_CHARS_MAX = 16 << 20


class BadCell(ValueError):
    """A cell that cannot become the value of its field; `reason` is what its row is counted under."""

    reason = "bad_row"


class Number(str):
    """A number of the file, as the text it was written with."""

    __slots__ = ()


@dataclass(frozen=True)
class Row:
    """One row: `where` names it for people ("line 7"), `cells` by column."""

    where: str
    cells: dict[str, Any]


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used and why."""

    where: str
    reason: str


def read_rows(path: Path, form: Format | None = None) -> list[Row | BadRow]:
    """Every row of the file in order. `form` overrides what the suffix (before `.gz`) says.

    Raises:
        InputRefused: no such file, an unknown suffix, not UTF-8, a damaged file, or a shape that is no list of papers.
    """
    form = form or _format(path)
    try:
        if form == "parquet":
            return list(_parquet(path))
        text = _text(path)
    except OSError as error:
        raise InputRefused(f"{path}: {error.strerror or error}; expected a list of papers") from error
    if form == "jsonl":
        return list(_jsonl(text))
    if form == "json":
        return list(_json(text, path))
    return list(_csv(text, path, "," if form == "csv" else "\t"))


def _format(path: Path) -> Format:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix.lower() not in SUFFIXES:
        raise InputRefused(f"{path}: suffix {suffix!r}; expected one of {', '.join(SUFFIXES)}, or give --format")
    return SUFFIXES[suffix.lower()]


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputRefused(f"{path} is not UTF-8 (byte {error.start}); convert it to UTF-8 first") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputRefused(f"{path} is not a whole gzip file ({error}); get it again") from error


def _jsonl(text: str) -> Iterator[Row | BadRow]:
    # Not splitlines(): U+2028 may stand inside a string.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"line {number}"
            try:
                yield _row(where, _parsed(line))
            except (ValueError, RecursionError) as error:
                yield BadRow(where, f"not a JSON object: {error}")


def _json(text: str, path: Path) -> Iterator[Row | BadRow]:
    try:
        content = _parsed(text)
    except (ValueError, RecursionError) as error:
        raise InputRefused(f"{path} is not whole JSON: {error}; get it again") from error
    # Many downloads wrap the list: {"count": ..., "results": [...]}.
    lists = [value for value in content.values() if isinstance(value, list)] if isinstance(content, dict) else [content]
    if len(lists) != 1 or not isinstance(lists[0], list):
        raise InputRefused(f"{path}: expected a list of objects, or one object with exactly one list in it")
    for number, entry in enumerate(lists[0], 1):
        where = f"entry {number}"
        try:
            yield _row(where, entry)
        except ValueError as error:
            yield BadRow(where, f"not a JSON object: {error}")


def _parsed(text: str) -> Any:
    return json.loads(
        text, parse_int=Number, parse_float=Number, parse_constant=_no_number, object_pairs_hook=unique_keys
    )


def _row(where: str, entry: Any) -> Row:
    if not isinstance(entry, dict):
        raise ValueError(f"found {str(entry)[:60]!r}")  # noqa: TRY004 -- the callers turn it into a BadRow
    return Row(where, entry)


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _csv(text: str, path: Path, delimiter: str) -> Iterator[Row | BadRow]:
    csv.field_size_limit(CELL_CHARS_MAX)
    # newline="": the csv module itself tells a line end between rows from one inside a quoted cell.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    first = 1
    try:
        header = [name.strip() for name in next(reader, [])]
        if not header or "" in header or len(set(header)) != len(header):
            raise InputRefused(f"{path}, line 1: columns {header}; expected a header of different names")
        first = reader.line_num + 1
        for cells in reader:
            where, lines, first = f"line {first}", reader.line_num - first + 1, reader.line_num + 1
            if cells and len(cells) != len(header):
                fault = f"{len(cells)} cells; the header has {len(header)} columns"
                if lines > 1:
                    raise _broken(path, where, f"{lines} lines hold {fault}")
                yield BadRow(where, fault)
            elif cells:
                yield Row(where, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise _broken(path, f"line {first}", f"not CSV ({error})") from error


def _broken(path: Path, where: str, fault: str) -> InputRefused:
    """What follows a broken quote cannot be told apart any more, so no row can be left out alone."""
    return InputRefused(
        f"{path}, {where}: {fault}, so a quote is missing or too many and the rows from there on cannot be told apart. "
        "Correct it, or get the file again"
    )


def _parquet(path: Path) -> Iterator[Row]:
    import polars as pl

    try:
        frame = pl.read_parquet(path.read_bytes())
    except pl.exceptions.PolarsError as error:
        raise InputRefused(f"{path} is not a Parquet file: {' '.join(str(error).split())[:200]}") from error
    # Whole numbers have one way of writing; a float (1e10) has not, and is refused cell by cell.
    whole = [name for name, kind in frame.schema.items() if kind.is_integer()]
    for number, cells in enumerate(frame.iter_rows(named=True), 1):
        cells.update({name: Number(cells[name]) for name in whole if cells[name] is not None})
        yield Row(f"row {number}", cells)
