"""The ledger of provider minutes: never above a limit in any window, yet nearly all of it used."""

from __future__ import annotations

import heapq
import random
import sqlite3
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.errors import QuotaExhausted
from manifests.ledger import Ledger, Limits, Reservation
from tests.contract.ledger_stand import ACCOUNT, Clock, Provider, open_ledger


def simulate(
    ledger: Ledger,
    clock: Clock,
    provider: Provider,
    *,
    seconds: float,
    latency: Callable[[], float],
    batch: Callable[[], tuple[int, int]],
    workers: int = 16,
    lost: Callable[[], bool] = lambda: False,
) -> None:
    """Keep `workers` requests in flight; `batch` gives estimate and true usage of the next one."""
    draw = random.Random(7)
    flying: list[tuple[float, int, Reservation, int]] = []
    end, sent = clock.now + seconds, 0
    while clock.now < end:
        while flying and flying[0][0] <= clock.now:
            _, _, reservation, usage = heapq.heappop(flying)
            if not lost():
                ledger.settle(reservation, tokens=usage)
        if len(flying) >= workers:
            clock.now = flying[0][0]
            continue
        estimate, usage = batch()
        outcome = ledger._admit(estimate, query=False)
        if isinstance(outcome, Reservation):
            sent += 1
            answer = clock.now + latency()
            provider.counted.append((draw.uniform(clock.now, answer), usage))
            heapq.heappush(flying, (answer, sent, outcome, usage))
        else:
            clock.now = min([clock.now + outcome + 1e-6, *(entry[0] for entry in flying[:1])])


@pytest.mark.parametrize(
    ("requests", "tokens", "batch_tokens"),
    [(600, 300_000, 1_170), (120, 1_000_000, 2_300), (1_800, 1_200_000, 2_300), (600, 100_000, 512)],
    ids=["balanced", "requests-bind", "large", "tokens-bind"],
)
def test_at_least_98_percent_is_used_and_no_window_is_above_a_limit(tmp_path, requests, tokens, batch_tokens):
    clock, provider, draw = Clock(), Provider(), random.Random(3)
    ledger = open_ledger(tmp_path / "ledger.db", clock, requests, tokens)

    def batch() -> tuple[int, int]:
        estimate = int(draw.gauss(batch_tokens, batch_tokens * 0.1))
        return estimate, int(estimate * draw.uniform(0.95, 1.05))

    simulate(ledger, clock, provider, seconds=301, latency=lambda: 0.2 * draw.lognormvariate(0, 0.2), batch=batch)

    assert provider.peak(60.0) <= (requests, 10**9)
    assert provider.peak(60.0)[1] <= tokens
    assert provider.share(1000.0, 5, ledger.limits) >= 0.98


def test_time_lost_by_a_stall_in_the_first_minute_is_made_up_for(tmp_path):
    clock, provider = Clock(), Provider()
    ledger = open_ledger(tmp_path / "ledger.db", clock, 600, 300_000)

    simulate(
        ledger,
        clock,
        provider,
        seconds=181,
        latency=lambda: 4.0 if 1_010 <= clock.now < 1_014 else 0.2,
        batch=lambda: (1_100, 1_100),
        workers=7,
    )

    assert provider.peak(60.0)[1] <= 300_000
    assert provider.peak(1.0)[0] <= 12
    assert provider.share(1000.0, 3, ledger.limits) >= 0.98


