"""Seconds and peak memory of each stage, the engine's child included."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

SAMPLE_S = 0.5  # looking through all processes of the machine costs what it measures


@dataclass
class Meter:
    """Stages measured so far; `seconds` and `peak_rss_mb` by stage name, in the order they ran."""

    seconds: dict[str, float] = field(default_factory=dict)
    peak_rss_mb: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure what runs inside as `name`, also when it fails."""
        finished = threading.Event()
        peak = [_rss_mb()]

        def sample() -> None:
            while not finished.wait(SAMPLE_S):
                peak[0] = max(peak[0], _rss_mb())

        sampler = threading.Thread(target=sample, daemon=True)
        started = time.perf_counter()
        sampler.start()
        try:
            yield
        finally:
            self.seconds[name] = round(time.perf_counter() - started, 3)
            finished.set()
            sampler.join()
            self.peak_rss_mb[name] = round(max(peak[0], _rss_mb()), 1)


def _rss_mb() -> float:
    """Resident memory of this program and its children, in 10^6 bytes."""
    this = psutil.Process()
    total: int = this.memory_info().rss
    for child in this.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:  # it ended between the two calls
            continue
    return total / 1e6
