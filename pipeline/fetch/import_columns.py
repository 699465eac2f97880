"""Which column of a foreign list is which field of a record, and how one cell becomes a value.

The names that papercopilot/paperlists and icml.cc use are known; `--map ours=theirs` settles all others. A rule per
case; whatever was decoded, split, derived or merged is counted.
"""

from __future__ import annotations

import ast
import html
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html.entities import html5
from typing import Any
from urllib.parse import parse_qs, urlsplit

from manifests.errors import InputRefused
from pipeline.fetch import icml_events
from pipeline.fetch.import_parts import TEXT_LIMIT_SHOWN, Parting, parting_of
from pipeline.fetch.import_rows import BadCell, Number, Row
from pipeline.records import RECORD_KEYS

# What a list may say beside the keys of a record: what became of it, the track, the kind and page of an icml.cc event.
BESIDE = ("decision", "status", "track", "event", "event_url")
KNOWN: dict[str, tuple[str, ...]] = {
    "id": ("id", "paper_id", "forum_id", "openreview_id", "forum"),
    "title": ("title", "name"),
    "abstract": ("abstract",),
    "authors": ("authors", "author", "speakers/authors", "speakers_authors"),
    "keywords": ("keywords",),
    "primary_area": ("primary_area", "area", "topic"),
    "paper_type": ("paper_type",),
    "spotlight": ("spotlight",),
    "oral": ("oral",),
    "forum_url": ("forum_url", "openreview_url", "openreview", "paper_url", "site"),
    "pdf_url": ("pdf_url", "paper_pdf_url", "pdf"),
    "decision": ("decision",),
    "status": ("status",),
    "track": ("track",),
    **icml_events.KNOWN,
}
LISTS = ("authors", "keywords")
FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}

# Only with its semicolon: `&copy` inside `a&copyright` is no entity of a list.
ENTITY = re.compile(r"&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")
DECODINGS_MAX = 3


@dataclass(frozen=True)
class Columns:
    """Where each field is found.

    `theirs`: our key -> their column, or a template such as `https://openreview.net/forum?id={id}`.
    `partings`: how the authors and keywords that stand in one text are parted. `decoded`: our keys whose texts hold
    HTML entities to decode; None means the authors that stand in one text, as icml.cc writes them, and nothing else.
    """

    theirs: Mapping[str, str]
    partings: Mapping[str, Parting]
    decoded: frozenset[str] | None
    unused: tuple[str, ...]

    def cell(self, row: Row, key: str) -> Any:
        """The raw cell of our key; None where the list or the row has none."""
        theirs = self.theirs.get(key)
        if theirs is None:
            return None
        if "{" not in theirs:
            return row.cells.get(theirs)
        values = {name: row.cells.get(name) for name in re.findall(r"\{([^{}]+)\}", theirs)}
        if any(value is None or value == "" for value in values.values()):
            return None
        return re.sub(r"\{([^{}]+)\}", lambda match: str(values[match[1]]), theirs)


def columns_of(
    rows: Sequence[Row],
    mapping: Mapping[str, str],
    separator: str | None,
    decoded: frozenset[str] | None,
) -> Columns:
    """The columns of a list: `mapping` first (an empty column leaves the field out), then the names known.

    Raises:
        InputRefused: a key that is no field, a column that no row has, or no column that is the title.
    """
    found = dict.fromkeys(name for row in rows for name in row.cells)
    for ours, column in mapping.items():
        _check_mapping(ours, column, found)
    if unknown := (decoded or frozenset()) - set(RECORD_KEYS):
        raise InputRefused(f"--entities {', '.join(sorted(unknown))}: expected fields out of {', '.join(RECORD_KEYS)}")
    theirs = {ours: column for ours, column in mapping.items() if column}
    for ours in (*RECORD_KEYS, *BESIDE):
        if ours not in mapping and (known := _known(ours, found)) and not _says_nothing(ours, known, mapping, rows):
            theirs[ours] = known
    if "title" not in theirs:
        raise InputRefused(f"no column is the title; found {', '.join(found)}. Say which one: --map title=COLUMN")
    used = {name for column in theirs.values() for name in (re.findall(r"\{([^{}]+)\}", column) or [column])}
    partings = {key: parting_of(_written(rows, theirs.get(key)), key, separator) for key in LISTS}
    return Columns(theirs, partings, decoded, tuple(name for name in found if name not in used))


def text(cell: Any, key: str, columns: Columns, cases: Counter[str]) -> str | None:
    """A text as it is written; None where it is absent or blank (a blank abstract is a text: nothing is mended).

    Raises:
        BadCell: another type.
    """
    if isinstance(cell, Number):
        cases[f"{key}_was_a_number"] += 1
        return str(cell)
    if cell is None or (isinstance(cell, str) and not cell.strip() and key not in {"abstract", *LISTS}):
        return None
    if not isinstance(cell, str):
        raise BadCell(f"{key} is {_shown(cell)}; expected a text")
    return _decoded(cell, key, columns.decoded or frozenset(), cases)


