"""A real HTTP server and clients that never get to the point."""

from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager

import anyio
import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from serve.http import HEAD_BYTES_MAX, bind, server_config
from serve.settings import read_settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def listening(monkeypatch):
    """The address of a real HTTP server that answers everything with `ok`, and awaits a request for 0.5 s."""
    monkeypatch.setattr("serve.http.HEAD_S", 0.5)

    async def ok(scope, receive, send):
        await PlainTextResponse("ok")(scope, receive, send)

    @asynccontextmanager
    async def opened():
        config = server_config(ok, read_settings({"manifest": "m.json", "milvus_uri": "m.db"}, {}))
        config.lifespan = "off"
        server = uvicorn.Server(config)
        with bind("127.0.0.1", 0) as listener:
            async with anyio.create_task_group() as group:
                group.start_soon(server.serve, [listener])
                yield listener.getsockname()
                server.should_exit = True

    return opened


async def asked(address, sent: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    received = b""
    async with await anyio.connect_tcp(*address) as stream:
        with contextlib.suppress(anyio.BrokenResourceError):
            await stream.send(sent)
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    received += await stream.receive()
    return received


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET /heal", HEAD, HEAD + b"\r\n", HEAD + b"\r\nGET /"])
async def test_a_connection_without_a_whole_request_is_closed_in_time(listening, sent):
    async with listening() as address:
        with anyio.fail_after(5):
            received = await asked(address, sent)

    assert received.startswith(b"HTTP/1.1 200" if HEAD + b"\r\n" in sent else b"")
    assert received.count(b"HTTP/1.1") == (HEAD + b"\r\n" in sent)


async def test_a_drip_does_not_hold_a_connection(listening):
    async with listening() as address, await anyio.connect_tcp(*address) as stream:
        with anyio.fail_after(5), contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            for byte in HEAD + b"X: " + b"x" * 100:
                await stream.send(bytes([byte]))
                with anyio.move_on_after(0.1):
                    await stream.receive()
            pytest.fail("the connection was kept")


async def test_a_head_beyond_its_limit_is_refused(listening):
    async with listening() as address:
        within = await asked(address, HEAD + b"Connection: close\r\nX: " + b"x" * (HEAD_BYTES_MAX - 200) + b"\r\n\r\n")
        beyond = await asked(address, HEAD + b"X: " + b"x" * 2_000_000)

    assert within.startswith(b"HTTP/1.1 200")
    assert beyond[:12] in (b"", b"HTTP/1.1 400")  # a client that still sends may see only that the connection is gone
