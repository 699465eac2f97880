"""The rate limit: true waits, one window for all processes, clients told apart behind proxies only when told so."""

from __future__ import annotations

import re
from array import array
from ipaddress import ip_network

import pytest

from serve import limits
from serve.errors import ErrorCode, ToolFailure
from serve.limits import RateLimit, client_of, live_calls, steady_clock


def refusal(rate: RateLimit, client: str = "a") -> ToolFailure:
    with pytest.raises(ToolFailure) as refused:
        rate.admit(client)
    assert refused.value.code is ErrorCode.RATE_LIMITED
    return refused.value


def test_the_limit_is_reached_and_the_wait_is_true(state, clock):
    rate = RateLimit(state, 3, clock)
    for _ in range(3):
        rate.admit("a")
        clock.forward(10)

    wait = int(re.search(r"Retry after (\d+) s", str(refusal(rate))).group(1))
    assert wait == 30

    clock.forward(wait - 0.5)
    refusal(rate)
    clock.forward(0.5)
    rate.admit("a")
    refusal(rate)


def test_no_sixty_seconds_hold_more_than_the_limit(state, clock):
    rate = RateLimit(state, 5, clock)
    admitted = []
    for _ in range(400):
        try:
            rate.admit("a")
            admitted.append(clock())
        except ToolFailure:
            pass
        clock.forward(1.7)

    assert max(sum(1 for other in admitted if at <= other < at + 60) for at in admitted) == 5


def test_clients_do_not_share_a_limit(state, clock):
    rate = RateLimit(state, 1, clock)
    rate.admit("a")
    rate.admit("b")
    refusal(rate, "a")


def test_a_restart_remembers_the_window(state, clock):
    RateLimit(state, 1, clock).admit("a")

    refusal(RateLimit(state, 1, clock))


def test_a_clock_set_back_makes_nobody_wait_longer_than_a_minute(state, clock):
    rate = RateLimit(state, 1, clock)
    rate.admit("a")
    clock.forward(-86_400)

    wait = int(re.search(r"Retry after (\d+) s", str(refusal(rate))).group(1))
    assert wait <= 60


def test_stored_times_that_left_the_window_do_not_count():
    assert list(live_calls(array("d", [10.0, 39.0, 41.0, 500.0]).tobytes(), 100.0)) == [41.0, 100.0]


def test_the_table_of_clients_is_bounded(state, clock, monkeypatch):
    monkeypatch.setattr(limits, "CLIENTS_MAX", 10)
    rate = RateLimit(state, 1, clock)
    for number in range(50):
        rate.admit(f"client {number}")
        clock.forward(0.1)

    with state.transaction() as sql:
        assert sql.execute("SELECT count(*) FROM client").fetchone() == (10,)
    refusal(rate, "client 49")
    clock.forward(61)
    rate.admit("another")
    with state.transaction() as sql:
        assert sql.execute("SELECT count(*) FROM client").fetchone() == (1,)


def test_no_address_is_stored(state, clock):
    RateLimit(state, 1, clock).admit("192.0.2.77")

    with state.transaction() as sql:
        stored = sql.execute("SELECT hash, calls FROM client").fetchone()
    assert b"192.0.2.77" not in bytes(stored[0])
    assert len(stored[0]) == 32


PROXIES = (ip_network("10.0.0.0/8"), ip_network("::1"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "trusted", "client"),
    [
        ("203.0.113.9", ["198.51.100.1"], (), "203.0.113.9"),
        ("10.0.0.1", ["198.51.100.1"], (), "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], PROXIES, "198.51.100.1"),
        ("203.0.113.9", ["198.51.100.1"], PROXIES, "203.0.113.9"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1"], PROXIES, "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1, 10.0.0.2"], PROXIES, "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.1"], PROXIES, "198.51.100.1"),
        ("10.0.0.1", ["198.51.100.1, nonsense"], PROXIES, "10.0.0.1"),
        ("10.0.0.1", [], PROXIES, "10.0.0.1"),
        ("10.0.0.1", [""], PROXIES, "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1:4711"], PROXIES, "198.51.100.1"),
        ("10.0.0.1", ['"[2001:db8:1:2:3::4]:4711"'], PROXIES, "2001:db8:1:2::/64"),
        ("::1", ["2001:db8:1:2:ffff::9"], PROXIES, "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", [], (), "2001:db8:1:2::/64"),
        ("fe80::1%eth0", [], (), "fe80::/64"),
        ("::ffff:203.0.113.9", [], (), "203.0.113.9"),
        (None, ["198.51.100.1"], PROXIES, "unknown"),
        ("10.0.0.1", [",".join(["10.0.0.3"] * 10_000)], PROXIES, "10.0.0.3"),
    ],
)
def test_the_client_behind_proxies(peer, forwarded, trusted, client):
    assert client_of(peer, forwarded, trusted) == client


def test_the_steady_clock_is_the_wall_clock_and_never_goes_back():
    now = steady_clock()
    times = [now() for _ in range(1_000)]

    assert times == sorted(times)
    assert times[0] > 1_700_000_000
