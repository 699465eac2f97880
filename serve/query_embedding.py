"""A query becomes a vector or a reason, within one short deadline whatever the provider does.

cache -> equal queries in flight -> circuit breaker -> provider. Only a vector that passed the embedder's checks is
kept; a failure never is. No query text is logged or stored: the cache key is a keyed hash.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from manifests.embedding import check_vectors
from manifests.embedding.spec import Embedder, EmbeddingSpec, Vectors
from manifests.errors import ProviderBusy, ProviderRefused, QuotaExhausted, TextRefused
from manifests.texts import EMBED_TEXT_VERSION, collapsed
from serve.breaker import WEIGHT_OPEN, Breaker, Circuit
from serve.errors import StateFailed
from serve.observe import Metrics
from serve.state import State

log = logging.getLogger(__name__)

T = TypeVar("T")
Reason = Literal["timeout", "busy", "quota", "refused", "circuit_open"]
REASONS: tuple[Reason, ...] = get_args(Reason)
OUTCOMES = ("cached", "embedded", *REASONS)

# The provider gets this share of the deadline, so that its timeout is known before the caller's deadline.
CALL_SHARE = 0.9
# How long a query waits for the probe of a provider that was down.
PROBE_PATIENCE_S = 0.5
CALLS_MAX = 16
LOOKUPS_MAX = 2


@dataclass(frozen=True)
class _Outcome:
    """What became of a query: `vector` with the name `cached` or `embedded`, or no vector and the reason."""

    name: Any
    vector: Vectors | None = None


@dataclass(frozen=True)
class _Call:
    """A query on its way to the provider: how long one may wait for it, and what to say after that."""

    outcome: Future[_Outcome]
    patience_s: float
    late: Reason


class QueryEmbedder:
    """Embeds queries for async callers; the calls run in threads of its own.

    `deadline_s` bounds each `embed`. `cache_rows` 0 keeps nothing. `endpoint` keeps the vectors of two services
    with the same spec apart.
    """

    def __init__(
        self,
        embedder: Embedder,
        state: State,
        metrics: Metrics,
        *,
        deadline_s: float,
        cache_rows: int,
        endpoint: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._embedder = embedder
        self._state = state
        self._metrics = metrics
        self._deadline_s = deadline_s
        self._cache_rows = cache_rows
        self._identity = (embedder.spec.fingerprint, str(EMBED_TEXT_VERSION), endpoint)
        self._breaker = Breaker(clock)
        self._lookups = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="query-cache")
        self._calls = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="query-embedding")
        self._lock = threading.Lock()
        self._flights: dict[bytes, Future[_Outcome | _Call]] = {}
        self._calling = 0
        self._outcomes: Counter[str] = Counter()
        for outcome in OUTCOMES:
            metrics.queries.labels(outcome)  # told as 0 until there is one

    @property
    def spec(self) -> EmbeddingSpec:
        """What the vectors are made with."""
        return self._embedder.spec

    async def embed(self, query: str) -> Vectors | Reason:
        """A vector of shape (dimension,), or why there is none, within the deadline. Equal queries share one call."""
        until = time.monotonic() + self._deadline_s
        step = await _wait(self._flight(collapsed(query)), self._deadline_s)
        if isinstance(step, _Call):
            left = max(0.0, until - time.monotonic())
            outcome = await _wait(step.outcome, min(left, step.patience_s)) or _Outcome(step.late)
        else:
            outcome = step or _Outcome("timeout")
        with self._lock:
            self._outcomes[outcome.name] += 1
        self._metrics.queries.labels(outcome.name).inc()
        return outcome.name if outcome.vector is None else outcome.vector

    @property
    def circuit(self) -> Circuit:
        """Whether the provider is being asked: `closed` is yes."""
        return self._breaker.circuit

    def count(self, outcome: str) -> int:
        """Queries since the start that ended as `outcome`, one of `OUTCOMES`."""
        return self._outcomes[outcome]

    def state(self) -> dict[str, Any]:
        """The provider as this server sees it, for /readyz; holds no query."""
        with self._lock:
            calling = self._calling
        return {
            "provider": self.spec.provider,
            "circuit": self.circuit,
            "in_flight": calling,
            "quota": self._embedder.usage_note(),
            "queries": {outcome: self.count(outcome) for outcome in OUTCOMES},
        }

    def close(self) -> None:
        """Take no more queries; calls under way end by their own timeouts."""
        self._embedder.stop()
        self._lookups.shutdown(wait=False, cancel_futures=True)
        self._calls.shutdown(wait=False, cancel_futures=True)

    def _flight(self, text: str) -> Future[_Outcome | _Call]:
        """The lookup of `text`, shared by everyone who asks before its call has ended."""
        key = self._state.keyed("query-vector", *self._identity, text)
        with self._lock:
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = self._lookups.submit(self._look_up, key, text)
        return flight

    def _look_up(self, key: bytes, text: str) -> _Outcome | _Call:
        """The kept vector, a refusal, or the call that now is under way and lands the flight when it ends."""
        step: _Outcome | _Call | None = None
        try:
            kept = self._kept(key)
            step = self._start(key, text) if kept is None else _Outcome("cached", kept)
            return step
        finally:
            if not isinstance(step, _Call):
                self._land(key)

    def _start(self, key: bytes, text: str) -> _Outcome | _Call:
        """Send `text` to the provider, unless too many calls are under way or the circuit is open."""
        with self._lock:
            if self._calling >= CALLS_MAX:
                return _Outcome("busy")
            permission = self._breaker.ask()
            if permission == "none":
                return _Outcome("circuit_open")
            self._calling += 1
        probe = permission == "probe"
        outcome = self._calls.submit(self._ask, key, text, probe=probe)
        patience_s = min(PROBE_PATIENCE_S, self._deadline_s) if probe else self._deadline_s
        return _Call(outcome, patience_s, "circuit_open" if probe else "timeout")

    def _ask(self, key: bytes, text: str, *, probe: bool) -> _Outcome:
        """One call to the provider, in a thread; what it shows of the provider goes to the breaker."""
        decided = False
        try:
            vector = self._embedder.embed_query(text, timeout_s=self._deadline_s * CALL_SHARE)
            decided = True
            self._breaker.succeeded()
            self._keep(key, vector)
            return _Outcome("embedded", vector)
        except (QuotaExhausted, TextRefused) as exc:  # nothing was learned of the provider
            return _failure("quota" if isinstance(exc, QuotaExhausted) else "refused", exc)
        except (ProviderBusy, ProviderRefused) as exc:
            decided = True
            reason: Reason = "refused" if isinstance(exc, ProviderRefused) else _busy_reason(exc)
            # A timeout costs a user the whole deadline, so one is enough to open the circuit.
            self._breaker.failed(weight=WEIGHT_OPEN if reason == "timeout" else 1, probe=probe)
            return _failure(reason, exc)
        finally:
            if not decided:
                self._breaker.undecided(probe=probe)
            with self._lock:
                self._calling -= 1
            self._land(key)

    def _land(self, key: bytes) -> None:
        with self._lock:
            self._flights.pop(key, None)

    def _kept(self, key: bytes) -> Vectors | None:
        """The kept vector. What cannot be read, or is no vector of the spec, counts as absent."""
        if not self._cache_rows:
            return None
        with contextlib.suppress(StateFailed, ValueError):
            blob = self._state.vector(key, rows_max=self._cache_rows)
            if blob is not None:
                vectors = check_vectors([np.frombuffer(blob, "<f4")], 1, self._embedder.spec.dimension)
                kept: Vectors = vectors[0]
                return kept
        return None

    def _keep(self, key: bytes, vector: Vectors) -> None:
        if self._cache_rows:
            with contextlib.suppress(StateFailed):  # logged there; the answer is worth more than the cache
                self._state.keep_vector(key, vector.astype("<f4").tobytes(), rows_max=self._cache_rows)


def _failure(reason: Reason, cause: Exception) -> _Outcome:
    log.warning("a query could not be embedded: %s (%s)", reason, cause)
    return _Outcome(reason)


def _busy_reason(exc: ProviderBusy) -> Reason:
    return "timeout" if exc.reason == "timeout" else "busy"


async def _wait(future: Future[T], timeout_s: float) -> T | None:
    """The result, or None after `timeout_s`. The future is left alone: others may wait for it too."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def wake(_: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed by the time a late call ends
            loop.call_soon_threadsafe(ended.set)

    future.add_done_callback(wake)
    try:
        await asyncio.wait_for(ended.wait(), timeout_s)
    except TimeoutError:
        return None
    return future.result()
