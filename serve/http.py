"""Streamable HTTP: `/mcp`, `/healthz`, `/readyz`, `/metrics`, and everything that guards them.

Stateless: a request carries all there is to know, so any connection, restart or proxy may take the next one.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any

import anyio
import uvicorn
from anyio.to_thread import run_sync
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from serve.errors import UsageRefused
from serve.limits import client_of
from serve.observe import Metrics
from serve.opening import Opened
from serve.settings import Settings
from serve.tools import Caller, build_server, new_request_id

log = logging.getLogger(__name__)

ENDPOINT = ("/mcp", "/mcp/")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
LOOPBACK_ORIGIN = r"https?://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?"
# A request may take this much longer than its call: reading the body and sending the answer.
REQUEST_MARGIN_S = 10.0
# The whole head of a request must be there this long after the connection or the answer before it.
HEAD_S = 15
HEAD_BYTES_MAX = 16_384
# The case of a host and of a media type says nothing (RFC 9110, 4.2.3 and 8.3.1); the protocol library compares it.
CASELESS = (b"host", b"content-type")
BACKLOG = 512
_REQUEST_ID = "serve.request_id"


def build_app(opened: Opened, settings: Settings, bearer: str | None, version: str) -> Starlette:
    """The ASGI application over an opened service."""

    def caller(request: Request | None) -> Caller:
        if request is None:
            return Caller(None, new_request_id())
        peer = request.client.host if request.client else None
        client = client_of(peer, request.headers.getlist("x-forwarded-for"), settings.trusted_proxies)
        return Caller(client, request.scope.get(_REQUEST_ID) or new_request_id())

    server = build_server(opened.desk, opened.service.corpus, version, caller)
    manager = StreamableHTTPSessionManager(
        app=server,
        json_response=True,
        stateless=True,
        max_request_body_size=settings.body_limit,
        security_settings=_security(settings),
    )
    endpoint = CancelOnDisconnect(StreamableHTTPASGIApp(manager), settings.call_deadline + REQUEST_MARGIN_S)
    return Starlette(
        routes=[
            *(Route(path, endpoint, methods=["POST"]) for path in ENDPOINT),
            Route("/healthz", _healthz, methods=["GET"]),
            Route("/readyz", _readyz(opened, version), methods=["GET"]),
            Route("/metrics", _metrics(opened.metrics), methods=["GET"]),
        ],
        middleware=[
            Middleware(RequestIds, metrics=opened.metrics),
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.allowed_origins),
                allow_origin_regex=LOOPBACK_ORIGIN,
                allow_methods=["POST"],
                allow_headers=["*"],
            ),
            Middleware(Bearer, token=bearer),
        ],
        lifespan=_lifespan(manager),
    )


def serve_http(app: Starlette, settings: Settings, listener: socket.socket) -> None:
    """Answer on `listener` until SIGTERM or SIGINT; calls in flight may end within `graceful_stop`."""
    _Announced(server_config(app, settings)).run(sockets=[listener])


def server_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """How uvicorn serves `app`."""
    return uvicorn.Config(
        app,
        http=PromptProtocol,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        lifespan="on",
        backlog=BACKLOG,
        limit_concurrency=settings.connections,
        timeout_keep_alive=HEAD_S,
        timeout_graceful_shutdown=math.ceil(settings.graceful_stop),
    )


class PromptProtocol(H11Protocol):
    """HTTP/1.1 for clients that ask: a connection on which no whole head of a request comes within `HEAD_S` is closed.

    h11 rather than the faster httptools, because it bounds that head.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base has it
        """The first request is awaited."""
        super().connection_made(transport)
        self._await_request()

    def on_response_complete(self) -> None:
        """The next one is, which may be here already."""
        self._await_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """No more will come."""
        super().connection_lost(exc)
        if self._waiting:
            self._waiting.cancel()

    def _await_request(self) -> None:
        if self._waiting:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(HEAD_S, self._close_after, self.cycle)

    def _close_after(self, last: object) -> None:
        if self.cycle is last:
            self.transport.close()


