"""What makes two vectors comparable (provider, model, dimension, types, weights); the embedder interface."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from manifests.strict_json import canonical_json

if TYPE_CHECKING:
    from collections.abc import Sequence

Vectors = NDArray[np.float32]


class EmbeddingSpec(BaseModel):
    """Pinned by the manifest and part of every vector's key; two specs that differ never share a vector."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    provider: Literal["local", "dashscope"]
    model: str
    dimension: int
    document_text_type: str
    query_text_type: str
    # sha256 over local weights and tokenizer; null where the provider keeps the weights
    weights_sha256: str | None

    @property
    def fingerprint(self) -> str:
        """Sha256 of the spec as canonical JSON: the folder name of its vectors."""
        return hashlib.sha256(canonical_json(self.model_dump())).hexdigest()

    def __str__(self) -> str:
        return f"{self.provider}:{self.model}#dim={self.dimension}&type={self.document_text_type}"


class Embedder(Protocol):
    """One provider's model. Safe to call from `concurrency` threads at once.

    Its two `embed_` methods raise `ProviderBusy` when the same call may succeed later, `ProviderRefused` when it may
    not, `TextRefused` when one text of the batch is at fault (the embedder finds which, if need be by halving the
    batch), `QuotaExhausted` when the ledger leaves no room in time. They never retry; the caller does.
    Every vector they return is finite, not zero and of the spec's dimension, in the order of the texts.

    Attributes:
        spec: what is pinned.
        batch_texts_max: texts one `embed_documents` call may hold.
        batch_tokens_max: tokens, as `count_tokens` counts them, one call may hold in sum; a longer text goes
            alone.
        concurrency: calls worth having in flight at once; 2 where one call already uses every core.
    """

    spec: EmbeddingSpec
    batch_texts_max: int
    batch_tokens_max: int
    concurrency: int

    @property
    def tokens_spent(self) -> int:
        """Tokens spent by this embedder since it was opened: as reported by the provider, else as counted."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens each text costs, as near as can be told without the provider; touches no network."""
        ...

    def usage_note(self) -> str:
        """The quota in use right now, short enough for a progress line; empty where there is no quota."""
        ...

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Vectors of shape (len(texts), dimension), float32."""
        ...

    def embed_query(self, text: str, *, timeout_s: float, patient: bool = False) -> Vectors:
        """One vector of shape (dimension,), float32, within `timeout_s`; `patient` waits for room before that."""
        ...

    def stop(self) -> None:
        """Let calls that still wait for room give up at once (`QuotaExhausted`); sent calls finish."""
        ...
