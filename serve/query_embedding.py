"""From a query to its vector, or to the reason why the answer is by words alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from anyio.to_thread import run_sync

from manifests.embedding.spec import Embedder, EmbeddingSpec, Vectors
from manifests.errors import ProviderBusy, ProviderRefused, QuotaExhausted, TextRefused
from manifests.texts import collapsed


class QueryEmbedder:
    """Embeds queries within one short deadline."""

    def __init__(self, embedder: Embedder, timeout_s: float) -> None:
        self._embedder = embedder
        self._timeout_s = timeout_s

    @property
    def spec(self) -> EmbeddingSpec:
        """What the vectors are made with."""
        return self._embedder.spec

    async def embed(self, query: str) -> Vectors | str:
        """A vector of shape (dimension,), or one of DESIGN.md's reasons."""
        call = partial(self._embedder.embed_query, collapsed(query), timeout_s=self._timeout_s)
        try:
            return await run_sync(call, abandon_on_cancel=True)
        except (ProviderBusy, ProviderRefused, TextRefused, QuotaExhausted) as error:
            return error.reason

    def state(self) -> Mapping[str, Any]:
        """The state of the provider for `/readyz`."""
        return {"provider": self.spec.provider, "state": "ok"}

    def close(self) -> None:
        """Let waiting calls give up."""
        self._embedder.stop()
