"""One HTTP request leaves exactly once, ends within its deadline, and says whether it can have been counted.

The SDK sends again, unasked, whatever ends in `requests.ConnectionError`; the ledger would not know of it. So the
adapter below turns every failure into an exception of its own, which the SDK lets through.
"""

from __future__ import annotations

import functools
import io
import os
import time
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3 import Timeout
from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError

from manifests.errors import InputRefused

ANSWER_BYTES_MAX = 64 * 2**20
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CHUNK_BYTES = 1 << 16


class Unsent(Exception):
    """No connection, or none that TLS accepts: no byte of the request left, so the provider cannot have counted it."""


class Dropped(Exception):
    """The connection broke: the provider may have counted the request."""


class TimedOut(Exception):
    """No whole answer in time: the provider may have counted the request."""


def open_session(base_url: str, connections: int) -> requests.Session:
    """A session of `connections` kept open, each request sent once.

    The environment is not trusted as a whole: a ~/.netrc would replace the key. Proxies and certificates are taken
    from it by name, and a provider on this machine is never asked through a proxy.

    Raises:
        InputRefused: the environment names certificates that are not there.
    """
    session = requests.Session()
    session.trust_env = False
    session.max_redirects = 0
    if urlsplit(base_url).hostname not in LOOPBACK:
        session.proxies.update(get_environ_proxies(base_url))
    session.verify = _certificates()
    for scheme in ("https://", "http://"):
        session.mount(scheme, OneShot(pool_connections=1, pool_maxsize=connections))
    return session


def _certificates() -> str | bool:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if path := os.environ.get(name):
            if not Path(path).exists():
                raise InputRefused(f"{name} names {path}, which is not there; name a file of certificates, or unset it")
            return path
    return True


class Exchange:
    """The session for one request, which knows whether its answer has come: only then can that be what is at fault."""

    def __init__(self, session: requests.Session) -> None:
        self.answered = False
        self._session = session

    def post(self, *arguments: Any, **options: Any) -> requests.Response:
        """As the session does."""
        response = self._session.post(*arguments, **options)
        self.answered = True
        return response


class OneShot(HTTPAdapter):  # type: ignore[misc]  # requests ships no types
    """Sends once; connecting, sending and the whole answer together end within the sum of the two timeouts."""

    def send(self, request: Any, stream: bool = False, timeout: Any = None, **options: Any) -> requests.Response:  # noqa: ARG002 -- the body is always read here
        """The answer with its body read.

        Raises:
            Unsent, Dropped, TimedOut: as their names say.
        """
        connect_s, read_s = timeout
        whole = Timeout(connect=connect_s, read=read_s, total=connect_s + read_s)
        try:
            response = super().send(request, stream=True, timeout=whole, **options)
        except requests.Timeout as exc:
            raise TimedOut("no answer in time") from exc
        except requests.ConnectionError as exc:
            raise _broken(exc) from exc
        try:
            response._content = _body(response)  # noqa: SLF001 -- where requests keeps a body it has read
        finally:
            response.close()
        return response

    def get_connection_with_tls_context(self, *request: Any, **options: Any) -> Any:
        """The pool for a request, through a proxy or not, with connections that keep to the deadline."""
        pool = super().get_connection_with_tls_context(*request, **options)
        if not issubclass(pool.ConnectionCls, _Bounded):
            pool.ConnectionCls = _bounded(pool.ConnectionCls)
        return pool


class _Bounded:
    """What is added to urllib3's connections: a deadline over the answer, and a failure to connect told apart."""

    def connect(self) -> None:
        """Open the connection with all its handshakes; the request is written only after this."""
        try:
            super().connect()  # type: ignore[misc]  # urllib3's connection stands behind
        except (OSError, HTTPException, HTTPError) as exc:
            raise Unsent(f"no connection: {type(exc).__name__}") from exc


@functools.cache
def _bounded(connection: type) -> type:
    return type(connection.__name__, (_Bounded, connection), {"response_class": _Answer})


class _Answer(HTTPResponse):
    """An answer that ends when the read timeout has passed as a whole, however its bytes are spread over time."""

    def __init__(self, sock: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp = io.BufferedReader(_UntilDeadline(sock, self.fp.detach()))


class _UntilDeadline(io.RawIOBase):
    """What comes out of a socket within its timeout from now; each read is given what is left of it."""

    def __init__(self, sock: Any, stream: Any) -> None:
        self._sock = sock
        self._stream = stream
        self._deadline = time.monotonic() + sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer did not end in time")
        self._sock.settimeout(left_s)
        count: int | None = self._stream.readinto(buffer)
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


def _body(response: requests.Response) -> bytes:
    """All of the body; closing before its end drops the connection, so a half-read one is never used again."""
    chunks, size = [], 0
    try:
        for chunk in response.iter_content(_CHUNK_BYTES):
            chunks.append(chunk)
            size += len(chunk)
            if size > ANSWER_BYTES_MAX:
                raise Dropped(f"an answer of more than {ANSWER_BYTES_MAX:,} bytes")
    except requests.ConnectionError as exc:
        if exc.args and isinstance(exc.args[0], ReadTimeoutError):
            raise TimedOut("the answer did not end in time") from exc
        raise Dropped("the connection broke during the answer") from exc
    except requests.RequestException as exc:
        raise Dropped("the answer broke off or could not be decoded") from exc
    return b"".join(chunks)


def _broken(exc: requests.ConnectionError) -> Dropped | TimedOut:
    cause = exc.args[0] if exc.args else None
    if isinstance(cause, ProtocolError) and isinstance(cause.args[-1], TimeoutError):
        return TimedOut("the request was not taken in time")
    return Dropped(f"the connection broke: {_name(cause)}")


def _name(cause: object) -> str:
    """The kind of failure, without addresses or bodies."""
    reason = getattr(cause, "reason", None) or cause
    return type(reason).__name__