def texts(cell: Any, key: str, columns: Columns, cases: Counter[str]) -> list[str]:
    """A list of texts: a list, a list in JSON or Python notation, or one text with separators.

    Nothing between two separators and null in a list are left out and counted.

    Raises:
        BadCell: another type, or a text that nobody can part.
    """
    if isinstance(cell, str) and not isinstance(cell, Number):
        entries = _written_list(cell)
        if entries is None:
            entries = [part.strip() or None for part in columns.partings[key].parts(cell, cases)]
    elif cell is None:
        entries = []
    elif isinstance(cell, list):
        entries = cell
    else:
        raise BadCell(f"{key} is {_shown(cell)}; expected a list of texts")
    default = frozenset({"authors"} if isinstance(cell, str) else ())
    found = []
    for entry in entries:
        value = entry.get("fullname") or entry.get("name") if isinstance(entry, dict) else entry
        if (one := text(value, key, columns, cases)) is not None:
            found.append(_decoded(one, key, default if columns.decoded is None else columns.decoded, cases))
        elif cell:
            cases[f"{key}_blank_entry"] += 1
    return found


def flag(cell: Any, key: str) -> bool | None:
    """True or false, also as the words of a CSV; None where the cell is absent."""
    if cell is None or isinstance(cell, bool):
        return cell
    if isinstance(cell, str) and (known := FLAGS.get(cell.strip().lower())) is not None:
        return known
    raise BadCell(f"{key} is {_shown(cell)}; expected one of true, false, yes, no, 1, 0")


def id_in_url(url: str) -> str | None:
    """`X` of `https://openreview.net/forum?id=X`."""
    return next(iter(parse_qs(urlsplit(url).query).get("id", [])), None)


def _decoded(value: str, key: str, decoded: frozenset[str], cases: Counter[str]) -> str:
    """Entities decoded once; in names until nothing changes, since lists escape them twice and none holds its own."""
    if key not in decoded or not ENTITY.search(value):
        return value
    cases[f"{key}_entities_decoded"] += 1
    for _ in range(DECODINGS_MAX if key in LISTS else 1):
        value = _once(value)
    return value


def _once(value: str) -> str:
    return ENTITY.sub(lambda match: html.unescape(match[0]) if _known_entity(match[0]) else match[0], value)


def _check_mapping(ours: str, column: str, found: Mapping[str, None]) -> None:
    fields = (*RECORD_KEYS, *BESIDE)
    if ours not in fields:
        raise InputRefused(f"--map {ours}={column}: {ours} is no field; expected one of {', '.join(fields)}")
    missing = [name for name in (re.findall(r"\{([^{}]+)\}", column) or [column]) if name and name not in found]
    if missing:
        raise InputRefused(f"--map {ours}={column}: no row has {missing[0]!r}; found {', '.join(found)}")


def _known(ours: str, found: Mapping[str, None]) -> str | None:
    # "Decision" and "PDF URL" say what `decision` and `pdf_url` say; the name as it is known goes first.
    folded = {_folded(name): name for name in sorted(found, key=lambda name: name == _folded(name))}
    if icml_events.misleads(ours, folded):
        return None
    return next((folded[name] for name in KNOWN[ours] if name in folded), None)


def _folded(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _says_nothing(ours: str, column: str, mapping: Mapping[str, str], rows: Sequence[Row]) -> bool:
    """Whether this is a decision that another column is said to give, or one that no row fills (`null` at icml.cc)."""
    if ours not in {"decision", "status"}:
        return False
    if ours == "decision" and "status" in mapping:
        return True
    return all(not str(row.cells.get(column) or "").strip() for row in rows)


def _written(rows: Sequence[Row], column: str | None) -> list[str]:
    """The cells of a column that hold several texts in one."""
    cells = [row.cells.get(column) for row in rows] if column else []
    return [cell for cell in cells if isinstance(cell, str) and _written_list(cell) is None]


def _known_entity(entity: str) -> bool:
    # html.unescape also takes `&notit;` for `&not` and `it;`.
    return entity.startswith("&#") or entity[1:] in html5


def _written_list(cell: str) -> list[Any] | None:
    """`["A", "B"]` or `['A', 'B']`, also with its quotes escaped; None for any other text."""
    written = _once(_once(cell)).strip()
    if not (written.startswith("[") and written.endswith("]")):
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            entries = parse(written)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return entries if isinstance(entries, list) else None
    return None


def _shown(cell: Any) -> str:
    return f"{type(cell).__name__} {str(cell)[:TEXT_LIMIT_SHOWN]!r}"