def test_no_second_holds_a_burst(tmp_path):
    clock, provider = Clock(), Provider()
    ledger = open_ledger(tmp_path / "ledger.db", clock, 600, 10_000_000)

    simulate(ledger, clock, provider, seconds=130, latency=lambda: 0.1, batch=lambda: (100, 100))

    assert provider.peak(1.0)[0] <= 14
    first_second = [instant for instant, _ in provider.counted if instant < 1001.0]
    assert len(first_second) <= 7


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    requests=st.integers(3, 90),
    tokens=st.integers(2_000, 40_000),
    latency_s=st.sampled_from([0.01, 0.2, 3.0]),
    lost_share=st.sampled_from([0.0, 0.05]),
    restarts=st.integers(1, 3),
)
def test_no_window_is_ever_above_a_limit_whatever_gets_lost_or_restarted(
    tmp_path_factory, seed, requests, tokens, latency_s, lost_share, restarts
):
    clock, provider, draw = Clock(), Provider(), random.Random(seed)
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"

    def batch() -> tuple[int, int]:
        estimate = draw.randint(50, 900)
        return estimate, int(estimate * draw.uniform(0.9, 1.08))

    for _ in range(restarts):
        # Opened anew without settling what flew: a kill. The answers of those never come.
        simulate(
            open_ledger(path, clock, requests, tokens),
            clock,
            provider,
            seconds=draw.uniform(20, 90),
            latency=lambda: latency_s * draw.uniform(0.5, 2),
            batch=batch,
            lost=lambda: draw.random() < lost_share,
        )

    peak = provider.peak(60.0)
    assert peak[0] <= requests
    assert peak[1] <= tokens


def test_a_request_counts_until_a_window_after_its_answer(tmp_path):
    clock = Clock()
    ledger = open_ledger(tmp_path / "ledger.db", clock, requests=1)
    reservation = ledger.reserve(100, timeout_s=0)
    clock.now += 5.0
    ledger.settle(reservation, tokens=90)

    clock.now += 59.9
    with pytest.raises(QuotaExhausted) as caught:
        ledger.reserve(100, timeout_s=0)
    clock.now += caught.value.wait_s + 1e-6

    assert ledger.reserve(100, timeout_s=0)


def test_a_request_whose_outcome_nobody_learned_counts_through_its_longest_flight(tmp_path):
    clock = Clock()
    path = tmp_path / "ledger.db"
    open_ledger(path, clock, requests=1, in_flight_s=45.0).reserve(100, timeout_s=0)

    clock.now += 104.0
    again = open_ledger(path, clock, requests=1)

    assert again.usage().requests == 1
    clock.now += 1.1
    assert again.usage().requests == 0


def test_an_answer_after_the_longest_flight_still_counts_a_whole_window(tmp_path):
    clock = Clock()
    ledger = open_ledger(tmp_path / "ledger.db", clock)
    late = ledger.reserve(100, timeout_s=0)
    clock.now += 300.0
    assert ledger.usage().requests == 0

    ledger.settle(late, tokens=100)

    assert ledger.usage().requests == 1


def test_a_restart_of_the_machine_forgets_nothing(tmp_path, monkeypatch):
    path = tmp_path / "ledger.db"
    before = open_ledger(path, Clock(90_000.0), requests=1)
    before._boot = "boot-1"
    before.settle(before.reserve(100, timeout_s=0), tokens=100)

    clock = Clock(12.0)
    after = open_ledger(path, clock, requests=1)
    after._boot = "boot-2"

    assert after.usage().requests == 1
    with pytest.raises(QuotaExhausted):
        after.reserve(100, timeout_s=0)
    clock.now += 59.0
    assert after.usage().requests == 1
    clock.now += 1.1
    assert after.usage().requests == 0


def test_usage_corrects_the_estimates_in_both_directions(tmp_path):
    clock = Clock()
    ledger = open_ledger(tmp_path / "ledger.db", clock)
    first = ledger.reserve(1_000, timeout_s=0)
    ledger.settle(first, tokens=2_000)
    clock.now += 5.0
    raised = ledger.reserve(1_000, timeout_s=0)
    assert raised.tokens > 2_000
    for _ in range(3_000):
        ledger.settle(raised, tokens=500)
    clock.now += 5.0

    assert 500 < ledger.reserve(1_000, timeout_s=0).tokens < 700
    assert ledger.usage().requests == 3


