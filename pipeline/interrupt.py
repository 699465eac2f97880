"""Ctrl-C and SIGTERM at a moment of the program's own choosing, so that nothing paid for is lost between statements."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Interrupt:
    """While entered, a signal is only noted; what it does follows at the next `check`, at the latest on leaving.

    `noted` is called at once, in the main thread, wherever that is; a second signal waits for nothing.
    """

    def __init__(self, noted: Callable[[], object]) -> None:
        self._noted = noted
        self._asked: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                if callable(before):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self.check()

    def check(self) -> None:
        """Do what the signal that came asks for: KeyboardInterrupt for Ctrl-C."""
        if self._asked is not None:
            number, self._asked = self._asked, None
            self._before[number](number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._asked is not None:
            self._before[number](number, frame)
        self._asked = number
        self._noted()