class _Announced(uvicorn.Server):
    """Says where it answers, once it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then log the address of every socket."""
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            log.info("ready at http://%s:%s/mcp", f"[{host}]" if ":" in host else host, port)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: a port in use is known before the index is opened.

    Raises:
        UsageRefused: the address is taken, or is not one of this machine.
    """
    with ExitStack() as unbound:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = unbound.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise UsageRefused(
                f"cannot listen on {host} port {port}: {error.strerror}; give another --port or --host"
            ) from error
        unbound.pop_all()
        return listener


class CancelOnDisconnect:
    """Ends the work of a request whose client is gone, which JSON mode would otherwise never notice.

    It also bounds the whole request, so that a client that sends its body for ever holds nothing for ever.
    """

    def __init__(self, app: ASGIApp, seconds_max: float) -> None:
        self._app = app
        self._seconds_max = seconds_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        started = False

        async def tracked(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        arrived, taken = anyio.create_memory_object_stream[Message](8)
        with anyio.move_on_after(self._seconds_max) as limit:
            async with arrived, taken, anyio.create_task_group() as group:

                async def listen() -> None:
                    message = await receive()
                    while message["type"] != "http.disconnect":
                        await arrived.send(message)
                        message = await receive()
                    group.cancel_scope.cancel()

                group.start_soon(listen)
                await self._app(scope, taken.receive, tracked)
                group.cancel_scope.cancel()
        if limit.cancelled_caught and not started:
            late = PlainTextResponse("The request was not complete in time.", HTTPStatus.REQUEST_TIMEOUT)
            await late(scope, receive, send)


class RequestIds:
    """Names every request and tells the client, reads hosts and media types in any case, counts what `/mcp` refuses."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = scope[_REQUEST_ID] = new_request_id()
        scope["headers"] = [(field, value.lower() if field in CASELESS else value) for field, value in scope["headers"]]

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-request-id", name.encode())]
                if message["status"] >= HTTPStatus.BAD_REQUEST and scope["path"] in ENDPOINT:
                    self._metrics.refused.labels(str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, named)


class Bearer:
    """Wants `Authorization: Bearer TOKEN` for everything but the probes, when there is a token."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and self._token is not None and scope["path"] not in {"/healthz", "/readyz"}:
            scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
                refusal = PlainTextResponse(
                    "A bearer token is needed.", HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Bearer"}
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _security(settings: Settings) -> TransportSecuritySettings:
    names = [name.lower() for name in (*LOOPBACK, settings.host, *settings.allowed_hosts)]
    hosts = [form for name in names for form in (name, f"{name}:*")]
    origins = [form for name in LOOPBACK for scheme in ("http", "https") for form in _origin_forms(scheme, name)]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[*origins, *settings.allowed_origins])


def _origin_forms(scheme: str, name: str) -> tuple[str, str]:
    return f"{scheme}://{name}", f"{scheme}://{name}:*"


def _lifespan(manager: StreamableHTTPSessionManager) -> Any:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    return lifespan


async def _healthz(_: Request) -> Response:
    return PlainTextResponse("ok")


def _readyz(opened: Opened, version: str) -> Any:
    async def readyz(_: Request) -> Response:
        ready = await opened.ranking.probe()
        provider = await run_sync(opened.embedding.state)  # it reads the ledger, a file
        manifest = opened.manifest
        facts: Mapping[str, Any] = {
            "ready": ready,
            "index": "answers" if ready else "does not answer",
            "manifest": {"name": manifest.snapshot.name, "digest": manifest.digest},
            "collection": manifest.collection.name,
            "papers": manifest.corpus.rows,
            "embedding": str(manifest.embedding),
            "provider": provider,
            "version": version,
        }
        return JSONResponse(facts, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    return readyz


def _metrics(metrics: Metrics) -> Any:
    def page(_: Request) -> Response:
        return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return page
