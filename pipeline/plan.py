"""What the embed stage would do: texts, tokens, requests, minutes and bytes. Touches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from manifests.embedding.spec import Embedder
from manifests.texts import text_sha256
from pipeline.batches import batches
from pipeline.embedding_store import EmbeddingStore

_TEXTS_READ = 4_096


@dataclass(frozen=True)
class EmbedPlan:
    """What embedding would take.

    Attributes:
        texts: distinct texts that would be embedded.
        reused: papers whose vector is there already, or comes with another paper's equal text.
        tokens: as the embedder counts them.
        requests: batches that would be sent.
        minutes: least time under the quotas; None without quotas.
        bytes: of the new vectors in the store.
    """

    texts: int
    reused: int
    tokens: int
    requests: int
    minutes: float | None
    bytes: int


def plan(
    texts: Iterable[str],
    store: EmbeddingStore,
    embedder: Embedder,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    *,
    share: float = 1.0,
) -> EmbedPlan:
    """Count what `embed` would do for these embed texts, one a paper, with `store` opened by `create=False`.

    Of the quotas it may use `share`.

    Raises:
        StoreDamaged: a part of the store is not what was written.
    """
    papers, embedded, tokens, requests = 0, 0, 0, 0
    seen: set[str] = set()

    def fresh() -> Iterator[tuple[str, str]]:
        nonlocal papers
        source = iter(texts)
        while chunk := [(text_sha256(text), text) for text in islice(source, _TEXTS_READ)]:
            papers += len(chunk)
            missing = set(store.missing(key for key, _ in chunk)) - seen
            for key, text in chunk:
                if key in missing:
                    missing.discard(key)
                    seen.add(key)
                    yield key, text

    for batch in batches(fresh(), embedder):
        embedded += len(batch.keys)
        tokens += sum(batch.tokens)
        requests += 1
    limits = ((requests, requests_per_minute), (tokens, tokens_per_minute))
    minutes = max((used / (quota * share) for used, quota in limits if quota), default=None)
    return EmbedPlan(
        texts=embedded,
        reused=papers - embedded,
        tokens=tokens,
        requests=requests,
        minutes=None if minutes is None else round(minutes, 2),
        bytes=embedded * embedder.spec.dimension * 4,
    )
