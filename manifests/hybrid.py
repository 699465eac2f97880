"""The one query of this product: a dense and a BM25 request to one collection, fused by reciprocal rank.

`serve`, `evaluate` and the gate all call these functions, so what is measured and checked is what is served.
"""

from __future__ import annotations

from typing import NamedTuple

from manifests.embedding.spec import Vectors
from manifests.milvus import Milvus

RRF_K = 60  # RRFRanker()'s default: a hit at rank r of one request adds 1 / (60 + r)
SCORE_MAX = 2 / (RRF_K + 1)  # first in both requests
SCORE_DIGITS = 6  # what single precision on the wire leaves certain: first in one request is 0.5, not 0.49999997


class Hit(NamedTuple):
    """A paper and its score in [0, 1], which orders one query and means nothing across queries."""

    paper_id: str
    score: float


def hybrid(
    milvus: Milvus, collection: str, vector: Vectors, text: str, *, where: str, depth: int, timeout_s: float
) -> list[Hit]:
    """The best `depth` papers of both rankings; equal scores in the order of the paper ids.

    Args:
        vector: of the query, shape (dimension,).
        text: the words of the query (texts.query_text); blank gives the dense ranking alone.
        where: Milvus boolean expression for both requests, "" for none.
        depth: the candidate window, also of each request.

    Raises:
        MilvusError: Milvus failed; never half an answer.
    """
    fused = milvus.hybrid(collection, vector, text, where=where, depth=depth, timeout_s=timeout_s)
    hits = [Hit(paper_id, min(1.0, round(score / SCORE_MAX, SCORE_DIGITS))) for paper_id, score in fused]
    return sorted(hits, key=lambda hit: (-hit.score, hit.paper_id))[:depth]


def lexical(milvus: Milvus, collection: str, text: str, *, where: str, depth: int, timeout_s: float) -> list[Hit]:
    """The BM25 ranking alone, for a query that could not be embedded: score 61 / (60 + rank)."""
    if not text:
        return []
    ranked = milvus.lexical(collection, text, where=where, depth=depth, timeout_s=timeout_s)
    return [Hit(paper_id, (RRF_K + 1) / (RRF_K + rank)) for rank, paper_id in enumerate(ranked, start=1)]