def test_reported_usage_replaces_the_estimate(tmp_path):
    clock = Clock()
    ledger = open_ledger(tmp_path / "ledger.db", clock)
    reservation = ledger.reserve(1_000, timeout_s=0)
    assert ledger.usage().tokens > 1_000

    ledger.settle(reservation, tokens=800)

    assert ledger.usage().tokens == 800


@pytest.mark.parametrize("tokens", [10**12, 2**63, 50_000_000])
@pytest.mark.parametrize("query", [False, True], ids=["document", "query"])
def test_a_usage_above_the_quota_outlives_no_minute(tmp_path, tokens, query):
    clock = Clock()
    ledger = open_ledger(tmp_path / "ledger.db", clock)
    ledger.settle(ledger.reserve(20, timeout_s=0, query=query), tokens=tokens)
    clock.now += 60.1

    started = clock.now
    for _ in range(20):
        ledger.settle(ledger.reserve(20, timeout_s=2, query=query), tokens=20)

    assert clock.now - started < 5


def test_a_ledger_that_an_older_version_left_with_an_absurd_usage_is_usable_again_within_a_minute(tmp_path):
    clock = Clock()
    ledger = open_ledger(tmp_path / "ledger.db", clock)
    ledger.settle(ledger.reserve(20, timeout_s=0), tokens=20)
    ledger._db.execute("UPDATE account SET token_tat = 1e9, request_tat = 1e9, query_tat = 1e9, ratio = 1e9")

    started = clock.now
    for query in (False, True) * 5:
        ledger.settle(ledger.reserve(20, timeout_s=90, query=query), tokens=20)

    assert clock.now - started < 65


def test_an_answer_without_usage_keeps_the_estimate(tmp_path):
    ledger = open_ledger(tmp_path / "ledger.db", Clock())
    reservation = ledger.reserve(1_000, timeout_s=0)

    ledger.settle(reservation, tokens=None)

    assert ledger.usage().tokens == reservation.tokens


def test_a_request_that_never_left_gives_its_room_back(tmp_path):
    ledger = open_ledger(tmp_path / "ledger.db", Clock())
    ledger.forget(ledger.reserve(1_000, timeout_s=0))

    assert (ledger.usage().requests, ledger.usage().tokens) == (0, 0)


def test_a_throttled_request_holds_every_program_and_doubles_until_one_succeeds(tmp_path):
    clock = Clock()
    one, other = (open_ledger(tmp_path / "ledger.db", clock) for _ in range(2))
    holds = []
    for _ in range(7):
        clock.now += other.usage().hold_s + 1.0
        one.throttle(one.reserve(100, timeout_s=5), retry_after_s=None)
        holds.append(other.usage().hold_s)

    assert holds == pytest.approx([2, 4, 8, 16, 32, 60, 60])
    clock.now += 61.0
    one.settle(one.reserve(100, timeout_s=5), tokens=100)
    clock.now += 1.0
    one.throttle(one.reserve(100, timeout_s=5), retry_after_s=None)
    assert other.usage().hold_s == pytest.approx(2)


def test_a_restart_of_the_machine_is_seen_even_if_it_has_run_for_longer_than_before(tmp_path):
    path = tmp_path / "ledger.db"
    before = open_ledger(path, Clock(100.0), requests=1)
    before._boot = "boot-1"
    before.settle(before.reserve(100, timeout_s=0), tokens=100)

    after = open_ledger(path, Clock(170.0), requests=1)
    after._boot = "boot-2"

    assert after.usage().requests == 1


@pytest.mark.parametrize(("asked", "held"), [(3.0, 3.0), (86_400.0, 60.0)])
def test_a_hold_lasts_as_long_as_the_provider_asks_but_no_more_than_a_minute(tmp_path, asked, held):
    ledger = open_ledger(tmp_path / "ledger.db", Clock())

    ledger.throttle(ledger.reserve(100, timeout_s=0), retry_after_s=asked)

    assert ledger.usage().hold_s == pytest.approx(held)
    with pytest.raises(QuotaExhausted):
        ledger.reserve(100, timeout_s=held - 1, query=True)


