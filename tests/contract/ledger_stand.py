"""What the tests of the ledger stand on: a clock that passes only when somebody sleeps, and a ledger on it."""

from __future__ import annotations

from pathlib import Path

from manifests.ledger import Ledger, Limits

ACCOUNT = "https://provider.example/api/v1|text-embedding-v4"


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def open_ledger(path: Path, clock: Clock, requests: int = 600, tokens: int = 300_000, **options) -> Ledger:
    reserve = options.pop("query_reserve", 0.0)
    return Ledger(path, ACCOUNT, Limits(requests, tokens, reserve), clock=clock, sleep=clock.sleep, **options)


class Provider:
    """What the provider counts: (instant, tokens) of every request, in an instant of its own choosing."""

    def __init__(self) -> None:
        self.counted: list[tuple[float, int]] = []

    def peak(self, window_s: float) -> tuple[int, int]:
        """Most requests and tokens in any window."""
        events = sorted(self.counted)
        requests = tokens = first = held = 0
        for position, (instant, weight) in enumerate(events):
            held += weight
            while events[first][0] <= instant - window_s:
                held -= events[first][1]
                first += 1
            requests, tokens = max(requests, position - first + 1), max(tokens, held)
        return requests, tokens

    def share(self, start: float, minutes: int, limits: Limits) -> float:
        """Share of the binding limit used, mean over the full minutes after `start`."""
        inside = [tokens for instant, tokens in self.counted if start <= instant < start + 60 * minutes]
        requests = len(inside) / limits.requests_per_minute
        return max(requests, sum(inside) / limits.tokens_per_minute) / minutes
