"""The query side against the emulated service: a vector or a reason, always within the deadline."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from bench.emulated_quota import Quota
from bench.emulator import UNSEEMLY, Drip, Emulator, Fault, emulator, refusal
from manifests.embedding.dashscope import DashScopeEmbedder, dashscope_spec, ledger_account
from manifests.ledger import Ledger, Limits
from serve.breaker import PAUSE_FIRST_S, PAUSE_MAX_S, Breaker
from serve.observe import Metrics
from serve.query_embedding import OUTCOMES, REASONS, QueryEmbedder
from serve.state import State, open_state

KEY = "sk-3f9c2d81a7e64b05secret"
DEADLINE_S = 1.5
# Where the deadline is not what is tested, a slow machine may not decide the test.
PATIENT_S = 20.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def service() -> Iterator[Emulator]:
    with emulator(Quota(100_000, 100_000_000), api_key=KEY) as running:
        yield running


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    opened = open_state(tmp_path / "serve.db", key=None)
    yield opened
    opened.close()


def opened(service: Emulator, state: State, folder: Path, **options) -> QueryEmbedder:
    model = options.pop("model", "text-embedding-v4")
    base_url = options.pop("base_url", service.base_url)
    limits = options.pop("limits", Limits(100_000, 100_000_000))
    ledger = Ledger(folder / "ledger.db", ledger_account(base_url, model), limits)
    embedder = DashScopeEmbedder(dashscope_spec(model), api_key=KEY, ledger=ledger, base_url=base_url)
    options = {"deadline_s": PATIENT_S, "cache_rows": 10_000, "metrics": Metrics()} | options
    return QueryEmbedder(embedder, state, endpoint=embedder.endpoint, **options)


@pytest.fixture
def queries(service: Emulator, state: State, tmp_path: Path) -> Iterator[QueryEmbedder]:
    embedder = opened(service, state, tmp_path)
    yield embedder
    embedder.close()


@pytest.fixture
def hasty(service: Emulator, state: State, tmp_path: Path) -> Iterator[QueryEmbedder]:
    embedder = opened(service, state, tmp_path, deadline_s=DEADLINE_S)
    yield embedder
    embedder.close()


def ask(queries: QueryEmbedder, *texts: str) -> list[Any]:
    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(queries.embed(text) for text in texts))

    return asyncio.run(all_at_once())


def ask_one(queries: QueryEmbedder, text: str = "graph attention") -> tuple[object, float]:
    started = time.monotonic()
    (answer,) = ask(queries, text)
    return answer, time.monotonic() - started


def test_a_query_becomes_a_vector_of_the_spec(service, queries):
    answer, _ = ask_one(queries)

    assert isinstance(answer, np.ndarray)
    assert answer.shape == (1024,)
    assert service.entries[0].text_type == "query"


def test_the_second_time_a_query_costs_no_call(service, queries):
    first, _ = ask_one(queries, "graph  attention ")
    second, _ = ask_one(queries, "graph attention")

    assert np.array_equal(first, second)
    assert len(service.entries) == 1
    assert (queries.count("embedded"), queries.count("cached")) == (1, 1)


def test_the_cache_outlives_the_server(service, state, tmp_path):
    first, _ = ask_one(opened(service, state, tmp_path))
    second, _ = ask_one(opened(service, state, tmp_path))

    assert np.array_equal(first, second)
    assert len(service.entries) == 1


def test_a_burst_of_equal_queries_makes_one_call(service, queries):
    service.latency_s = 0.2

    answers = ask(queries, *["graph attention"] * 50)

    assert all(np.array_equal(answer, answers[0]) for answer in answers)
    assert len(service.entries) == 1


def test_different_queries_at_once_get_their_own_vectors(service, queries):
    service.latency_s = 0.05
    texts = [f"query number {number}" for number in range(12)]

    answers = ask(queries, *texts)

    assert all(isinstance(answer, np.ndarray) for answer in answers)
    assert len({answer.tobytes() for answer in answers}) == 12


FAULTS = [
    ("429", refusal(429, "Throttling.RateQuota"), {"busy"}),
    ("429-retry-after", refusal(429, "Throttling.RateQuota", Retry_After="86400"), {"busy"}),
    ("429-worded-as-billing", refusal(429, "Throttling.AllocationQuota", "please top up"), {"busy"}),
    ("500", refusal(500, "InternalError"), {"busy"}),
    ("502-html", Fault(502, b"<html>", {"Content-Type": "text/html"}), {"busy"}),
    ("truncated-json", Fault(200, b'{"output": {'), {"busy"}),
    ("html", Fault(200, b"<html>"), {"busy"}),
    ("null", Fault(200, b"null"), {"busy"}),
    ("short-batch", Fault(mangle="short"), {"busy"}),
    ("duplicate-index", Fault(mangle="duplicate_index"), {"busy"}),
    ("missing-index", Fault(mangle="missing_index"), {"busy"}),
    ("nan", Fault(mangle="nan"), {"busy"}),
    ("infinity", Fault(mangle="infinity"), {"busy"}),
    ("zero", Fault(mangle="zero"), {"busy"}),
    ("wrong-dimension", Fault(mangle="dimension"), {"busy"}),
    ("hang", Fault(delay_s=9.0), {"timeout"}),
    ("reset-before-counting", Fault(drop="before"), {"busy"}),
    ("reset-after-counting", Fault(drop="after"), {"busy"}),
    ("arrearage", refusal(400, "Arrearage"), {"refused"}),
    ("invalid-key", refusal(401, "InvalidApiKey"), {"refused"}),
]


@pytest.mark.parametrize(("fault", "reasons"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_every_fault_gives_its_reason_within_the_deadline_after_one_request(service, hasty, fault, reasons):
    service.will(fault)

    answer, spent_s = ask_one(hasty)

    assert answer in reasons
    assert answer in REASONS
    assert spent_s < DEADLINE_S + 0.5
    assert len(service.entries) + (fault.delay_s > 0) >= 1
    assert len(service.entries) <= 1


def test_a_failure_is_never_kept(service, queries):
    service.will(refusal(500, "InternalError"))
    assert ask_one(queries)[0] == "busy"

    assert isinstance(ask_one(queries)[0], np.ndarray)


@pytest.mark.parametrize("text", ["", " \u200b "], ids=["empty", "invisible"])
def test_a_blank_query_is_refused_without_a_call(service, queries, text):
    assert ask_one(queries, text)[0] == "refused"
    assert service.entries == []


def test_an_over_long_query_is_refused_without_a_call(service, queries):
    assert ask_one(queries, "word " * 9_000)[0] == "refused"
    assert service.entries == []


def test_a_query_refused_by_inspection_does_not_open_the_circuit(service, queries):
    for _ in range(5):
        assert ask_one(queries, UNSEEMLY)[0] == "refused"

    assert queries.circuit == "closed"
    assert isinstance(ask_one(queries)[0], np.ndarray)


def test_no_address_degrades_like_every_other_fault(service, state, tmp_path, monkeypatch):
    queries = opened(service, state, tmp_path, base_url="http://dashscope.invalid/api/v1")
    monkeypatch.setattr(
        "urllib3.util.connection.socket.getaddrinfo",
        lambda *_, **__: (_ for _ in ()).throw(socket.gaierror(socket.EAI_NONAME, "unknown")),
    )

    async def one() -> object:
        return await queries.embed("graph attention")

    # the loop must be made before the resolver is broken for it too
    assert asyncio.run(one()) == "busy"


def test_a_tls_failure_degrades_like_every_other_fault(service, state, tmp_path):
    queries = opened(service, state, tmp_path, base_url=service.base_url.replace("http:", "https:"))

    assert ask_one(queries)[0] == "busy"


def test_no_room_in_the_ledger_is_said_to_be_the_quota_and_sends_nothing(service, state, tmp_path):
    queries = opened(service, state, tmp_path, limits=Limits(2, 100_000))
    answers = [ask_one(queries, f"query {number}") for number in range(4)]

    assert answers[-1][0] == "quota"
    assert answers[-1][1] < DEADLINE_S
    assert len(service.entries) <= 2
    assert queries.circuit == "closed"


def test_a_provider_that_hangs_costs_one_deadline_and_then_milliseconds(service, hasty):
    service.always(Fault(delay_s=30.0))
    first, first_s = ask_one(hasty, "one")
    later = [ask_one(hasty, f"later {number}") for number in range(20)]

    assert first == "timeout"
    assert first_s <= DEADLINE_S + 0.2
    assert {reason for reason, _ in later} == {"circuit_open"}
    assert max(spent_s for _, spent_s in later) < 0.1


@pytest.mark.parametrize("drip", get_args(Drip))
def test_a_provider_that_drips_is_a_timeout_that_opens_the_circuit_and_holds_no_call(service, state, tmp_path, drip):
    clock = Clock()
    queries = opened(service, state, tmp_path, clock=clock, deadline_s=DEADLINE_S)
    service.always(Fault(drip=drip))

    answers = ask(queries, *[f"query {number}" for number in range(20)])

    assert set(answers) <= {"timeout", "busy"}
    assert queries.circuit == "open"
    service.always(None)
    clock.now += PAUSE_MAX_S
    assert isinstance(ask_one(queries, "back again")[0], np.ndarray)
    assert queries.state()["in_flight"] == 0


def test_a_cached_query_is_answered_while_the_circuit_is_open(service, queries, hasty):
    kept, _ = ask_one(queries, "kept")
    service.always(Fault(delay_s=30.0))
    ask_one(hasty, "hangs")
    assert hasty.circuit == "open"

    assert np.array_equal(ask_one(hasty, "kept")[0], kept)


def test_a_recovered_provider_is_found_again_by_itself(service, state, tmp_path):
    clock = Clock()
    queries = opened(service, state, tmp_path, clock=clock, deadline_s=DEADLINE_S)
    service.always(Fault(delay_s=30.0))
    ask_one(queries, "one")
    service.always(None)
    assert ask_one(queries, "two")[0] == "circuit_open"

    answers: list[Any] = []
    while not any(isinstance(answer, np.ndarray) for answer in answers) and len(answers) < 10:
        clock.now += PAUSE_MAX_S  # one is enough on a machine that is not overloaded
        answers.append(ask_one(queries, "two")[0])

    assert isinstance(answers[-1], np.ndarray)
    assert queries.circuit == "closed"


def test_the_probe_of_a_provider_still_hanging_costs_half_a_second(service, state, tmp_path):
    clock = Clock()
    queries = opened(service, state, tmp_path, clock=clock, deadline_s=DEADLINE_S)
    service.always(Fault(delay_s=30.0))
    ask_one(queries, "one")
    clock.now += PAUSE_FIRST_S

    probe, probe_s = ask_one(queries, "two")
    after, after_s = ask_one(queries, "three")

    assert (probe, after) == ("circuit_open", "circuit_open")
    assert probe_s < 0.9
    assert after_s < 0.1


def test_three_quick_failures_open_the_circuit(service, queries):
    service.always(refusal(500, "InternalError"))

    reasons = [ask_one(queries, f"query {number}")[0] for number in range(5)]

    assert reasons == ["busy", "busy", "busy", "circuit_open", "circuit_open"]
    assert len(service.entries) == 3


def test_a_change_of_model_of_the_same_dimension_reuses_no_vector(service, state, tmp_path):
    four, _ = ask_one(opened(service, state, tmp_path, model="text-embedding-v4"))
    three, _ = ask_one(opened(service, state, tmp_path, model="text-embedding-v3"))

    assert not np.array_equal(four, three)
    assert len(service.entries) == 2


def test_two_endpoints_share_no_vector(service, state, tmp_path):
    with emulator(api_key=KEY) as other:
        ask_one(opened(service, state, tmp_path))
        ask_one(opened(other, state, tmp_path))

        assert len(other.entries) == 1


def test_the_cache_keeps_no_more_than_it_may(service, state, tmp_path):
    queries = opened(service, state, tmp_path, cache_rows=3)
    for number in range(6):
        ask_one(queries, f"query {number}")

    with state.transaction() as sql:
        assert sql.execute("SELECT count(*) FROM query_vector").fetchone() == (3,)


@pytest.mark.parametrize("blob", [b"", b"abc", b"\0" * 4096, np.full(1024, np.nan, "<f4").tobytes()])
def test_a_damaged_cache_row_counts_as_absent(service, state, queries, blob):
    expected, _ = ask_one(queries)
    with state.transaction() as sql:
        sql.execute("UPDATE query_vector SET vector = ?", (blob,))

    assert np.array_equal(ask_one(queries)[0], expected)
    assert len(service.entries) == 2


def test_a_state_database_that_fails_costs_the_cache_and_not_the_answer(service, state, queries):
    state._connection.execute("PRAGMA query_only = 1")

    assert isinstance(ask_one(queries)[0], np.ndarray)


def test_too_many_calls_at_once_are_told_busy_at_once(service, hasty):
    service.always(Fault(delay_s=0.8))

    answers = ask(hasty, *[f"query {number}" for number in range(40)])

    assert sum(isinstance(answer, np.ndarray) for answer in answers) <= 16
    assert {answer for answer in answers if isinstance(answer, str)} <= {"busy", "timeout", "circuit_open"}
    assert len(service.entries) <= 16


def test_the_condition_names_circuit_quota_and_outcomes_and_no_query(service, queries):
    ask(queries, "zebrafish")

    state = queries.state()

    assert state["circuit"] == "closed"
    assert state["provider"] == "dashscope"
    assert state["quota"].startswith("1/100,000 requests")
    assert state["queries"] == {outcome: int(outcome == "embedded") for outcome in OUTCOMES}
    assert "zebrafish" not in str(state)


def test_the_metrics_count_every_query_once_by_its_outcome(service, state, tmp_path):
    metrics = Metrics()
    queries = opened(service, state, tmp_path, metrics=metrics)

    ask_one(queries, "zebrafish")
    ask_one(queries, "zebrafish")
    queries.close()

    page = metrics.page().decode()
    counted = {outcome: f'serve_queries_total{{outcome="{outcome}"}} ' for outcome in OUTCOMES}
    assert all(line in page for line in counted.values())
    assert counted["cached"] + "1.0" in page
    assert counted["embedded"] + "1.0" in page
    assert counted["timeout"] + "0.0" in page


def test_neither_key_nor_query_is_in_any_log_or_file(service, state, queries, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    for row in FAULTS[:15]:
        service.will(row[1])
        ask(queries, "zebrafish whisperings")
    ask(queries, "zebrafish whisperings again")
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

    for secret in (KEY, "zebrafish", "whisperings"):
        assert secret not in caplog.text
        assert secret.encode() not in stored


def test_the_breaker_doubles_its_pause_up_to_a_minute_and_forgets_it_on_success():
    clock = Clock()
    breaker = Breaker(clock)
    breaker.failed(weight=3, probe=False)
    pauses = []
    for _ in range(7):
        started = clock.now
        while breaker.ask() != "probe":
            clock.now += 0.5
        pauses.append(clock.now - started)
        breaker.failed(weight=1, probe=True)
    assert pauses == [2, 4, 8, 16, 32, PAUSE_MAX_S, PAUSE_MAX_S]
    clock.now += PAUSE_MAX_S
    assert breaker.ask() == "probe"
    breaker.succeeded()

    breaker.failed(weight=3, probe=False)
    clock.now += PAUSE_FIRST_S
    assert breaker.ask() == "probe"


def test_only_one_probe_is_under_way_and_an_undecided_one_gives_its_turn_back():
    clock = Clock()
    breaker = Breaker(clock)
    breaker.failed(weight=3, probe=False)
    clock.now += PAUSE_FIRST_S

    assert [breaker.ask(), breaker.ask()] == ["probe", "none"]
    breaker.undecided(probe=True)
    assert breaker.ask() == "probe"
    assert breaker.circuit == "half_open"
