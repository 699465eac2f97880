"""What an operator sees: Prometheus metrics with bounded labels, and one log line a call.

Query text, session ids, paper ids and client addresses are never given to this module.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from serve.errors import StateFailed

log = logging.getLogger("serve.calls")

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


@dataclass
class Call:
    """One tool call in flight: its id for the logs, and the milliseconds of its parts."""

    request_id: str
    parts_ms: dict[str, float] = field(default_factory=dict)


_current: ContextVar[Call | None] = ContextVar("call", default=None)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.calls = Counter("serve_calls", "Tool calls by outcome.", ["tool", "outcome"], registry=self.registry)
        self.seconds = Histogram(
            "serve_call_seconds", "Duration of tool calls.", ["tool"], buckets=SECONDS, registry=self.registry
        )
        self.parts = Histogram(
            "serve_part_seconds", "Duration of the parts of a call.", ["part"], buckets=SECONDS, registry=self.registry
        )
        self.lexical = Counter(
            "serve_lexical_answers", "Searches answered by words alone.", ["reason"], registry=self.registry
        )
        self.queries = Counter(
            "serve_queries", "Queries by what became of their vector.", ["outcome"], registry=self.registry
        )
        self.refused = Counter(
            "serve_http_refusals", "Requests of /mcp refused before a tool.", ["status"], registry=self.registry
        )

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge whose value is read when it is asked for; NaN while the state database fails."""

        def value() -> float:
            try:
                return read()
            except StateFailed:
                return math.nan

        Gauge(name, text, registry=self.registry).set_function(value)

    @contextmanager
    def call(self, tool: str, request_id: str) -> Iterator[Callable[[str], None]]:
        """Measure one call and log it; the yielded function is told the outcome (`ok` or an error code)."""
        call = Call(request_id)
        token = _current.set(call)
        outcome = "cancelled"

        def ended(how: str) -> None:
            nonlocal outcome
            outcome = how

        started = time.perf_counter()
        try:
            yield ended
        finally:
            seconds = time.perf_counter() - started
            _current.reset(token)
            self.calls.labels(tool, outcome).inc()
            self.seconds.labels(tool).observe(seconds)
            for part, milliseconds in call.parts_ms.items():
                self.parts.labels(part).observe(milliseconds / 1_000)
            facts = {"request": request_id, "tool": tool, "outcome": outcome, "ms": round(seconds * 1_000, 1)}
            facts |= {f"{part}_ms": round(milliseconds, 1) for part, milliseconds in call.parts_ms.items()}
            log.info("call", extra={"facts": facts})

    def page(self) -> bytes:
        """The Prometheus text page."""
        return generate_latest(self.registry)


@contextmanager
def part(name: str) -> Iterator[None]:
    """Add the time spent inside to the part `name` of the call in flight, if there is one."""
    call = _current.get()
    started = time.perf_counter()
    try:
        yield
    finally:
        if call is not None:
            spent = (time.perf_counter() - started) * 1_000
            call.parts_ms[name] = call.parts_ms.get(name, 0.0) + spent


def set_up_logging(log_format: str, level: str) -> None:
    """All logging to standard error, a line an event, as text or as JSON."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[stream], force=True)
    # Their lines name hosts and origins that a client sent.
    for name in ("mcp", "uvicorn.access", "httpx", "httpx2"):
        logging.getLogger(name).setLevel(logging.ERROR)


class TextLines(logging.Formatter):
    """`2026-11-30T17:00:00Z INFO serve.calls call tool=search_papers outcome=ok …`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 -- the base's name
        """UTC to the second."""
        del datefmt
        return _moment(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- the base's name
        """The line with the facts of the record as `name=value`."""
        facts: dict[str, Any] = getattr(record, "facts", {})
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in facts.items())])


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; a traceback is the text `trace`."""
        line: dict[str, Any] = {"time": _moment(record), "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": record.getMessage()} | getattr(record, "facts", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _moment(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
