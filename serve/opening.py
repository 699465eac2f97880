"""Open everything a server needs, in the order in which a refusal is cheapest: state, manifest, embedder, index."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from manifests.contract import Manifest, read_manifest
from manifests.embedding.spec import Embedder, EmbeddingSpec
from manifests.gate import open_index
from manifests.ledger import Ledger, Limits
from serve.errors import UsageRefused
from serve.limits import RateLimit, steady_clock
from serve.observe import Metrics
from serve.query_embedding import QueryEmbedder
from serve.ranking import Ranking
from serve.search import PaperSearch
from serve.session import SessionLimits, Sessions
from serve.settings import Settings
from serve.state import State, open_state
from serve.tools import Desk
from serve.workers import Workers

WARM_UP_TEXT = "paper search"
WARM_UP_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Opened:
    """A service that may answer: its index passed the gate."""

    manifest: Manifest
    ranking: Ranking
    service: PaperSearch
    embedding: QueryEmbedder
    desk: Desk
    metrics: Metrics


@contextmanager
def opened(
    settings: Settings, secrets: Mapping[str, str], index_lost: Callable[[], None] = lambda: None
) -> Iterator[Opened]:
    """The service of `settings`; everything it holds is released at the end.

    `index_lost` is called when a search finds that an embedded engine has ended by itself.

    Raises:
        UsageRefused: a secret or limit the manifest's model needs is missing.
        StateRefused: the state database is not ours.
        IndexRefused: manifest, files or collection differ, each difference named.
        MilvusError: Milvus did not come up within `milvus_wait`.
    """
    with ExitStack() as stack:
        state = stack.enter_context(closing(open_state(settings.state, key=secrets.get("SERVE_HASH_KEY"))))
        manifest = read_manifest(settings.manifest)
        metrics = Metrics()
        embedding = stack.enter_context(closing(_query_embedder(manifest.embedding, settings, secrets, state, metrics)))
        index = stack.enter_context(
            closing(
                open_index(
                    manifest,
                    settings.milvus_uri,
                    query_spec=embedding.spec,
                    token=secrets.get("MILVUS_TOKEN"),
                    engines=settings.engines,
                    wait_s=settings.milvus_wait,
                )
            )
        )
        workers = stack.enter_context(closing(Workers(settings.concurrency, settings.queue)))
        sessions = Sessions(state, _session_limits(settings), time.time, manifest.digest)
        sessions.bury()
        metrics.gauge("serve_sessions_open", "Open search sessions.", sessions.live)
        metrics.gauge(
            "serve_provider_circuit_closed",
            "1 while the embedding provider is asked, 0 while it is left alone after failures.",
            lambda: embedding.circuit == "closed",
        )
        metrics.gauge("serve_searches_admitted", "Searches running or waiting.", lambda: workers.admitted)
        ranking = Ranking(
            index, embedding, workers, metrics, strict_hybrid=settings.strict_hybrid, index_lost=index_lost
        )
        service = PaperSearch(index, ranking, sessions, output_chars=settings.output_chars, now=time.time)
        rate_limit = RateLimit(state, settings.rate_limit, steady_clock()) if settings.rate_limit else None
        desk = Desk(service, metrics, rate_limit, settings.call_deadline)
        yield Opened(manifest, ranking, service, embedding, desk, metrics)


def _session_limits(settings: Settings) -> SessionLimits:
    return SessionLimits(
        settings.session_ttl, settings.session_capacity, settings.session_rounds, settings.session_papers
    )


def _query_embedder(
    spec: EmbeddingSpec, settings: Settings, secrets: Mapping[str, str], state: State, metrics: Metrics
) -> QueryEmbedder:
    embedder, endpoint = _embedder(spec, settings, secrets)
    return QueryEmbedder(
        embedder,
        state,
        metrics,
        deadline_s=settings.query_deadline,
        cache_rows=settings.query_cache,
        endpoint=endpoint,
    )


def _embedder(spec: EmbeddingSpec, settings: Settings, secrets: Mapping[str, str]) -> tuple[Embedder, str]:
    """The manifest's own model and the address of its provider, "" on this machine."""
    if spec.provider == "local":
        from manifests.embedding.local import LocalEmbedder, local_spec

        # The model that is here; the gate compares it with the one that is pinned, and names what differs.
        folder = settings.model_path
        local = LocalEmbedder(local_spec(None if folder is None else str(folder)), folder)
        # The model is loaded when first used; no user waits for that, nor is answered by words alone because of it.
        local.embed_query(WARM_UP_TEXT, timeout_s=WARM_UP_TIMEOUT_S)
        return local, ""
    from manifests.embedding.dashscope import BASE_URL, DashScopeEmbedder, ledger_account

    if settings.requests_per_minute is None or settings.tokens_per_minute is None:
        raise UsageRefused(
            f"the index was built with {spec}: give the quota for queries, --requests-per-minute and "
            "--tokens-per-minute (SERVE_REQUESTS_PER_MINUTE, SERVE_TOKENS_PER_MINUTE)"
        )
    if not secrets.get("DASHSCOPE_API_KEY"):
        raise UsageRefused(f"the index was built with {spec}: set DASHSCOPE_API_KEY in the environment")
    base_url = settings.dashscope_url or BASE_URL
    limits = Limits(settings.requests_per_minute, settings.tokens_per_minute)
    ledger = Ledger(settings.ledger, ledger_account(base_url, spec.model), limits)
    embedder = DashScopeEmbedder(spec, api_key=secrets["DASHSCOPE_API_KEY"], ledger=ledger, base_url=base_url)
    return embedder, embedder.endpoint
