"""Stage embed after a list has changed, beside a full one: real SDK, emulated DashScope, in one run.

    python -m bench.rebuild [--snapshots OLDER NEWER | --papers 6000] [--requests-per-minute N] [--tokens-per-minute N]

Two snapshots are given or found beside the checkout, else made: of their papers 5 % are revised, 3 % new. The older
is embedded into a store; then the newer into an empty one (full) and into the older's (changed). Times are of the
stage under the quota given (a new account's by default, nothing of it spent): opening the store, reading what it
holds, sending what is missing. Limit: a change takes at most (embedded / total + 0.05) of a full one. Exits 1 when it
takes more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.corpora import real_snapshot
from bench.measured import Measured, told
from bench.synthetic import synthetic_records, synthetic_snapshot
from manifests.embedding.dashscope import DashScopeEmbedder, dashscope_spec, ledger_account
from manifests.ledger import Ledger, Limits
from pipeline.corpus import tabulate
from pipeline.embed import EmbedResult, Policy, embed
from pipeline.embedding_store import EmbeddingStore
from pipeline.snapshot import Snapshot, open_snapshot

SPEC = dashscope_spec("text-embedding-v4", 1_024)
# The service lets everything pass: each run is held to the quota by a ledger of its own, as if it were the first.
SERVICE_QUOTA = ("--requests-per-minute", "1000000", "--tokens-per-minute", "1000000000")
QUOTA = Limits(1_800, 1_200_000)
LATENCY_S = 0.2
MARGIN = 0.05
PAPERS = 6_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--snapshots", type=Path, nargs=2, metavar=("OLDER", "NEWER"), help="folders")
    what.add_argument("--papers", type=int, help="as many made-up ones")
    parser.add_argument("--requests-per-minute", type=int, default=QUOTA.requests_per_minute)
    parser.add_argument("--tokens-per-minute", type=int, default=QUOTA.tokens_per_minute)
    parser.add_argument("--latency", type=float, default=LATENCY_S, help="seconds an answer of the service takes")
    given = parser.parse_args()
    limits = Limits(given.requests_per_minute, given.tokens_per_minute)
    return told(measured(given.papers, given.snapshots, limits, given.latency))


def measured(
    papers: int | None = None,
    snapshots: Sequence[Path] | None = None,
    limits: Limits = QUOTA,
    latency_s: float = LATENCY_S,
) -> Measured:
    """Embed the older, the newer from nothing, the newer over the older; the last beside the second."""
    with tempfile.TemporaryDirectory(prefix="bench-rebuild-") as scratch, emulated(latency_s) as base_url:
        folder = Path(scratch)
        before, after = (
            tabulate(each, folder / f"work-{each.sha256}", quarantine=False).path
            for each in older_and_newer(papers, snapshots, folder)
        )
        _run(before, folder / "kept", base_url, limits)
        # The full run comes first: whatever is warm by then is warm for both.
        full, full_s = _run(after, folder / "empty", base_url, limits)
        changed, changed_s = _run(after, folder / "kept", base_url, limits)
    return Measured(
        stage="embed after a change, DashScope emulated",
        size=f"{changed.embedded:,} of {full.embedded:,} texts changed",
        seconds=changed_s,
        bare="the same stage from nothing",
        bare_s=full_s,
        ratio_max=changed.embedded / full.embedded + MARGIN,
    )


def _run(papers: Path, store: Path, base_url: str, limits: Limits) -> tuple[EmbedResult, float]:
    """One run of the stage as a build runs it, with a ledger of its own."""
    ledger = Ledger(store.with_suffix(f".{time.monotonic_ns()}.db"), ledger_account(base_url, SPEC.model), limits)
    embedder = DashScopeEmbedder(SPEC, api_key="sk-emulated", ledger=ledger, base_url=base_url)
    started = time.perf_counter()
    with EmbeddingStore(store, SPEC) as opened:
        result = embed(papers, opened, embedder, Policy())
    return result, time.perf_counter() - started


@contextmanager
def emulated(latency_s: float) -> Iterator[str]:
    """The service as a program of its own, so that it shares no interpreter with the stage."""
    command = [sys.executable, "-m", "bench.emulator", *SERVICE_QUOTA, "--latency", str(latency_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            yield program.stdout.readline().strip()
        finally:
            program.terminate()


def older_and_newer(papers: int | None, given: Sequence[Path] | None, folder: Path) -> tuple[Snapshot, Snapshot]:
    """The two snapshots that are compared: those given, the real ones, or some made up in `folder`."""
    if given:
        return open_snapshot(given[0]), open_snapshot(given[1])
    older, newer = real_snapshot("icml2026"), real_snapshot("icml2026-later")
    if papers is None and older and newer:
        return older, newer
    records = list(synthetic_records(papers or PAPERS))
    kept = records[: len(records) * 97 // 100]
    return synthetic_snapshot(folder / "older", kept), synthetic_snapshot(folder / "newer", _revised(records))


def _revised(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every twentieth title is another."""
    return [
        each | {"title": f"{each['title']} revised"} if number % 20 == 0 else each
        for number, each in enumerate(records)
    ]


if __name__ == "__main__":
    sys.exit(main())
