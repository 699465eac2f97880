"""stdio: one client on a pipe, nothing but protocol on standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
