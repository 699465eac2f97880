"""CPU per request of ledger, token counting and scheduler at 1,800 requests a minute; exit 1 above 2 ms.

    python -m bench.ledger

The window is filled first (1,800 live reservations on a simulated clock), then a minute of steady state is
measured: reserve, wait, settle, with the token counts of ten abstracts a request.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from bench.measured import Measured, told
from manifests.embedding.dashscope import DashScopeEmbedder, dashscope_spec
from manifests.ledger import Ledger, Limits

LIMITS = Limits(1_800, 12_000_000)
BATCH = 10
MOST_MS = 2.0
ABSTRACT = "We study the convergence of stochastic gradient methods under heavy-tailed noise and show a bound. " * 12


class _Clock:
    """Time that passes only when the ledger sleeps or an answer is awaited."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def main() -> int:
    return told(measured())


def measured() -> Measured:
    """The processor's seconds for the requests of a minute, beside that minute."""
    with tempfile.TemporaryDirectory(prefix="bench-ledger-") as folder:
        clock = _Clock()
        ledger = Ledger(Path(folder) / "ledger.db", "bench", LIMITS, clock=clock, sleep=clock.sleep)
        embedder = DashScopeEmbedder(dashscope_spec(), api_key="sk-bench", ledger=ledger)
        _minutes(embedder, clock, 1.1)
        live = ledger.usage().requests
        started = time.process_time()
        requests = _minutes(embedder, clock, 1.0)
        spent_s = time.process_time() - started
        ledger.close()
    return Measured(
        stage="quota accounting, CPU",
        size=f"{requests:,} requests ({live:,} live), {1_000 * spent_s / requests:.2f} ms each",
        seconds=spent_s,
        bare="the minute that they take",
        bare_s=60.0,
        ratio_max=requests * MOST_MS / 60_000,
    )


def _minutes(embedder: DashScopeEmbedder, clock: _Clock, minutes: float) -> int:
    """As many requests as the ledger lets through; each is answered 0.2 s later, six in flight."""
    end, sent, flying = clock.now + minutes * 60, 0, []
    while clock.now < end:
        texts = [f"{clock.now} {number} {ABSTRACT}" for number in range(BATCH)]
        counted = sum(embedder.count_tokens(texts))
        flying.append(embedder.ledger.reserve(counted, timeout_s=60))
        sent += 1
        if len(flying) > 6:
            reservation = flying.pop(0)
            embedder.ledger.settle(reservation, tokens=reservation.estimate)
    return sent


if __name__ == "__main__":
    sys.exit(main())
