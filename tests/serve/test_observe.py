"""Log lines and metrics: bounded, structured, one a call."""

from __future__ import annotations

import json
import logging

import pytest

from serve.errors import StateFailed
from serve.observe import JsonLines, Metrics, TextLines, part, set_up_logging


def record(message: str, **facts: object) -> logging.LogRecord:
    made = logging.LogRecord("serve.calls", logging.INFO, "x.py", 1, message, (), None)
    made.created = 1_800_000_000.0
    if facts:
        made.facts = facts
    return made


def test_a_json_line_is_one_object_with_the_facts():
    line = JsonLines().format(record("call\nforged", tool="search_papers", ms=1.5))

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2027-01-15T08:00:00Z",
        "level": "info",
        "logger": "serve.calls",
        "message": "call\nforged",
        "tool": "search_papers",
        "ms": 1.5,
    }


def test_a_text_line_has_the_facts_as_pairs():
    assert (
        TextLines().format(record("call", tool="x", ms=2)) == "2027-01-15T08:00:00Z INFO serve.calls call tool=x ms=2"
    )


def test_a_traceback_stays_inside_its_json_object():
    made = record("failed")
    try:
        int("why")
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)

    assert "ValueError: invalid literal" in json.loads(JsonLines().format(made))["trace"]


def test_the_parts_of_a_call_are_timed_and_an_unfinished_one_is_cancelled(caplog):
    metrics = Metrics()
    caplog.set_level("INFO")

    with metrics.call("search_papers", "abcd") as ended:
        with part("embed"):
            pass
        with part("embed"):
            pass
        ended("ok")
    with pytest.raises(KeyboardInterrupt), metrics.call("search_papers", "efgh"):
        raise KeyboardInterrupt
    with part("nowhere"):
        pass

    first, second = (line.facts for line in caplog.records)
    assert (first["request"], first["outcome"], "embed_ms" in first) == ("abcd", "ok", True)
    assert second["outcome"] == "cancelled"
    page = metrics.page().decode()
    assert 'serve_part_seconds_count{part="embed"} 1.0' in page
    assert 'serve_calls_total{outcome="cancelled",tool="search_papers"} 1.0' in page
    assert "nowhere" not in page
    assert "_created" not in page


def test_a_gauge_that_cannot_be_read_leaves_the_other_metrics_readable():
    metrics = Metrics()

    def fail():
        raise StateFailed("disk full")

    metrics.gauge("serve_sessions_open", "Open search sessions.", fail)
    metrics.calls.labels("search_papers", "internal").inc()

    page = metrics.page().decode()

    assert "serve_sessions_open NaN" in page
    assert 'serve_calls_total{outcome="internal",tool="search_papers"} 1.0' in page


def test_logging_goes_to_standard_error_only(capsys):
    before = logging.getLogger().handlers[:]
    try:
        set_up_logging("json", "info")
        logging.getLogger("serve").info("hello")
        logging.getLogger("mcp.server").warning("Invalid Host header: secret.example")
        logging.getLogger("serve").debug("quiet")
    finally:
        logging.getLogger().handlers[:] = before
        logging.getLogger().setLevel("WARNING")

    shown = capsys.readouterr()
    assert shown.out == ""
    assert [json.loads(line)["message"] for line in shown.err.splitlines()] == ["hello"]
