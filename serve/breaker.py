"""A circuit breaker: a provider that is down is not asked again at once, and is found again when it is back.

Closed: every call goes. Open: none goes. After a pause one call goes as a probe; its success closes the circuit,
its failure doubles the pause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

Circuit = Literal["closed", "open", "half_open"]
Permission = Literal["call", "probe", "none"]

WEIGHT_OPEN = 3
PAUSE_FIRST_S = 2.0
PAUSE_MAX_S = 60.0


class Breaker:
    """Opens when failures without a success between them weigh `WEIGHT_OPEN`. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._weight = 0
        self._pause_s = PAUSE_FIRST_S
        self._opened_at: float | None = None
        self._probing = False

    @property
    def circuit(self) -> Circuit:
        """`half_open` once the pause is over: the next call is a probe, or one is under way."""
        with self._lock:
            return self._circuit()

    def ask(self) -> Permission:
        """Whether a call may go. A probe must end in `succeeded`, `failed` or `undecided`."""
        with self._lock:
            circuit = self._circuit()
            if circuit == "closed":
                return "call"
            if circuit == "open" or self._probing:
                return "none"
            self._probing = True
            return "probe"

    def succeeded(self) -> None:
        """The provider answered: closed, whatever was before."""
        with self._lock:
            self._weight, self._pause_s = 0, PAUSE_FIRST_S
            self._opened_at, self._probing = None, False

    def failed(self, *, weight: int, probe: bool) -> None:
        """The provider did not answer; `weight` up to `WEIGHT_OPEN`, which opens at once."""
        with self._lock:
            self._weight += weight
            if probe:
                self._probing = False
                self._pause_s = min(PAUSE_MAX_S, self._pause_s * 2)
                self._opened_at = self._clock()
            elif self._opened_at is None and self._weight >= WEIGHT_OPEN:
                self._opened_at = self._clock()

    def undecided(self, *, probe: bool) -> None:
        """The call ended without telling anything of the provider, so the next one may probe."""
        if probe:
            with self._lock:
                self._probing = False

    def _circuit(self) -> Circuit:
        if self._opened_at is None:
            return "closed"
        return "open" if self._clock() < self._opened_at + self._pause_s else "half_open"
