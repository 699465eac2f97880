"""A bounded crew of threads for blocking searches, with a bounded queue before it.

A call whose caller is gone leaves the queue at once; one already running keeps its thread until it ends, and keeps
counting, so that abandoned work can never pile up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from serve.errors import ErrorCode, ToolFailure

T = TypeVar("T")


class Workers:
    """`threads` calls at a time, `queue` more waiting in the order they came."""

    def __init__(self, threads: int, queue: int) -> None:
        self._threads = threads
        self._places = threads + queue
        self._admitted = 0
        self._turn = threading.Lock()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="search")

    @property
    def admitted(self) -> int:
        """Calls running or waiting."""
        return self._admitted

    async def run(self, call: Callable[[], T]) -> T:
        """The result of `call` in one of the threads.

        Raises:
            ToolFailure: `overloaded`, at once, when every place is taken.
        """
        with self._turn:
            if self._admitted >= self._places:
                raise ToolFailure(
                    ErrorCode.OVERLOADED,
                    f"{self._admitted} searches are running or waiting, the most this server takes."
                    f" {ErrorCode.OVERLOADED.advice}",
                )
            self._admitted += 1
        future = self._executor.submit(call)
        future.add_done_callback(self._leave)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Drop what waits; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _leave(self, _: Future[T]) -> None:
        with self._turn:
            self._admitted -= 1
