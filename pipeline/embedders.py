"""The embedder that a command asks for by its flags, and by the environment where these leave something open."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from manifests.embedding.spec import Embedder, EmbeddingSpec
from pipeline.errors import UsageError

KEY_VARIABLE = "DASHSCOPE_API_KEY"
BASE_URL_VARIABLE = "DASHSCOPE_HTTP_BASE_URL"
QUOTAS_LEAST = (1_800, 1_200_000)
QUOTA_VARIABLES = ("DASHSCOPE_REQUESTS_PER_MINUTE", "DASHSCOPE_TOKENS_PER_MINUTE")


class Wanted(NamedTuple):
    """The flags of a command that say who embeds; None where one was left out."""

    provider: str
    model: str | None
    dimension: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    query_reserve: float


def embedding_spec(wanted: Wanted) -> EmbeddingSpec:
    """The spec of `--provider`, `--model` and `--dimension`; nobody is asked.

    Raises:
        UsageError: a dimension that the local model does not have.
        InputRefused: a model that cannot be used.
    """
    if wanted.provider == "local":
        from manifests.embedding.local import local_spec

        spec = local_spec(wanted.model)
        if wanted.dimension not in (None, spec.dimension):
            raise UsageError(
                f"--dimension {wanted.dimension}: the local model gives {spec.dimension}; leave the flag out"
            )
        return spec
    from manifests.embedding.dashscope import DIMENSION, MODEL, dashscope_spec

    return dashscope_spec(wanted.model or MODEL, wanted.dimension or DIMENSION)


def open_embedder(wanted: Wanted, environment: Mapping[str, str], ledger: Path) -> Embedder:
    """An embedder of that spec; for DashScope on the ledger file `ledger`.

    Raises:
        UsageError: no key or no quotas for DashScope.
    """
    spec = embedding_spec(wanted)
    if spec.provider == "local":
        from manifests.embedding.local import LocalEmbedder

        return LocalEmbedder(spec, Path(wanted.model) if wanted.model else None)
    from manifests.embedding.dashscope import BASE_URL, DashScopeEmbedder, ledger_account
    from manifests.ledger import Ledger, Limits

    key = environment.get(KEY_VARIABLE)
    if not key:
        raise UsageError(f"--provider dashscope needs a key in {KEY_VARIABLE}; it is never taken from the command line")
    requests, tokens = quotas(wanted, environment)
    if requests is None or tokens is None:
        raise UsageError(
            "--provider dashscope needs the account's quotas: --requests-per-minute and --tokens-per-minute, or "
            f"{' and '.join(QUOTA_VARIABLES)}; the provider's console shows them"
        )
    base_url = environment.get(BASE_URL_VARIABLE) or BASE_URL
    limits = Limits(requests, tokens, query_reserve(wanted))
    return DashScopeEmbedder(
        spec, api_key=key, ledger=Ledger(ledger, ledger_account(base_url, spec.model), limits), base_url=base_url
    )


def open_counter(wanted: Wanted, environment: Mapping[str, str], scratch: Path) -> Embedder:
    """An embedder of that spec that will only count: it needs no key, and its ledger is in `scratch`.

    Batches depend on the quotas; without any they are cut as for the least that the provider publishes.
    """
    spec = embedding_spec(wanted)
    if spec.provider == "local":
        from manifests.embedding.local import LocalEmbedder

        return LocalEmbedder(spec, Path(wanted.model) if wanted.model else None)
    from manifests.embedding.dashscope import DashScopeEmbedder
    from manifests.ledger import Ledger, Limits

    requests, tokens = quotas(wanted, environment)
    limits = Limits(requests or QUOTAS_LEAST[0], tokens or QUOTAS_LEAST[1])
    ledger = Ledger(scratch / "ledger.db", "counting", limits)
    return DashScopeEmbedder(spec, api_key="counts-only", ledger=ledger)


def quotas(wanted: Wanted, environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Requests and tokens a minute by flag, else by environment, else None.

    Raises:
        UsageError: a value that is no positive whole number.
    """
    given = (wanted.requests_per_minute, wanted.tokens_per_minute)
    found = [
        flag if flag is not None else environment.get(name) for flag, name in zip(given, QUOTA_VARIABLES, strict=True)
    ]
    try:
        requests, tokens = (None if value in (None, "") else int(value) for value in found)
    except ValueError as error:
        raise UsageError(f"{' and '.join(QUOTA_VARIABLES)} must be whole numbers: {error}") from error
    if any(value is not None and value < 1 for value in (requests, tokens)):
        raise UsageError("quotas must be at least 1 request and 1 token a minute")
    return requests, tokens


def query_reserve(wanted: Wanted) -> float:
    """The share of the quotas that a build leaves to the queries of a server.

    Raises:
        UsageError: no share.
    """
    if not 0 <= wanted.query_reserve < 1:
        raise UsageError(f"--query-reserve {wanted.query_reserve}: expected a share from 0 to below 1")
    return wanted.query_reserve
