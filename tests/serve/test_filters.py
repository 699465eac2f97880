"""Filters: resolved against the catalogue, written as literals that no name can break out of."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.contract import Catalogue
from serve.errors import ErrorCode, ToolFailure
from serve.filters import build_filter, expression, folded, parents, resolve_area, resolve_paper_type

AREAS = {
    "Applications->Chemistry, Physics, and Earth Sciences": 3,
    "Applications->Health / Medicine": 2,
    "Applications Beyond->X": 1,
    "deep_learning->robustness": 1,
    "Deep Learning->Theory": 4,
    'a"b': 1,
    "O'Brien": 1,
    "a\\": 1,
    'x" or paper_id != "': 1,
    "Unspecified": 5,
}
CATALOGUE = Catalogue(areas=AREAS, paper_types={"regular": 9, "position": 1}, spotlight=2, oral=1, without_abstract=0)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("Applications", ["Applications->Chemistry, Physics, and Earth Sciences", "Applications->Health / Medicine"]),
        ("aPPLICATIONS", ["Applications->Chemistry, Physics, and Earth Sciences", "Applications->Health / Medicine"]),
        ("applications->health / medicine", ["Applications->Health / Medicine"]),
        (" Applications -> Health / Medicine ", ["Applications->Health / Medicine"]),
        ("deep learning", ["Deep Learning->Theory", "deep_learning->robustness"]),
        ("Deep_Learning->Robustness", ["deep_learning->robustness"]),
        ("unspecified", ["Unspecified"]),
        ('a"b', ['a"b']),
        ("o'brien", ["O'Brien"]),
        ("a\\", ["a\\"]),
        ('x" or paper_id != "', ['x" or paper_id != "']),
    ],
)
def test_an_area_is_found_exactly_or_as_a_parent_in_any_case(asked, found):
    assert resolve_area(AREAS, asked) == found


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("evil", ["\u202eevil"]),
        ("DeepLearning", ["Deep\u00adLearning"]),
        ("Deep\u00adLearning", ["Deep\u00adLearning"]),
        ("ZeroWidth", ["Zero\u200bWidth->X"]),
    ],
)
def test_an_area_is_found_by_the_name_that_is_shown(asked, found):
    areas = {"\u202eevil": 1, "Deep\u00adLearning": 1, "Zero\u200bWidth->X": 1}

    assert resolve_area(areas, asked) == found
    assert list(parents(areas)) == ["ZeroWidth"]
    with pytest.raises(ToolFailure) as refused:
        resolve_area(areas, "nothing like it")
    assert not set("\u202e\u00ad\u200b") & set(str(refused.value))


@pytest.mark.parametrize(
    "asked", ["", "  ", "_", "->", "Appl", "Health / Medicine", "Applications->", "null", '" or 1 == 1', "%"]
)
def test_an_unknown_area_is_refused_with_names_that_exist(asked):
    with pytest.raises(ToolFailure, match=r"Nearest: \"") as refused:
        resolve_area(AREAS, asked)

    assert refused.value.code is ErrorCode.UNKNOWN_AREA
    assert "list_paper_areas" in str(refused.value)


def test_the_nearest_area_is_named_first():
    with pytest.raises(ToolFailure, match=r'Nearest: "Applications->Health / Medicine"'):
        resolve_area(AREAS, "health / medicine")
    with pytest.raises(ToolFailure, match=r'Nearest: "Applications"'):
        resolve_area(AREAS, "Aplications")


@pytest.mark.parametrize("asked", ["area of " * 8_000, "\ufdfa" * 500, "a" + "\u0315\u0316" * 16_000])
def test_an_area_as_long_as_a_request_may_be_is_refused_at_once(asked):
    areas = {f"Area {number % 8} of things->Area number {number} / other": 1 for number in range(60)}
    started = time.monotonic()

    with pytest.raises(ToolFailure, match="Nearest"):
        resolve_area(areas, asked)

    assert time.monotonic() - started < 0.5


def test_a_paper_type_is_found_in_any_case_and_else_refused_with_the_types():
    assert resolve_paper_type(CATALOGUE.paper_types, " Position") == ["position"]
    with pytest.raises(ToolFailure, match="regular") as refused:
        resolve_paper_type(CATALOGUE.paper_types, "poster")
    assert refused.value.code is ErrorCode.UNKNOWN_PAPER_TYPE


def test_all_filters_are_one_conjunction():
    built = build_filter(CATALOGUE, area="Applications", paper_type="REGULAR", spotlight_only=True)

    assert built.where == (
        'area in ["Applications->Chemistry, Physics, and Earth Sciences", "Applications->Health / Medicine"]'
        ' and paper_type in ["regular"] and spotlight == true'
    )
    assert built.words == ['area "Applications" (2 areas)', 'paper_type "regular"', "spotlight only"]
    assert build_filter(CATALOGUE, area=None, paper_type=None, spotlight_only=False) == ("", [])


def test_two_spellings_of_one_area_are_one_name():
    catalogue = CATALOGUE.model_copy(update={"areas": {"Deep Learning->X": 1, "deep_learning->x": 2}})

    assert build_filter(catalogue, area="deep learning->X", paper_type=None, spotlight_only=False) == (
        'area in ["Deep Learning->X", "deep_learning->x"]',
        ['area "Deep Learning->X"'],
    )


def test_a_field_of_several_texts_needs_no_new_code():
    assert expression({"keywords": ["ü", 'a"b']}) == 'array_contains_any(keywords, ["ü", "a\\"b"])'


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_stored_name_survives_as_one_literal(name):
    where = expression({"area": [name]})

    assert json.loads(where.removeprefix("area in ")) == [name]
    assert "\\u" not in where or any(ord(char) < 32 or ord(char) == 127 for char in name) or "\\u" in name


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_folding_twice_changes_nothing(name):
    assert folded(folded(name)) == folded(name)


def test_parents_are_counted():
    assert parents(AREAS)["Applications"] == 5
    assert "Unspecified" not in parents(AREAS)
