"""Fixtures of the serving tests: a real state database, a clock, and a service over a stand-in index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serve.limits import RateLimit
from serve.observe import Metrics
from serve.ranking import Ranking
from serve.search import PaperSearch
from serve.session import SessionLimits, Sessions
from serve.state import State, open_state
from serve.tools import Desk
from serve.workers import Workers
from tests.serve.standin import Bench, Clock, StandInEmbedding, StandInIndex, paper


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    opened = open_state(tmp_path / "serve.db", key=None)
    yield opened
    opened.close()


@pytest.fixture
def limits() -> SessionLimits:
    return SessionLimits(ttl_s=3_600, capacity=5, rounds=8, papers=60)


@pytest.fixture
def sessions(state: State, limits: SessionLimits, clock: Clock) -> Sessions:
    return Sessions(state, limits, clock, "digest-one")


@pytest.fixture
def index() -> StandInIndex:
    return StandInIndex([paper(number) for number in range(120)])


@pytest.fixture
def embedding() -> StandInEmbedding:
    return StandInEmbedding()


@pytest.fixture
def make_bench(
    state: State, index: StandInIndex, embedding: StandInEmbedding, limits: SessionLimits, clock: Clock
) -> Iterator[Callable[..., Bench]]:
    made: list[Workers] = []

    def make(
        *,
        strict_hybrid: bool = False,
        output_chars: int = 20_000,
        rate_limit: int = 0,
        deadline_s: float = 5.0,
        threads: int = 2,
        queue: int = 8,
        session_limits: SessionLimits = limits,
    ) -> Bench:
        workers = Workers(threads, queue)
        made.append(workers)
        metrics = Metrics()
        ranking = Ranking(
            index,
            embedding,
            workers,
            metrics,
            strict_hybrid=strict_hybrid,
            index_lost=lambda: index.lost.append(True),
        )
        sessions = Sessions(state, session_limits, clock, "digest-one")
        service = PaperSearch(index, ranking, sessions, output_chars=output_chars, now=clock)
        desk = Desk(service, metrics, RateLimit(state, rate_limit, clock) if rate_limit else None, deadline_s)
        return Bench(desk, ranking, service, index, embedding, workers, metrics, clock)

    yield make
    for workers in made:
        workers.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
