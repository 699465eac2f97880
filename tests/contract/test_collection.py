"""Digests over papers, and the collection name that follows from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.collection import RECORD_FIELDS, collection_facts, content_sha256, ids_sha256, paper_digest
from manifests.contract import TextVersions
from tests.contract.test_manifest import SPEC, TEXTS

PAPER: dict[str, Any] = {
    field.name: {"text": field.name, "texts": ["a", "b"], "flag": False}[field.kind] for field in RECORD_FIELDS
}


@pytest.mark.parametrize("field", RECORD_FIELDS, ids=lambda field: field.name)
def test_a_change_in_any_field_changes_the_digest(field: Any) -> None:
    other = {"text": "x", "texts": ["a"], "flag": True}[field.kind]

    assert paper_digest(PAPER | {field.name: other}) != paper_digest(PAPER)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"authors": ["a"], "keywords": []}, {"authors": [], "keywords": ["a"]}),
        ({"authors": ["a", "b"]}, {"authors": ["ab"]}),
        ({"authors": [""]}, {"authors": []}),
        ({"title": "a", "abstract": ""}, {"title": "", "abstract": "a"}),
    ],
)
def test_text_that_moves_between_fields_changes_the_digest(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert paper_digest(PAPER | one) != paper_digest(PAPER | other)


@given(st.lists(st.text(min_size=1), unique=True, min_size=2), st.randoms())
def test_the_order_of_the_papers_does_not_matter(ids: list[str], random: Any) -> None:
    shuffled = random.sample(ids, len(ids))
    digests = {paper_id: paper_digest(PAPER | {"paper_id": paper_id}) for paper_id in ids}

    assert ids_sha256(shuffled) == ids_sha256(ids)
    assert content_sha256((key, digests[key]) for key in shuffled) == content_sha256(digests.items())


def test_the_collection_name_changes_with_content_texts_and_spec() -> None:
    names = {
        collection_facts("c", TEXTS, SPEC).name,
        collection_facts("d", TEXTS, SPEC).name,
        collection_facts("c", TextVersions(search=2, embed=1), SPEC).name,
        collection_facts("c", TEXTS, SPEC.model_copy(update={"model": "another of 4 dimensions"})).name,
    }

    assert len(names) == 4
    assert all(name.startswith("papers_") and len(name) == len("papers_") + 12 for name in names)
