"""`plan` needs no key and touches nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.programs import SAMPLE, run_pipeline


def test_a_dashscope_plan_needs_no_key_and_leaves_nothing_behind(tmp_path: Path) -> None:
    places = ("--work", tmp_path / "work", "--store", tmp_path / "store", "--ledger", tmp_path / "ledger.db")
    quotas = ("--requests-per-minute", "10", "--tokens-per-minute", "100000")

    told = run_pipeline("plan", SAMPLE, "--provider", "dashscope", *places, *quotas, "--json")
    shared = run_pipeline("plan", SAMPLE, "--provider", "dashscope", *quotas, "--query-reserve", "0.5", "--json")

    planned = json.loads(told.stdout)
    assert json.loads(shared.stdout)["minutes"] == pytest.approx(2 * planned["minutes"], abs=0.02)
    assert told.returncode == 0, told.stderr
    assert (planned["texts"], planned["reused"]) == (148, 2)
    assert planned["requests"] >= 15
    assert planned["minutes"] >= planned["requests"] / 10 - 1
    assert planned["bytes"] == 148 * 1_024 * 4
    assert list(tmp_path.iterdir()) == []
