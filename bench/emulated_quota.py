"""The minute quotas of the emulated service, and what was counted in them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Quota:
    """Limits in every `window_s`; `per_second` adds the sixtieth of both in every sixtieth of it."""

    requests: int = 1_800
    tokens: int = 1_200_000
    window_s: float = 60.0
    per_second: bool = False


class Meter:
    """What was counted, and whether one more fits; every instant is kept to find the peak afterwards."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.counted: list[tuple[float, int]] = []
        self._windows = [(quota.window_s, quota.requests, quota.tokens, deque[tuple[float, int]]())]
        if quota.per_second:
            requests, tokens = math.ceil(quota.requests / 60), math.ceil(quota.tokens / 60)
            self._windows.append((quota.window_s / 60, requests, tokens, deque()))

    def admit(self, now: float, tokens: int) -> str | None:
        """Count a request, or the code it is refused with."""
        for window_s, requests_max, tokens_max, recent in self._windows:
            while recent and recent[0][0] <= now - window_s:
                recent.popleft()
            if len(recent) + 1 > requests_max:
                return "Throttling.RateQuota"
            if sum(weight for _, weight in recent) + tokens > tokens_max:
                return "Throttling.AllocationQuota"
        self.count(now, tokens)
        return None

    def count(self, now: float, tokens: int) -> None:
        """Count a request, whatever the limits say."""
        self.counted.append((now, tokens))
        for *_, recent in self._windows:
            recent.append((now, tokens))

    def peak(self, window_s: float | None = None) -> tuple[int, int]:
        """Most requests and tokens counted in any window."""
        window_s = window_s or self.quota.window_s
        first = held = requests_max = tokens_max = 0
        for position, (instant, tokens) in enumerate(self.counted):
            held += tokens
            while self.counted[first][0] <= instant - window_s:
                held -= self.counted[first][1]
                first += 1
            requests_max, tokens_max = max(requests_max, position - first + 1), max(tokens_max, held)
        return requests_max, tokens_max

    def minutes(self) -> list[tuple[int, int]]:
        """Requests and tokens of each full window since the first request."""
        if not self.counted:
            return []
        start, last = self.counted[0][0], self.counted[-1][0]
        full = [(0, 0)] * int((last - start) / self.quota.window_s)
        for instant, tokens in self.counted:
            minute = int((instant - start) / self.quota.window_s)
            if minute < len(full):
                full[minute] = (full[minute][0] + 1, full[minute][1] + tokens)
        return full
