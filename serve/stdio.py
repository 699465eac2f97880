"""stdio: one client on a pipe, nothing but protocol on standard output."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mcp.server.stdio import stdio_server

from serve.opening import Opened
from serve.tools import Caller, build_server, new_request_id


async def serve_stdio(opened: Opened, version: str) -> None:
    """Answer the client on standard input and output until it closes its end. No rate limit: the client is the user."""
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


def end_on_signals(close: Callable[[], None]) -> None:
    """On SIGTERM and SIGINT call `close` and end at once, with 128 + the signal.

    The protocol library waits for standard input in a thread that nothing can wake while the client holds the pipe:
    an orderly end of the event loop would wait for the client.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        close()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