def test_documents_leave_the_reserve_to_queries(tmp_path):
    clock = Clock()
    ledger = open_ledger(tmp_path / "ledger.db", clock, requests=10, query_reserve=0.2)
    for _ in range(8):
        ledger.reserve(10, timeout_s=60)

    with pytest.raises(QuotaExhausted):
        ledger.reserve(10, timeout_s=10)
    ledger.reserve(10, timeout_s=0, query=True)
    ledger.reserve(10, timeout_s=6, query=True)
    with pytest.raises(QuotaExhausted):
        ledger.reserve(10, timeout_s=6, query=True)


def test_ten_queries_after_a_pause_go_at_once_where_ten_a_second_are_allowed(tmp_path):
    ledger = open_ledger(tmp_path / "ledger.db", Clock(), requests=600)

    for _ in range(10):
        ledger.reserve(10, timeout_s=0, query=True)
    ledger.reserve(10, timeout_s=0, query=True)
    with pytest.raises(QuotaExhausted):
        ledger.reserve(10, timeout_s=0, query=True)


def test_a_build_that_starts_beside_queries_still_starts_gently(tmp_path):
    clock = Clock()
    ledger = open_ledger(tmp_path / "ledger.db", clock, requests=600)
    for _ in range(30):
        ledger.reserve(10, timeout_s=1, query=True)
        clock.now += 1.0
    started, sent = clock.now, 0
    while clock.now < started + 1.0:
        ledger.reserve(10, timeout_s=5)
        sent += 1

    assert sent <= 7


def test_a_query_does_not_wait_behind_a_waiting_document(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", ACCOUNT, Limits(2, 10_000, 0.5), window_s=2.0)
    ledger.reserve(10, timeout_s=0)
    refusals: list[QuotaExhausted] = []

    def wait() -> None:
        try:
            ledger.reserve(10, timeout_s=1_000)
        except QuotaExhausted as exc:
            refusals.append(exc)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    started = time.monotonic()
    ledger.reserve(10, timeout_s=60, query=True)
    spent = time.monotonic() - started
    ledger.stop()
    waiting.join(timeout=5)

    assert not waiting.is_alive()
    assert len(refusals) == 1
    assert spent < 3  # the pacer's second, not the document's minute


def test_usage_is_read_while_another_program_writes(tmp_path):
    path, clock = tmp_path / "ledger.db", Clock()
    ledger = open_ledger(path, clock)
    ledger.reserve(10, timeout_s=0)
    ledger._db.execute("PRAGMA busy_timeout = 0")

    with sqlite3.connect(path, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        used = ledger.usage()
        writer.execute("ROLLBACK")

    assert used.requests == 1
    assert not ledger._db.in_transaction


def test_a_request_larger_than_the_limit_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(QuotaExhausted, match=r"5,000 tokens can never fit under 4,000"):
        open_ledger(tmp_path / "ledger.db", Clock(), tokens=4_000).reserve(5_000, timeout_s=1_000)


def test_a_request_within_the_limit_fits_even_if_its_estimate_is_stretched(tmp_path):
    assert open_ledger(tmp_path / "ledger.db", Clock(), tokens=4_000).reserve(3_900, timeout_s=0).tokens == 4_000


@pytest.mark.parametrize("limits", [(0, 100, 0.0), (100, 0, 0.0), (1, 1, 1.0), (1, 1, -0.1)])
def test_limits_without_room_are_refused(limits):
    with pytest.raises(ValueError, match="expected at least 1"):
        Limits(*limits)


def test_accounts_do_not_share_room(tmp_path):
    clock = Clock()
    path = tmp_path / "ledger.db"
    one = Ledger(path, "a|v4", Limits(1, 1_000), clock=clock, sleep=clock.sleep)
    other = Ledger(path, "a|v3", Limits(1, 1_000), clock=clock, sleep=clock.sleep)

    assert one.reserve(10, timeout_s=0)
    assert other.reserve(10, timeout_s=0)
