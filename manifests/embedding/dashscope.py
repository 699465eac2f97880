"""The only speaker to DashScope: `text-embedding-v4` and its kin through the SDK, within the ledger's limits.

What the service says becomes busy (the same call may succeed later) or refused, by status and code alone: messages
change and mislead. An answer of 200 is believed only after its count, order, dimension and numbers were checked.
Every request is reserved in the ledger before it leaves; the API key appears in no message, log or file.
"""

from __future__ import annotations

import functools
import logging
import math
import sqlite3
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from manifests.embedding import dashscope_answer as answer
from manifests.embedding.spec import EmbeddingSpec, Vectors
from manifests.errors import ContractError, InputRefused, ProviderBusy, ProviderRefused, TextRefused
from manifests.ledger import Ledger, Limits, Reservation
from manifests.visible import visible

log = logging.getLogger(__name__)

BASE_URL = "https://dashscope.aliyuncs.com/api/v1"
MODEL = "text-embedding-v4"
DIMENSION = 1_024
CONNECT_TIMEOUT_S = 3.05
READ_TIMEOUT_S = 20.0
DOCUMENT_ROOM_S = 600.0
QUERY_ROOM_S = 0.3
CONCURRENCY_MAX = 48
LATENCY_S = 1.5
# Keep the sum of a batch within what the documentation of Dec 2025 gives a whole request.
BATCH_TOKENS_MAX = 8_192
BATCH_TOKENS_MIN = 512
# A batch of this share of the minute's tokens leaves little of the minute unused at its end.
BATCH_SHARE = 1 / 256
COUNTS_KEPT = 20_000
BOUGHT_KEPT = 1_000

# What the SDK raises for an answer that is not the JSON object it expects; before one has come it is a bug.
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class ModelCaps(NamedTuple):
    """What one request to a model may hold, as documented in 2026; `dimensions` empty where unknown."""

    batch_texts: int
    text_tokens: int
    dimensions: frozenset[int]


_SMALL = frozenset({64, 128, 256, 512, 768, 1_024})
CAPS = {
    "text-embedding-v1": ModelCaps(25, 2_048, frozenset({1_536})),
    "text-embedding-v2": ModelCaps(25, 2_048, frozenset({1_536})),
    "text-embedding-v3": ModelCaps(10, 8_192, _SMALL),
    "text-embedding-v4": ModelCaps(10, 8_192, _SMALL | {1_536, 2_048}),
}
CAPS_UNKNOWN = ModelCaps(10, 8_192, frozenset())


def dashscope_spec(model: str = MODEL, dimension: int = DIMENSION) -> EmbeddingSpec:
    """The spec of a DashScope model.

    Raises:
        InputRefused: the model does not give vectors of this dimension.
    """
    dimensions = CAPS.get(model, CAPS_UNKNOWN).dimensions
    if dimension < 1 or (dimensions and dimension not in dimensions):
        raise InputRefused(
            f"{model} gives no vectors of {dimension} numbers; expected one of {sorted(dimensions) or 'at least 1'}"
        )
    return EmbeddingSpec(
        provider="dashscope",
        model=model,
        dimension=dimension,
        document_text_type="document",
        query_text_type="query",
        weights_sha256=None,
    )


def ledger_account(base_url: str, model: str) -> str:
    """The ledger's name of an account: endpoint and model. The key is no part of it; see ledger.py."""
    return f"dashscope|{base_url.rstrip('/')}|{model}"


