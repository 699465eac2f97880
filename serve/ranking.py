"""A query becomes the window of papers that a search may show: both rankings fused, or words alone and why.

embed the query -> one question to Milvus in a worker thread, within the deadline of the call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from manifests.contract import Manifest
from manifests.embedding.spec import Vectors
from manifests.errors import MilvusError
from manifests.hybrid import Hit
from manifests.texts import query_text
from serve.errors import ErrorCode, ToolFailure
from serve.observe import Metrics, part
from serve.workers import Workers

log = logging.getLogger(__name__)

# Milvus is told to stop this long before the caller is, so that the caller hears the engine's own failure.
MARGIN_S = 0.5
PROBE_TEXT = "learning"
PROBE_TIMEOUT_S = 5.0


class VerifiedIndex(Protocol):
    """What the gate's value offers a search; only manifests.gate.open_index makes the real one."""

    manifest: Manifest
    papers: Mapping[str, Mapping[str, Any]]

    def hybrid(self, vector: Vectors, text: str, *, where: str, depth: int, timeout_s: float) -> list[Hit]:
        """Both rankings fused, at most `depth` hits."""
        ...

    def lexical(self, text: str, *, where: str, depth: int, timeout_s: float) -> list[Hit]:
        """The BM25 ranking alone."""
        ...

    def running(self) -> bool:
        """False once an embedded engine is gone for good."""
        ...


class QueryEmbedding(Protocol):
    """Turns a query into a vector, or says in one of DESIGN.md's words why it cannot."""

    async def embed(self, query: str) -> Vectors | str:
        """A vector of shape (dimension,), or the reason for an answer by words alone."""
        ...


class Window(NamedTuple):
    """The candidates of a query, best first; with the reason when they are ranked by words alone."""

    hits: list[Hit]
    lexical_because: str | None


class Ranking:
    """Asks a verified index, once for each query.

    Args:
        strict_hybrid: refuse a query that cannot be embedded, rather than rank it by words alone.
        index_lost: called when a search finds that an embedded engine has ended by itself.
    """

    def __init__(
        self,
        index: VerifiedIndex,
        embedding: QueryEmbedding,
        workers: Workers,
        metrics: Metrics,
        *,
        strict_hybrid: bool,
        index_lost: Callable[[], None],
    ) -> None:
        self._index = index
        self._embedding = embedding
        self._workers = workers
        self._metrics = metrics
        self._strict_hybrid = strict_hybrid
        self._index_lost = index_lost
        self._failed = False

    async def window(self, query: str, where: str, depth: int, deadline: float) -> Window:
        """At most `depth` candidates under the filter `where`; `deadline` is a time of `time.monotonic`.

        Raises:
            ToolFailure: `embedding_unavailable` when strict, `index_unavailable`, `overloaded`.
        """
        with part("embed"):
            vector = await self._embedding.embed(query)
        words = query_text(query)
        if isinstance(vector, str):
            if self._strict_hybrid:
                raise ToolFailure(
                    ErrorCode.EMBEDDING_UNAVAILABLE,
                    f"The query could not be embedded ({vector}). {ErrorCode.EMBEDDING_UNAVAILABLE.advice}",
                )
            hits = await self._ask(partial(self._index.lexical, words, where=where, depth=depth), deadline)
            self._metrics.lexical.labels(vector).inc()
            return Window(hits, vector)
        hits = await self._ask(partial(self._index.hybrid, vector, words, where=where, depth=depth), deadline)
        return Window(hits, None)

    async def probe(self) -> bool:
        """Whether the index answers now; asks it only when the last search failed. An ended engine is reported."""
        if not self._index.running():
            self._index_lost()
            return False
        if self._failed:
            call = partial(self._index.lexical, PROBE_TEXT, where="", depth=1, timeout_s=PROBE_TIMEOUT_S)
            try:
                await self._workers.run(call)
            except (MilvusError, ToolFailure):
                return False
            self._failed = False
        return True

    async def _ask(self, ask: Callable[..., list[Hit]], deadline: float) -> list[Hit]:
        """One question to Milvus in a worker thread, told the seconds it has left when its turn comes."""

        def asked() -> list[Hit]:
            left = deadline - MARGIN_S - time.monotonic()
            if left <= 0:
                raise ToolFailure(
                    ErrorCode.OVERLOADED, f"The turn of this search did not come in time. {ErrorCode.OVERLOADED.advice}"
                )
            return ask(timeout_s=left)

        try:
            with part("milvus"):
                hits = await self._workers.run(asked)
        except MilvusError as error:
            self._failed = True
            log.warning("index failed: %s", error)
            if not self._index.running():
                self._index_lost()
            raise ToolFailure(
                ErrorCode.INDEX_UNAVAILABLE,
                f"{ErrorCode.INDEX_UNAVAILABLE.meaning} {ErrorCode.INDEX_UNAVAILABLE.advice}",
            ) from error
        self._failed = False
        return hits
