"""How the authors or keywords that stand in one text are parted, cell by cell.

Rows of one list were often typed by many hands: some part at `;`, others at `,`, and a `,` may also stand in a name
("King, Jr.", "Roe, Ada"). A cell with `;` or `|` is parted there. What a `,` means, the names and the other cells of
the column tell; a cell of which they do not tell is refused by name, never parted by guess.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html.entities import html5

from pipeline.fetch.import_rows import BadCell

MARKS = (";", "|")
COMMA = ","
TEXT_LIMIT_SHOWN = 60
# At the end of a name after a comma, never a name.
SUFFIX = re.compile(r"(?:jr|sr|i{2,3}|iv|ph\.? ?d|m\.? ?d|m\.?sc|esq)\.?", re.IGNORECASE)
AND = re.compile(r"(?:^|\s)and\s+")
# Names without a blank in them: Chinese, Japanese, Korean.
IDEOGRAPHS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")

# `;` as the end of an entity, also of one escaped twice (`&amp;#x27;`), parts nothing.
ESCAPED = re.compile(r"&(?:amp;)*(?:#[0-9]+|#[xX][0-9a-fA-F]+|([A-Za-z][A-Za-z0-9]*));")


@dataclass(frozen=True)
class Parting:
    """What the cells of a column show: `given` is the separator that a person said, None where nobody did.

    `marked` cells hold `;` or `|`, `commas` only a comma; of `inverted` cells every part is "Last, First".
    """

    key: str
    given: str | None = None
    marked: int = 0
    commas: int = 0
    inverted: int = 0

    def parts(self, cell: str, cases: Counter[str]) -> list[str]:
        """The parts of one cell, blank ones too.

        Raises:
            BadCell: a `,` of which nothing tells whether it parts names or stands in one.
        """
        if self.given is not None:
            return parted(cell, self.given)
        mark = _mark(cell)
        if self.key != "authors":
            return self._keywords(cell, mark, cases)
        parts = self._names(cell, cases) if mark is None else parted(cell, mark)
        if any("\n" in part.strip() for part in parts):
            raise BadCell(f"authors {cell[:TEXT_LIMIT_SHOWN]!r}: a line ends within a name; correct it or its quotes")
        if mark is not None and not _inverted(parts) and any(map(_several, parts)):
            raise self._untold(cell)
        return parts

    def _keywords(self, cell: str, mark: str | None, cases: Counter[str]) -> list[str]:
        if mark is not None or COMMA not in cell:
            return parted(cell, mark or COMMA)
        if self.commas > self.marked:
            return parted(cell, COMMA)
        # One keyword may hold a comma of its own; where most cells are parted otherwise it is left to it.
        cases[f"{self.key}_kept_with_comma"] += 1
        return [cell]

    def _names(self, cell: str, cases: Counter[str]) -> list[str]:
        names = _names(cell)
        if len(names) == 1:
            return names
        full = sum(map(_full, names))
        if self.marked and self.inverted * 2 >= self.marked:
            if not _inverted([cell]):
                raise self._untold(cell)
            return [cell]
        if AND.search(cell) or self.marked:
            # One full name with a comma in it has at most as many halves as whole names.
            if full * 2 <= len(names):
                raise self._untold(cell)
            cases["authors_parted_otherwise"] += 1
        elif full * 2 < len(names):
            raise self._untold(cell)
        return names

    def _untold(self, cell: str) -> BadCell:
        return BadCell(
            f"authors {cell[:TEXT_LIMIT_SHOWN]!r}: nothing tells which commas part names and which stand in one; "
            "correct it, or say the separator of the whole list with --separator"
        )


def parting_of(cells: Sequence[str], key: str, given: str | None) -> Parting:
    """What the cells of a column (lists in JSON or Python notation are none) show about each other."""
    marks = [_mark(cell) for cell in cells]
    marked = [parted(cell, mark) for cell, mark in zip(cells, marks, strict=True) if mark]
    commas = sum(mark is None and COMMA in cell for cell, mark in zip(cells, marks, strict=True))
    return Parting(key, given, len(marked), commas, sum(map(_inverted, marked)))


def parted(cell: str, separator: str) -> list[str]:
    """The texts between the separators that are no part of an entity."""
    inside = _inside_entities(cell) if "&" in cell else set()
    parts, start = [], 0
    for match in re.finditer(re.escape(separator), cell):
        if match.start() not in inside:
            parts.append(cell[start : match.start()])
            start = match.end()
    return [*parts, cell[start:]]


def _mark(cell: str) -> str | None:
    return next((mark for mark in MARKS if mark in cell and len(parted(cell, mark)) > 1), None)


def _names(text: str) -> list[str]:
    """What stands between commas and `and`, a suffix with its name."""
    names: list[str] = []
    for piece in parted(text, COMMA):
        if names and SUFFIX.fullmatch(piece.strip()):
            names[-1] += COMMA + piece
        else:
            names += [name for name in AND.split(piece) if name.strip()] or [piece]
    return names


def _full(name: str) -> bool:
    """Whether a text is a whole name, or nothing at all: "Ada Roe", "周欣"; not "Ada"."""
    return len(name.split()) != 1 or bool(IDEOGRAPHS.search(name))


def _several(part: str) -> bool:
    """Whether a text that should be one name reads as several."""
    names = _names(part)
    return len(names) > 1 and all(map(_full, names))


def _inverted(parts: Sequence[str]) -> bool:
    """Whether every part has one comma: "Roe, Ada; Doe, Bo"."""
    return all(len(_names(part)) == 2 and not AND.search(part) for part in parts if part.strip())  # noqa: PLR2004


def _inside_entities(cell: str) -> set[int]:
    """Positions of the semicolons that belong to an entity."""
    inside: set[int] = set()
    for match in ESCAPED.finditer(cell):
        marks = [position for position in range(match.start(), match.end()) if cell[position] == ";"]
        inside.update(marks if match[1] is None or f"{match[1]};" in html5 else marks[:-1])
    return inside
