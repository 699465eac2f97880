"""The rate limit per client, and who the client is.

A client is its network address; an IPv6 client its /64, the smallest block a subscriber gets. `X-Forwarded-For` is
believed only from proxies the operator named, read from the right until the first address that is none of them.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from serve.errors import ErrorCode, ToolFailure
from serve.settings import Network
from serve.state import State

WINDOW_S = 60.0
# Clients remembered at once; beyond them the one that called least recently is forgotten.
CLIENTS_MAX = 50_000
IPV6_PREFIX = 64
FORWARDED_HOPS_MAX = 32

Now = Callable[[], float]


def steady_clock() -> Now:
    """Epoch seconds that never step: the wall clock at this call, carried on by the monotonic one."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


class RateLimit:
    """At most `per_minute` calls of a client in any 60 seconds, shared by every process on the state database.

    Args:
        state: where the calls are remembered, under a keyed hash of the client.
        per_minute: at least 1.
        now: epoch seconds that do not step (steady_clock).
    """

    def __init__(self, state: State, per_minute: int, now: Now) -> None:
        self._state = state
        self._per_minute = per_minute
        self._now = now

    def admit(self, client: str) -> None:
        """Count one call of `client`.

        Raises:
            ToolFailure: `rate_limited`, with the true wait; a refused call is not counted.
        """
        now = self._now()
        key = self._state.keyed("client", client)
        with self._state.transaction() as sql:
            row = sql.execute("SELECT calls FROM client WHERE hash = ?", (key,)).fetchone()
            if row is None:
                sql.execute("DELETE FROM client WHERE last <= ?", (now - WINDOW_S,))
                sql.execute(
                    "DELETE FROM client WHERE hash IN (SELECT hash FROM client ORDER BY last"
                    " LIMIT max(0, (SELECT count(*) FROM client) - ?))",
                    (CLIENTS_MAX - 1,),
                )
            calls = live_calls(row[0] if row else b"", now)
            if len(calls) >= self._per_minute:
                raise _limited(calls[-self._per_minute] + WINDOW_S - now, self._per_minute)
            calls.append(now)
            sql.execute("INSERT OR REPLACE INTO client VALUES (?, ?, ?)", (key, calls.tobytes(), now))


def live_calls(stored: bytes, now: float) -> array[float]:
    """The stored times that still count at `now`, in order.

    A time ahead of `now` was written under a clock since set back: it counts as this moment, so nobody waits longer
    than one window.
    """
    times = array("d")
    times.frombytes(stored)
    return array("d", sorted(min(at, now) for at in times if at > now - WINDOW_S))


def client_of(peer: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """The name under which a caller is counted.

    Args:
        peer: address of the connection, None where there is none.
        forwarded: every `X-Forwarded-For` header in the order received.
        trusted: networks of the operator's own proxies.
    """
    address = _address(peer or "")
    if address is None:
        return "unknown"
    hops = [hop for header in forwarded for hop in header.split(",")][-FORWARDED_HOPS_MAX:]
    for hop in reversed(hops):
        if not any(address in network for network in trusted):
            break
        # Whatever a trusted proxy reports that is no address hides the client: the proxy itself is counted.
        before = _address(hop)
        if before is None:
            break
        address = before
    if isinstance(address, IPv6Address):
        return str(ip_network((address, IPV6_PREFIX), strict=False))
    return str(address)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """An address as proxies write it: plain, `a.b.c.d:port`, `[v6]`, `[v6]:port`, IPv4 inside IPv6, with a zone."""
    host = text.strip().strip('"')
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _limited(wait_s: float, per_minute: int) -> ToolFailure:
    seconds = max(1, int(wait_s) + (wait_s > int(wait_s)))
    return ToolFailure(
        ErrorCode.RATE_LIMITED,
        f"This client made {per_minute} calls within a minute, the most allowed. Retry after {seconds} s.",
    )
