"""From what a caller asks for to a Milvus expression over stored values.

Every value is first resolved against the manifest's catalogue, so that only stored values reach Milvus, as JSON
literals. Which fields can be filtered, and of what kind they are, is the collection spec's to say.
"""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections.abc import Mapping
from typing import Any, NamedTuple

from manifests.collection import AREA_SEPARATOR, FIELD
from manifests.contract import Catalogue
from manifests.visible import visible
from serve.errors import ErrorCode, ToolFailure

NEAREST_MAX = 5
NEAREST_CUTOFF = 0.5

Literal = str | bool


class Filter(NamedTuple):
    """`where` for Milvus ("" for none), and what is in force in words for the caller."""

    where: str
    words: list[str]


def build_filter(catalogue: Catalogue, *, area: str | None, paper_type: str | None, spotlight_only: bool) -> Filter:
    """The filter a search asks for.

    Raises:
        ToolFailure: `unknown_area` or `unknown_paper_type`, with the nearest names.
    """
    wanted: dict[str, list[Literal]] = {}
    words = []
    if area is not None:
        areas = resolve_area(catalogue.areas, area)
        wanted["area"] = list(areas)
        words.append(_area_words(areas))
    if paper_type is not None:
        types = resolve_paper_type(catalogue.paper_types, paper_type)
        wanted["paper_type"] = list(types)
        words.append(f'paper_type "{types[0]}"')
    if spotlight_only:
        wanted["spotlight"] = [True]
        words.append("spotlight only")
    return Filter(expression(wanted), words)


def expression(wanted: Mapping[str, list[Any]]) -> str:
    """A Milvus boolean expression: every field of `wanted` holds one of its values."""
    return " and ".join(_clause(name, values) for name, values in wanted.items())


def resolve_area(areas: Mapping[str, int], asked: str) -> list[str]:
    """The stored areas that `asked` names: exactly, or as a parent; any case, `_` as a space.

    Raises:
        ToolFailure: `unknown_area`.
    """
    key = _key("area", asked)
    found = [area for area in areas if folded(area) == key or folded(area).startswith(key + AREA_SEPARATOR)]
    if not key or not found:
        raise _unknown(ErrorCode.UNKNOWN_AREA, "area", [*areas, *parents(areas)], key)
    return sorted(found)


def resolve_paper_type(paper_types: Mapping[str, int], asked: str) -> list[str]:
    """The stored paper types that `asked` names, any case.

    Raises:
        ToolFailure: `unknown_paper_type`.
    """
    key = _key("paper_type", asked)
    found = [name for name in paper_types if folded(name) == key]
    if not key or not found:
        raise _unknown(ErrorCode.UNKNOWN_PAPER_TYPE, "paper_type", list(paper_types), key)
    return sorted(found)


def parents(areas: Mapping[str, int]) -> dict[str, int]:
    """Every parent, as it is shown, with the number of papers in all areas below it, by name."""
    totals: dict[str, int] = {}
    for area, papers in areas.items():
        parent, separator, _ = visible(area).partition(AREA_SEPARATOR)
        if separator:
            totals[parent] = totals.get(parent, 0) + papers
    return dict(sorted(totals.items()))


def folded(text: str) -> str:
    """A name as it is compared: as it is shown, whatever its compatibility forms, case, `_` and white space."""
    spaced = unicodedata.normalize("NFKC", visible(text)).casefold().replace("_", " ")
    return AREA_SEPARATOR.join(" ".join(part.split()) for part in spaced.split(AREA_SEPARATOR))


def _key(field: str, asked: str) -> str:
    """`asked`, folded; "", which is no name, where it is longer than any stored one. Callers know no bound."""
    return folded(asked) if len(asked) <= FIELD[field].bytes_max else ""


def _clause(name: str, values: list[Any]) -> str:
    # Milvus reads JSON literals, but no escape such as \u00e9.
    literals = json.dumps(values, ensure_ascii=False)
    match FIELD[name].kind:
        case "text":
            return f"{name} in {literals}"
        case "texts":
            return f"array_contains_any({name}, {literals})"
        case "flag":
            return f"{name} == {json.dumps(values[0])}"


def _area_words(areas: list[str]) -> str:
    # Two spellings of one name, as a source may hold, are still that one name.
    if len({folded(area) for area in areas}) == 1:
        return f'area "{areas[0]}"'
    return f'area "{areas[0].partition(AREA_SEPARATOR)[0]}" ({len(areas)} areas)'


def _unknown(code: ErrorCode, argument: str, names: list[str], key: str) -> ToolFailure:
    near = nearest(names, key) if len(names) > NEAREST_MAX else sorted(names)
    near = near or sorted(names)[:NEAREST_MAX]
    listed = ", ".join(json.dumps(visible(name), ensure_ascii=False) for name in near)
    return ToolFailure(
        code, f"No {argument} of this index matches. Nearest: {listed}. list_paper_areas shows every value."
    )


def nearest(names: list[str], key: str) -> list[str]:
    """At most `NEAREST_MAX` of `names`: those that hold the folded `key`, then those spelt like it or a part of it."""
    compared = {name: folded(name) for name in names}
    holding = [name for name, other in compared.items() if key and key in other]
    likeness = {
        name: max(_likeness(key, part) for part in (other, *other.split(AREA_SEPARATOR)))
        for name, other in compared.items()
    }
    like = [name for name in sorted(names, key=lambda name: (-likeness[name], name)) if likeness[name] > NEAREST_CUTOFF]
    return list(dict.fromkeys([*sorted(holding, key=len), *like]))[:NEAREST_MAX]


def _likeness(key: str, name: str) -> float:
    """0 to 1; 0 where their lengths alone leave it under the cutoff, since comparing takes the product of both."""
    matcher = difflib.SequenceMatcher(None, key, name)
    return matcher.ratio() if matcher.real_quick_ratio() > NEAREST_CUTOFF else 0.0
