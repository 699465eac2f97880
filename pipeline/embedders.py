"""The embedder that flags and environment ask for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from manifests.embedding.spec import Embedder, EmbeddingSpec
from pipeline.errors import UsageError

KEY_VARIABLE = "DASHSCOPE_API_KEY"
BASE_URL_VARIABLE = "DASHSCOPE_HTTP_BASE_URL"
QUOTAS_LEAST = (1_800, 1_200_000)
QUOTA_VARIABLES = ("DASHSCOPE_REQUESTS_PER_MINUTE", "DASHSCOPE_TOKENS_PER_MINUTE")


def embedding_spec(args: argparse.Namespace) -> EmbeddingSpec:
    """The spec of `--provider`, `--model` and `--dimension`; nobody is asked.

    Raises:
        UsageError: a dimension that the local model does not have.
        InputRefused: a model that cannot be used.
    """
    if args.provider == "local":
        from manifests.embedding.local import local_spec

        spec = local_spec(args.model)
        if args.dimension not in (None, spec.dimension):
            raise UsageError(
                f"--dimension {args.dimension}: the local model gives {spec.dimension}; leave the flag out"
            )
        return spec
    from manifests.embedding.dashscope import DIMENSION, MODEL, dashscope_spec

    return dashscope_spec(args.model or MODEL, args.dimension or DIMENSION)


def open_embedder(args: argparse.Namespace, environment: Mapping[str, str], ledger: Path) -> Embedder:
    """An embedder of that spec; for DashScope on the ledger file `ledger`.

    Raises:
        UsageError: no key or no quotas for DashScope.
    """
    spec = embedding_spec(args)
    if spec.provider == "local":
        from manifests.embedding.local import LocalEmbedder

        return LocalEmbedder(spec, Path(args.model) if args.model else None)
    from manifests.embedding.dashscope import BASE_URL, DashScopeEmbedder, ledger_account
    from manifests.ledger import Ledger, Limits

    key = environment.get(KEY_VARIABLE)
    if not key:
        raise UsageError(f"--provider dashscope needs a key in {KEY_VARIABLE}; it is never taken from the command line")
    requests, tokens = quotas(args, environment)
    if requests is None or tokens is None:
        raise UsageError(
            "--provider dashscope needs the account's quotas: --requests-per-minute and --tokens-per-minute, or "
            f"{' and '.join(QUOTA_VARIABLES)}; the provider's console shows them"
        )
    if not 0 <= args.query_reserve < 1:
        raise UsageError(f"--query-reserve {args.query_reserve}: expected a share from 0 to below 1")
    base_url = environment.get(BASE_URL_VARIABLE) or BASE_URL
    limits = Limits(requests, tokens, args.query_reserve)
    return DashScopeEmbedder(
        spec, api_key=key, ledger=Ledger(ledger, ledger_account(base_url, spec.model), limits), base_url=base_url
    )


def open_counter(args: argparse.Namespace, environment: Mapping[str, str], scratch: Path) -> Embedder:
    """An embedder of that spec that will only count: it needs no key, and its ledger is in `scratch`.

    Batches depend on the quotas; without any they are cut as for the least that the provider publishes.
    """
    spec = embedding_spec(args)
    if spec.provider == "local":
        from manifests.embedding.local import LocalEmbedder

        return LocalEmbedder(spec, Path(args.model) if args.model else None)
    from manifests.embedding.dashscope import DashScopeEmbedder
    from manifests.ledger import Ledger, Limits

    requests, tokens = quotas(args, environment)
    limits = Limits(requests or QUOTAS_LEAST[0], tokens or QUOTAS_LEAST[1])
    ledger = Ledger(scratch / "ledger.db", "counting", limits)
    return DashScopeEmbedder(spec, api_key="counts-only", ledger=ledger)


def quotas(args: argparse.Namespace, environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Requests and tokens a minute by flag, else by environment, else None.

    Raises:
        UsageError: a value that is no positive whole number.
    """
    given = (args.requests_per_minute, args.tokens_per_minute)
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