class DashScopeEmbedder:
    """One DashScope model; see `Embedder`. Opening it imports the SDK (a second of CPU) but sends nothing.

    Attributes:
        ledger: the provider minutes every request of this embedder is counted in.
        endpoint: the base URL; vectors of two endpoints are kept apart in the query cache.
    """

    def __init__(
        self,
        spec: EmbeddingSpec,
        *,
        api_key: str,
        ledger: Ledger,
        base_url: str = BASE_URL,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        """Prepare calls of `spec` at `base_url`, each read within `read_timeout_s`.

        Raises:
            ProviderRefused: no usable key.
            InputRefused: a base URL that is none, or certificates that are not there.
        """
        self.spec = spec
        self.ledger = ledger
        self.endpoint = _endpoint(base_url)
        self._caps = CAPS.get(spec.model, CAPS_UNKNOWN)
        self.batch_texts_max = self._caps.batch_texts
        self.batch_tokens_max = _batch_tokens(ledger.limits)
        self.concurrency = _concurrency(ledger.limits, self.batch_texts_max, self.batch_tokens_max)
        self._key = _usable_key(api_key)
        self._read_timeout_s = read_timeout_s
        self._embedding, self._tokenizer = _sdk()
        from manifests.embedding import dashscope_transport as transport

        self._transport = transport
        self._session = transport.open_session(self.endpoint, self.concurrency)
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._bought: dict[str, Vectors] = {}
        self._spent = 0
        self._warned: set[str] = set()

    @property
    def tokens_spent(self) -> int:
        """Tokens as reported; where an answer reported none or never came, as reserved."""
        return self._spent

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text in the vocabulary of the model family, which ships with the SDK."""
        return [self._count(text) for text in texts]

    def usage_note(self) -> str:
        """Requests and tokens of the last minute beside their limits, of every program on the ledger."""
        limits = self.ledger.limits
        try:
            usage = self.ledger.usage()
        except sqlite3.Error:
            return "the ledger cannot be read"
        held = f", provider asks to wait {usage.hold_s:.0f} s" if usage.hold_s > 1 else ""
        return (
            f"{usage.requests:,}/{limits.requests_per_minute:,} requests, "
            f"{usage.tokens:,}/{limits.tokens_per_minute:,} tokens a minute{held}"
        )

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Vectors of shape (len(texts), dimension), float32; more than a request may hold goes in several.

        When a part fails, what was bought by then is kept here: the caller's next call with those texts sends
        nothing a second time.
        """
        self._refuse_unsendable(texts)
        with self._lock:
            found = {text: self._bought[text] for text in texts if text in self._bought}
        first = {text: position for position, text in reversed(list(enumerate(texts))) if text not in found}
        missing = sorted(first.values())
        try:
            for start in range(0, len(missing), self.batch_texts_max):
                self._buy(texts, missing[start : start + self.batch_texts_max], found)
        except ContractError:
            with self._lock:
                if len(self._bought) > BOUGHT_KEPT:
                    self._bought.clear()
                self._bought.update(found)
            raise
        with self._lock:
            for text in texts:
                self._bought.pop(text, None)
        return np.stack([found[text] for text in texts]) if found else np.empty((0, self.spec.dimension), np.float32)

    def embed_query(self, text: str, *, timeout_s: float, patient: bool = False) -> Vectors:
        """One vector of shape (dimension,), within `timeout_s`, at most 0.3 s of it waiting for room.

        `patient` calls wait for room as documents do, before `timeout_s` begins. No answer is read longer than a
        document's: the ledger counts on that.
        """
        self._refuse_unsendable([text])
        room_s = DOCUMENT_ROOM_S if patient else min(QUERY_ROOM_S, timeout_s / 4)
        started = time.monotonic()
        reservation = self.ledger.reserve(len(text.encode()) // 3 + 1, timeout_s=room_s, query=True)
        left = timeout_s if patient else max(0.01, timeout_s - (time.monotonic() - started))
        connect = min(CONNECT_TIMEOUT_S, left / 4)
        read = min(self._read_timeout_s, left - connect)
        try:
            vectors = self._answer([text], reservation, (connect, read), query=True)
        except _TextAtFault as fault:
            raise TextRefused(str(fault), position=0) from fault
        vector: Vectors = vectors[0]
        return vector

    def stop(self) -> None:
        """Let calls that wait for room give up at once."""
        self.ledger.stop()

    def _buy(self, texts: Sequence[str], positions: list[int], found: dict[str, Vectors]) -> None:
        """Put a vector for each position into `found`; halve a batch until the text at fault stands alone.

        Raises:
            TextRefused: the first text at fault; every other one of the batch is bought by then.
        """
        batch = [texts[position] for position in positions]
        try:
            found.update(zip(batch, self._embed(batch), strict=True))
        except _TextAtFault as fault:
            if len(batch) == 1:
                raise TextRefused(str(fault), position=positions[0]) from fault
            refused = None
            for half in (positions[: len(batch) // 2], positions[len(batch) // 2 :]):
                try:
                    self._buy(texts, half, found)
                except TextRefused as exc:
                    refused = refused or exc
            if refused:
                raise refused from fault

    def _embed(self, batch: list[str]) -> Vectors:
        estimate = sum(self.count_tokens(batch))
        reservation = self.ledger.reserve(estimate, timeout_s=DOCUMENT_ROOM_S)
        return self._answer(batch, reservation, (CONNECT_TIMEOUT_S, self._read_timeout_s), query=False)

    def _answer(
        self, batch: list[str], reservation: Reservation, timeouts: tuple[float, float], *, query: bool
    ) -> Vectors:
        """Send once, write the outcome into the ledger, and return the vectors in the order of the texts."""
        response = self._send(batch, reservation, timeouts, query=query)
        status = int(response.status_code)
        if status == HTTPStatus.OK:
            tokens = answer.total_tokens(response.usage, batch)
            if tokens is None:
                self._warn_of(response.usage, reservation)
            self._settle(reservation, tokens)
            return answer.vectors_of(response, len(batch), self.spec.dimension)
        code, retry_after_s = answer.code_of(response), answer.retry_after_s(response)
        if answer.is_throttled(status, code):
            self.ledger.throttle(reservation, retry_after_s=retry_after_s)
        else:
            self._settle(reservation, None)
        message = f"DashScope answered {status} {code}"
        if not query:  # the service may quote the text, and a query is nobody's business
            message += f": {answer.shown(response.message, self._key)}"
        if answer.is_busy(status, code):
            raise ProviderBusy(message, retry_after_s=retry_after_s)
        over_long = max(len(text.encode()) for text in batch) > self._caps.text_tokens
        if answer.is_about_a_text(status, code, over_long=over_long):
            raise _TextAtFault(message)
        raise ProviderRefused(f"{message}. Check key, account, model and base URL, then run the same command again")

    def _send(self, batch: list[str], reservation: Reservation, timeouts: tuple[float, float], *, query: bool) -> Any:
        """The SDK's answer, whatever its status. A reservation whose outcome is unknown is left to count longest."""
        from requests.exceptions import JSONDecodeError, RequestException

        spec, transport = self.spec, self._transport
        exchange = transport.Exchange(self._session)
        try:
            return self._embedding.call(
                model=spec.model,
                input=batch,
                dimension=spec.dimension,
                text_type=spec.query_text_type if query else spec.document_text_type,
                api_key=self._key,
                base_address=self.endpoint,
                session=exchange,
                request_timeout=timeouts,
            )
        except transport.Unsent as exc:
            self.ledger.forget(reservation)
            raise ProviderBusy(f"DashScope cannot be reached at {self.endpoint}: {exc}") from None
        except transport.TimedOut as exc:
            self._spend(reservation.tokens)
            raise ProviderBusy(f"DashScope: {exc} ({timeouts[1]:.1f} s)", reason="timeout") from None
        except transport.Dropped as exc:
            self._spend(reservation.tokens)
            raise ProviderBusy(f"DashScope: {exc}") from None
        except JSONDecodeError as exc:
            raise self._unreadable(reservation, exc) from exc
        except RequestException as exc:
            self._settle(reservation, None)
            raise ProviderRefused(
                f"{self.endpoint} does not answer as DashScope does ({type(exc).__name__}); check the base URL"
            ) from None
        except _UNREADABLE as exc:
            if not exchange.answered:
                raise  # not the service's fault: an SDK of another version than this was written for
            raise self._unreadable(reservation, exc) from exc

    def _unreadable(self, reservation: Reservation, exc: Exception) -> ProviderBusy:
        self._settle(reservation, None)
        if self._warn_once("unreadable"):
            log.warning("DashScope gave an answer that cannot be read; only the first is told in full", exc_info=exc)
        return ProviderBusy(f"DashScope gave an answer that cannot be read ({type(exc).__name__})")

    def _settle(self, reservation: Reservation, tokens: int | None) -> None:
        self.ledger.settle(reservation, tokens=tokens)
        self._spend(reservation.tokens if tokens is None else tokens)

    def _warn_of(self, usage: object, reservation: Reservation) -> None:
        if self._warn_once("usage"):
            log.warning(
                "DashScope reported no usage that these texts can have (%s); such answers count as estimated, "
                "here %d tokens",
                answer.shown(usage, self._key)[:80],
                reservation.tokens,
            )

    def _warn_once(self, subject: str) -> bool:
        """Whether to warn of it: what is wrong with one answer is so with all of them."""
        with self._lock:
            first = subject not in self._warned
            self._warned.add(subject)
        return first

    def _spend(self, tokens: int) -> None:
        with self._lock:
            self._spent += tokens

    def _refuse_unsendable(self, texts: Sequence[str]) -> None:
        """Name a blank or over-long text before it costs its batch."""
        for position, text in enumerate(texts):
            if not visible(text):
                raise TextRefused("the text is blank; there is nothing to embed", position=position)
            # no token is shorter than a byte
            if len(text.encode()) > self._caps.text_tokens and self._count(text) > self._caps.text_tokens:
                raise TextRefused(
                    f"the text has {self._count(text):,} tokens; {self.spec.model} takes {self._caps.text_tokens:,}",
                    position=position,
                )

    def _count(self, text: str) -> int:
        known = self._counts.get(text)
        if known is None:
            known = len(self._tokenizer.encode(text))
            with self._lock:
                if len(self._counts) >= COUNTS_KEPT:
                    self._counts.clear()
                self._counts[text] = known
        return known


class _TextAtFault(Exception):
    """The service refused the batch for one of its texts, without saying which."""


@functools.cache
def _sdk() -> tuple[Any, Any]:
    """The SDK's embedding call and tokenizer. Its logger would print texts and tracebacks of its own."""
    import dashscope

    logging.getLogger("dashscope").setLevel(logging.CRITICAL + 1)
    return dashscope.TextEmbedding, dashscope.get_tokenizer("qwen-turbo")


def _endpoint(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query:
        raise InputRefused(
            f"{parts.scheme}://{parts.hostname or ''}… is no base URL of DashScope; expected one like {BASE_URL}"
        )
    return base_url.rstrip("/")


def _usable_key(api_key: str) -> str:
    key = api_key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ProviderRefused(
            "DASHSCOPE_API_KEY is empty or holds characters no key has; set it to the key of your account"
        )
    return key


def _batch_tokens(limits: Limits) -> int:
    """Tokens of a batch: small beside the minute, yet large enough that requests do not become the scarce side."""
    balanced = 1.5 * limits.tokens_per_minute / limits.requests_per_minute
    wanted = max(balanced, limits.tokens_per_minute * BATCH_SHARE, BATCH_TOKENS_MIN)
    return int(min(wanted, BATCH_TOKENS_MAX))


def _concurrency(limits: Limits, batch_texts: int, batch_tokens: int) -> int:
    """Calls in flight that use the limits up even when an answer takes `LATENCY_S`."""
    tokens = min(batch_tokens, 200 * batch_texts)
    a_second = min(limits.requests_per_minute, limits.tokens_per_minute / tokens) / 60
    return max(2, min(CONCURRENCY_MAX, math.ceil(a_second * LATENCY_S)))
