"""stdio: one client on a pipe, nothing but protocol on standard output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mcp.server.stdio import stdio_server

from serve.opening import Opened
from serve.tools import Caller, build_server, new_request_id

CLOSE_S = 10.0


async def serve_stdio(opened: Opened, version: str, close: Callable[[], None], exit_code: Callable[[int], int]) -> None:
    """Answer the client on standard input and output until it closes its end. No rate limit: the client is the user.

    `close` and `exit_code` are for `end_on_signals`.
    """
    end_on_signals(close, exit_code)
    server = build_server(opened.desk, opened.service.corpus, version, lambda _request: Caller(None, new_request_id()))
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """Send whatever writes to file descriptor 1 meanwhile, native libraries too, to standard error."""
    sys.stdout.flush()
    wire = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(wire, 1)
        os.close(wire)


def end_on_signals(close: Callable[[], None], exit_code: Callable[[int], int]) -> None:
    """On SIGTERM and SIGINT call `close`, for `CLOSE_S` at most, and end at once with `exit_code` of the signal.

    The protocol library waits for standard input in a thread that nothing can wake while the client holds the pipe:
    an orderly end of the event loop would wait for the client. The running loop calls this between two of its steps,
    where a signal handler of Python's could interrupt a step that holds a lock which `close` needs.
    """

    def end(number: int) -> None:
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        os._exit(exit_code(number))

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
