"""What the benchmarks share: a stage beside a bare library, the clock, and the conditions of a table."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

HEADER = ("stage", "size", "seconds", "beside it", "its seconds", "ratio", "at most", "peak memory MB")
RIGHT = (2, 4, 5, 6, 7)


@dataclass(frozen=True)
class Measured:
    """One stage beside something bare over the same input in the same run.

    `seconds` may be `bare_s` times `ratio_max`; None is for sizes too small to judge. `peak_mb` counts child processes.
    """

    stage: str
    size: str
    seconds: float
    bare: str
    bare_s: float
    ratio_max: float | None
    peak_mb: float | None = None
    peak_mb_max: float = float("inf")

    @property
    def ratio(self) -> float:
        """How many times the bare library's seconds the stage took."""
        return self.seconds / self.bare_s

    @property
    def exit_code(self) -> int:
        """1 above a limit."""
        slow = self.ratio_max is not None and self.ratio > self.ratio_max
        return int(slow or (self.peak_mb or 0) > self.peak_mb_max)

    def cells(self) -> tuple[str, ...]:
        """A cell for each of `HEADER`."""
        ratio_max = "—" if self.ratio_max is None else f"{self.ratio_max:.2f}"
        peak = "—" if self.peak_mb is None else f"{self.peak_mb:,.0f} of {self.peak_mb_max:,.0f}"
        timed = (f"{self.seconds:.2f}", self.bare, f"{self.bare_s:.2f}", f"{self.ratio:.2f}")
        return (self.stage, self.size, *timed, ratio_max, peak)

    def __str__(self) -> str:
        return " · ".join(f"{name} {cell}" for name, cell in zip(HEADER, self.cells(), strict=True))


def told(measured: Measured) -> int:
    """Print the line of one stage; its exit code."""
    print(measured, flush=True)
    return measured.exit_code


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` took."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def conditions(module: str, packages: Sequence[str]) -> str:
    """By which command, when, on what machine and with which versions a table is being made."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return (
        f"By `python -m {module}` on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, {platform.machine()}, "
        f"{platform.system()}, Python {platform.python_version()}; {versions}. "
        f"Load average at the start {os.getloadavg()[0]:.1f}."
    )


def load_meanwhile() -> str:
    """How busy the machine was of late, the benchmark itself included; for the end of one of some minutes."""
    return f"Load average while it ran: {os.getloadavg()[1]:.1f}."
