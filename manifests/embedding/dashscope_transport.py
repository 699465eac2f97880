"""One HTTP request leaves exactly once, ends within its deadline, and says whether it can have been counted.

The SDK sends again, unasked, whatever ends in `requests.ConnectionError`; the ledger would not know of it. So the
adapter below turns every failure into an exception of its own, which the SDK lets through.
"""

from __future__ import annotations

import os
import time
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.exceptions import MaxRetryError, NewConnectionError, ReadTimeoutError

ANSWER_BYTES_MAX = 64 * 2**20
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CHUNK_BYTES = 1 << 16


class Unsent(Exception):
    """No connection: the request did not leave, so the provider cannot have counted it."""


class Dropped(Exception):
    """The connection broke: the provider may have counted the request."""


class TimedOut(Exception):
    """No whole answer in time: the provider may have counted the request."""


def open_session(base_url: str, connections: int) -> requests.Session:
    """A session of `connections` kept open, each request sent once.

    The environment is not trusted as a whole: a ~/.netrc would replace the key. Proxies and certificates are taken
    from it by name, and a provider on this machine is never asked through a proxy.
    """
    session = requests.Session()
    session.trust_env = False
    session.max_redirects = 0
    if urlsplit(base_url).hostname not in LOOPBACK:
        session.proxies.update(get_environ_proxies(base_url))
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    for scheme in ("https://", "http://"):
        session.mount(scheme, OneShot(pool_connections=1, pool_maxsize=connections))
    return session


class OneShot(HTTPAdapter):  # type: ignore[misc]  # requests ships no types
    """Sends once and reads the whole answer before its read timeout has passed as a whole."""

    def send(self, request: Any, stream: bool = False, timeout: Any = None, **options: Any) -> requests.Response:  # noqa: ARG002 -- the body is always read here
        """The answer with its body read.

        Raises:
            Unsent, Dropped, TimedOut: as their names say.
        """
        deadline = time.monotonic() + sum(timeout)
        try:
            response = super().send(request, stream=True, timeout=timeout, **options)
        except requests.ConnectTimeout as exc:
            raise Unsent("no connection in time") from exc
        except requests.Timeout as exc:
            raise TimedOut("no answer in time") from exc
        except requests.ConnectionError as exc:
            raise _broken(exc) from exc
        try:
            response._content = _body(response, deadline)  # noqa: SLF001 -- where requests keeps a body it has read
        finally:
            response.close()
        return response


def _body(response: requests.Response, deadline: float) -> bytes:
    """All of the body; closing before its end drops the connection, so a half-read one is never used again."""
    chunks, size = [], 0
    try:
        for chunk in response.iter_content(_CHUNK_BYTES):
            chunks.append(chunk)
            size += len(chunk)
            if size > ANSWER_BYTES_MAX:
                raise Dropped(f"an answer of more than {ANSWER_BYTES_MAX:,} bytes")
            if time.monotonic() > deadline:
                raise TimedOut("the answer did not end in time")
    except requests.ConnectionError as exc:
        if exc.args and isinstance(exc.args[0], ReadTimeoutError):
            raise TimedOut("the answer stopped half-way") from exc
        raise Dropped("the connection broke during the answer") from exc
    except requests.RequestException as exc:
        raise Dropped("the answer broke off or could not be decoded") from exc
    return b"".join(chunks)


def _broken(exc: requests.ConnectionError) -> Unsent | Dropped:
    cause = exc.args[0] if exc.args else None
    if isinstance(cause, MaxRetryError) and isinstance(cause.reason, NewConnectionError):
        return Unsent(f"no connection: {_name(cause.reason)}")
    return Dropped(f"the connection broke: {_name(cause)}")


def _name(cause: object) -> str:
    """The kind of failure, without addresses or bodies."""
    reason = getattr(cause, "reason", None) or cause
    return type(reason).__name__
