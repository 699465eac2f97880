"""The table of settings: every flag has its environment twin, and a wrong value is refused by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from ipaddress import ip_network
from pathlib import Path

import pytest

from manifests.errors import HomeUnknown
from serve import VERSION
from serve.errors import ErrorCode, UsageRefused
from serve.settings import SECRETS, SETTINGS, read_settings
from tests.programs import REPOSITORY

PLACES = {"manifest": "m.json", "milvus_uri": "m.db"}


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "serve", *arguments],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_flags_come_before_the_environment_before_defaults():
    settings = read_settings(
        PLACES | {"port": "9000"}, {"SERVE_PORT": "9001", "SERVE_RATE_LIMIT": "7", "SERVE_HOST": ""}
    )

    assert (settings.port, settings.rate_limit, settings.host) == (9000, 7, "127.0.0.1")
    assert (settings.session_ttl, settings.session_capacity, settings.output_chars) == (21_600, 10_000, 20_000)


def test_the_state_goes_to_the_users_state_folder():
    settings = read_settings(PLACES, {"XDG_STATE_HOME": "/state-home"})

    assert settings.state == Path("/state-home/icml-paper-search/serve.db")
    assert settings.ledger == Path("/state-home/icml-paper-search/ledger.db")


def test_a_user_without_a_home_must_say_where_the_state_goes(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)

    with pytest.raises(HomeUnknown, match="set XDG_STATE_HOME") as refused:
        read_settings(PLACES, {})

    assert refused.value.exit_code == 2
    assert read_settings(PLACES, {"SERVE_STATE": "s.db", "SERVE_LEDGER": "l.db"}).state == Path("s.db")


def test_lists_and_networks_are_read():
    settings = read_settings(
        PLACES, {"SERVE_ALLOWED_HOSTS": "a.example, b.example,", "SERVE_TRUSTED_PROXIES": "10.0.0.1/8,::1"}
    )

    assert settings.allowed_hosts == ("a.example", "b.example")
    assert settings.trusted_proxies == (ip_network("10.0.0.0/8"), ip_network("::1"))


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"SERVE_PORT": "70000"}, "SERVE_PORT is 70000; it must lie between 0 and 65,535"),
        ({"SERVE_PORT": "x"}, "SERVE_PORT is 'x'; it takes a number"),
        ({"SERVE_CALL_DEADLINE": "nan"}, "SERVE_CALL_DEADLINE is nan"),
        ({"SERVE_TRANSPORT": "sse"}, "SERVE_TRANSPORT is 'sse'; it takes http or stdio"),
        ({"SERVE_STRICT_HYBRID": "perhaps"}, "it takes true or false"),
        ({"SERVE_TRUSTED_PROXIES": "proxy.example"}, "it takes addresses or networks"),
        ({"SERVE_ALLOWED_HOSTS": "a.example,*"}, "SERVE_ALLOWED_HOSTS is 'a.example,*'; it takes no patterns"),
        ({"SERVE_ALLOWED_ORIGINS": "*"}, "whole names: Origins accepted beside loopback, such as https://app.example"),
        ({"SERVE_RATELIMIT": "7"}, "SERVE_RATELIMIT: no such setting"),
    ],
)
def test_a_wrong_value_is_refused_by_name(environment, says):
    with pytest.raises(UsageRefused, match=re.escape(says)):
        read_settings(PLACES, environment)


@pytest.mark.parametrize("missing", list(PLACES))
def test_a_missing_place_is_refused_by_name(missing):
    with pytest.raises(UsageRefused, match=f"--{missing.replace('_', '-')} .*is missing"):
        read_settings({name: value for name, value in PLACES.items() if name != missing}, {})


def test_the_help_names_every_flag_variable_and_secret():
    shown = serve("--help", COLUMNS="200").stdout

    for setting in SETTINGS:
        assert setting.flag in shown
        assert setting.variable in shown
    for secret in SECRETS:
        assert secret in shown
        assert f"--{secret.lower().replace('_', '-')}" not in shown


def test_the_version_is_one():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert project["version"] == VERSION
    assert serve("--version").stdout.strip() == VERSION


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--colour=red"], 2, "--colour"),
        ([], 2, "--manifest (or SERVE_MANIFEST) is missing"),
        (["--manifest", "absent.json", "--milvus-uri", "x.db", "--port", "0"], 6, "manifest absent.json refused"),
        (
            ["--manifest", "absent.json", "--milvus-uri", "x.db", "--port", "0", "--state", "{tmp}/notes"],
            6,
            "not a database",
        ),
        (["--manifest", "m.json", "--milvus-uri", "x.db", "--host", "192.0.2.1"], 2, "cannot listen on 192.0.2.1"),
    ],
)
def test_the_program_ends_with_a_sentence_and_its_code(arguments, code, says, tmp_path):
    (tmp_path / "notes").write_text("not a database\n" * 500)

    done = serve(*(argument.format(tmp=tmp_path) for argument in arguments))

    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "notes.key").exists()


def test_every_error_code_says_when_and_what_to_do():
    assert {str(code) for code in ErrorCode} == {
        "invalid_argument",
        "unknown_area",
        "unknown_paper_type",
        "session_not_found",
        "session_closed",
        "session_expired",
        "session_limit",
        "rate_limited",
        "embedding_unavailable",
        "index_unavailable",
        "overloaded",
        "response_too_large",
        "internal",
    }
    for code in ErrorCode:
        assert code.meaning.endswith(".")
        assert code.advice.endswith(".")


def test_the_account_may_be_told_once_to_builds_and_server() -> None:
    shared = {
        "DASHSCOPE_REQUESTS_PER_MINUTE": "600",
        "DASHSCOPE_TOKENS_PER_MINUTE": "300000",
        "DASHSCOPE_HTTP_BASE_URL": "http://127.0.0.1:9/api/v1",
    }
    flags = {"manifest": "m.json", "milvus_uri": "m.db"}

    told = read_settings(flags, shared)
    own = read_settings(flags, shared | {"SERVE_REQUESTS_PER_MINUTE": "60"})

    assert (told.requests_per_minute, told.tokens_per_minute) == (600, 300_000)
    assert told.dashscope_url == "http://127.0.0.1:9/api/v1"
    assert own.requests_per_minute == 60


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([""], "query must not be empty"),
        (["  \u200b "], "query is blank"),
        (["x" * 2_001], "query must have at most 2000 characters"),
        (["--top-k", "0", "x"], "top_k must be at least 1"),
        (["--top-k=-2", "x"], "top_k must be at least 1"),
        (["--top-k", "10000", "x"], "top_k must be at most 50"),
        (["--search-depth=-1", "x"], "search_depth must be at least 1"),
        (["--min-score", "nan", "x"], "min_score must be a finite number"),
        (["--min-score", "7", "x"], "min_score must be at most 1"),
        (["\udcff"], "query holds characters that are not valid Unicode"),
    ],
)
def test_a_search_from_the_terminal_is_checked_as_the_tool_checks_it(arguments, says):
    done = serve("search", "--manifest", "absent.json", "--milvus-uri", "x.db", *arguments[:-1], "--", arguments[-1])

    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
