"""The one query against the real engine: BM25 finds what people type, filters hold on both requests, order is total."""

from __future__ import annotations

import numpy as np
import pytest

from manifests.embedding.local import LocalEmbedder
from manifests.embedding.spec import Vectors
from manifests.errors import MilvusError
from manifests.gate import Index
from manifests.texts import normalise

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def vector(sample_index: Index) -> Vectors:
    """A query's vector."""
    return LocalEmbedder(sample_index.manifest.embedding).embed_query("graph neural networks", timeout_s=TIMEOUT_S)


@pytest.mark.parametrize(
    ("query", "paper_id"),
    [
        ("Renyi", "IGs2lZoGLG"),
        ("Rényi", "IGs2lZoGLG"),
        ("lesion classification", "INiZwslZm5"),
        ("lesion classiﬁcation", "INiZwslZm5"),
        ("tau2-bench", "-BSkZX8dAk"),
        ("τ²-Bench", "-BSkZX8dAk"),
        ("tau^2-bench", "-BSkZX8dAk"),
        ("A2DEPT", "iE1fYhgfgQ"),
        ("$A_2$DEPT", "iE1fYhgfgQ"),
        ("non-invasive glucose", "0OXzIuH5uI"),
        ("non\u2011invasive glucose", "0OXzIuH5uI"),
        ("flash attention", "vw6CBdoRth"),
        ("flash_attention_2", "vw6CBdoRth"),
        ("董方", "iE1fYhgfgQ"),
    ],
)
def test_bm25_alone_finds_the_paper_as_people_type_it(sample_index: Index, query: str, paper_id: str) -> None:
    hits = sample_index.lexical(normalise(query), where="", depth=10, timeout_s=TIMEOUT_S)

    assert paper_id in [hit.paper_id for hit in hits]


@pytest.mark.parametrize("query", ["", "   ", "?!", "\u200b"])
def test_a_query_without_words_leaves_the_dense_ranking_alone(sample_index: Index, vector: Vectors, query: str) -> None:
    hits = sample_index.hybrid(vector, normalise(query), where="", depth=10, timeout_s=TIMEOUT_S)

    assert [hit.paper_id for hit in hits] == sample_index.dense(vector, where="", depth=10, timeout_s=TIMEOUT_S)
    assert hits[0].score == 0.5
    assert sample_index.lexical(normalise(query), where="", depth=10, timeout_s=TIMEOUT_S) == []


def test_scores_lie_between_zero_and_one_and_order_is_total(sample_index: Index, vector: Vectors) -> None:
    hits = sample_index.hybrid(vector, normalise("graph neural networks"), where="", depth=100, timeout_s=TIMEOUT_S)

    assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.paper_id))
    assert all(0 < hit.score <= 1 for hit in hits)
    assert len({hit.paper_id for hit in hits}) == len(hits) == 100
    assert len({hit.score for hit in hits}) > 50


def test_the_same_query_gives_the_same_list_and_a_window_is_a_window(sample_index: Index, vector: Vectors) -> None:
    text = normalise("graph neural networks")
    once = sample_index.hybrid(vector, text, where="", depth=100, timeout_s=TIMEOUT_S)

    assert all(sample_index.hybrid(vector, text, where="", depth=100, timeout_s=TIMEOUT_S) == once for _ in range(10))
    assert len(sample_index.hybrid(vector, text, where="", depth=7, timeout_s=TIMEOUT_S)) == 7


def test_a_filter_holds_for_what_only_one_request_found(sample_index: Index, vector: Vectors) -> None:
    papers = sample_index.papers
    where = "spotlight == true"
    text = normalise("graph neural networks")

    hits = sample_index.hybrid(vector, text, where=where, depth=100, timeout_s=TIMEOUT_S)

    assert {hit.paper_id for hit in hits} == {key for key, paper in papers.items() if paper["spotlight"]}
    assert all(
        papers[hit.paper_id]["spotlight"]
        for hit in sample_index.lexical(text, where=where, depth=100, timeout_s=TIMEOUT_S)
    )


def test_the_lexical_score_falls_with_the_rank(sample_index: Index) -> None:
    hits = sample_index.lexical(normalise("learning"), where="", depth=5, timeout_s=TIMEOUT_S)

    assert [hit.score for hit in hits] == [61 / (60 + rank) for rank in range(1, 6)]


def test_a_broken_filter_is_one_milvus_error(sample_index: Index, vector: Vectors) -> None:
    with pytest.raises(MilvusError, match="Milvus at"):
        sample_index.hybrid(vector, "graph", where="no_such_field ==", depth=10, timeout_s=TIMEOUT_S)


def test_a_vector_of_another_dimension_is_one_milvus_error(sample_index: Index) -> None:
    with pytest.raises(MilvusError):
        sample_index.hybrid(np.ones(7, dtype=np.float32), "graph", where="", depth=10, timeout_s=TIMEOUT_S)
