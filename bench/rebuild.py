"""Stage embed after a list has changed, beside a full one: real SDK, emulated DashScope, in one run.

    python -m bench.rebuild [--older SNAPSHOT --newer SNAPSHOT] [--requests-per-minute N] [--tokens-per-minute N]

Two snapshots are given or found beside the checkout, else made: 6,000 papers, of which 5 % are revised, 3 % new. The
older is embedded into a store; then the newer into an empty one (full) and into the older's (changed). Times are of
the stage under the quota given (a new account's by default, nothing of it spent): opening the store, reading what it
holds, sending what is missing. Limit: a change takes at most (embedded / total + 0.05) of a full one. Exits 1 when it
takes more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.load import synthetic_records
from manifests.embedding.dashscope import DashScopeEmbedder, dashscope_spec, ledger_account
from manifests.ledger import Ledger, Limits
from pipeline.corpus import tabulate
from pipeline.embed import EmbedResult, Policy, embed
from pipeline.embedding_store import EmbeddingStore
from pipeline.snapshot import Provenance, Snapshot, open_snapshot, write_snapshot

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "snapshots"
SPEC = dashscope_spec("text-embedding-v4", 1_024)
# The service lets everything pass: each run is held to the quota by a ledger of its own, as if it were the first.
SERVICE_QUOTA = ("--requests-per-minute", "1000000", "--tokens-per-minute", "1000000000")
MARGIN = 0.05
PAPERS, SEED = 6_000, 2026


def main() -> int:
    """Embed the older, the newer from nothing, the newer over the older; compare the last two."""
    arguments = _arguments()
    limits = Limits(arguments.requests_per_minute, arguments.tokens_per_minute)
    with tempfile.TemporaryDirectory(prefix="bench-rebuild-") as scratch, emulated(arguments.latency) as base_url:
        folder = Path(scratch)
        older, newer = _snapshots(arguments, folder)
        corpora = [tabulate(each, folder / name, quarantine=False).path for each, name in ((older, "a"), (newer, "b"))]
        timed(corpora[0], folder / "kept", base_url, limits)
        # The full run comes first: whatever is warm by then is warm for both.
        full, full_s = timed(corpora[1], folder / "empty", base_url, limits)
        changed, changed_s = timed(corpora[1], folder / "kept", base_url, limits)
    share, ratio = changed.embedded / full.embedded, changed_s / full_s
    result = {
        "texts": full.embedded,
        "changed": changed.embedded,
        "share": round(share, 4),
        "seconds": {"full": round(full_s, 2), "changed": round(changed_s, 2)},
        "tokens": {"full": full.tokens, "changed": changed.tokens},
        "ratio": round(ratio, 4),
        "ratio_max": round(share + MARGIN, 4),
    }
    print(json.dumps(result))
    return int(ratio > share + MARGIN)


def timed(papers: Path, store: Path, base_url: str, limits: Limits) -> tuple[EmbedResult, float]:
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


def _snapshots(arguments: argparse.Namespace, folder: Path) -> tuple[Snapshot, Snapshot]:
    given = (arguments.older or SHARED / "icml2026", arguments.newer or SHARED / "icml2026-later")
    if arguments.older or arguments.newer or all(path.is_dir() for path in given):
        older, newer = map(open_snapshot, given)
        return older, newer
    records = list(synthetic_records(PAPERS, SEED))
    cut = PAPERS * 3 // 100
    return _written(folder / "older", records[:-cut]), _written(folder / "newer", _revised(records))


def _revised(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every twentieth title is another."""
    return [
        each | {"title": f"{each['title']} revised"} if number % 20 == 0 else each
        for number, each in enumerate(records)
    ]


def _written(folder: Path, records: list[dict[str, Any]]) -> Snapshot:
    provenance = Provenance(
        name=folder.name, title="Made up", source="bench", url="", retrieved_at="2026-01-01T00:00:00Z", licence="none"
    )
    return write_snapshot(folder, provenance, records)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--older", type=Path, help="snapshot folder")
    parser.add_argument("--newer", type=Path, help="snapshot folder")
    parser.add_argument("--requests-per-minute", type=int, default=1_800)
    parser.add_argument("--tokens-per-minute", type=int, default=1_200_000)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds an answer of the service takes")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
