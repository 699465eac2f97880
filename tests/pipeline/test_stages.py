"""Every stage is measured beside something bare, in one table that says how it was made, and a limit ends in 1."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import corpora, peers, queries, rebuild
from bench.corpora import Laid
from bench.measured import HEADER, Measured, conditions
from bench.retrieval import differences
from docs.scale import lite_measured, model_measured
from manifests.collection import BM25_PARAMS
from manifests.hybrid import RRF_K
from pipeline.evaluate import DEPTH
from tests.programs import REPOSITORY

STAGES = ["load", "embed, local model", "embed after a change, DashScope emulated", "quota accounting, CPU", "index"]
SLOW = Measured("stage", "size", 3.0, "bare", 2.0, ratio_max=1.4)
HEADING = re.compile(r"y `python -m (bench\.\w+)` on 20\d\d-\d\d-\d\d[:;] .*\bpymilvus \d[\d.]*, .*\bnumpy \d")


def cells(page: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]


def test_the_stages_in_one_table_and_the_exit_code_tells_whether_one_is_above_its_limit(tmp_path: Path) -> None:
    out = tmp_path / "stages.md"
    command = [sys.executable, "-m", "bench.stages", "--scale", "0.003", "--out", str(out)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)

    page = out.read_text(encoding="utf-8")
    header, _, *rows = cells(page)
    assert tuple(header) == HEADER, done.stderr
    assert [row[0] for row in rows] == STAGES
    assert all(float(row[2]) > 0 and float(row[4]) > 0 for row in rows)
    most_above = max(float(row[5]) - float(row[6]) for row in rows if row[6] != "—")
    assert done.returncode in {0, 1}
    assert most_above >= 0 if done.returncode else most_above <= 0
    assert done.stdout.endswith(page)
    assert HEADING.search(page)
    assert model_measured(page).texts == 1


def test_the_page_of_scale_reads_both_sizes_from_the_page_of_query_speed() -> None:
    page = conditions("bench.queries", ["milvus-lite"])
    for papers, memory_mb in ((6_341, 409.0), (50_000, 2_300.0)):
        rows = [(name, [20.0], 24.0, memory_mb if name == "bare" else 1.0, 3.5) for name in queries.NAMES]
        page += queries.table(Laid(Path(), Path(), Path(), "ICML 2026", papers, "local model vectors"), rows, engines=2)

    assert lite_measured(page)[:4] == (6_341, 0.409, 50_000, 2.3)


def test_the_peers_are_asked_with_the_parameters_in_force() -> None:
    assert (peers.DEPTH, peers.RRF_K) == (DEPTH, RRF_K)
    assert {"bm25_k1": peers.K1, "bm25_b": peers.B} == BM25_PARAMS


def test_the_row_in_force_must_repeat_the_numbers_of_the_path() -> None:
    path = {"cacm": {leg: {"nDCG@10": score} for leg, score in (("bm25", 0.5021), ("dense", 0.4), ("hybrid", 0.5396))}}

    assert differences(path, {"cacm": (0.50214, 0.53957)}) == []
    assert differences(path, {"cacm": (0.5021, 0.5398)}) == [
        "cacm, hybrid: the path has 0.5396, the row in force 0.5398"
    ]


@pytest.mark.parametrize(
    ("measured", "exit_code"),
    [
        (SLOW, 1),
        (replace(SLOW, ratio_max=1.5), 0),
        (replace(SLOW, ratio_max=None), 0),
        (replace(SLOW, ratio_max=None, peak_mb=101.0, peak_mb_max=100.0), 1),
        (replace(SLOW, ratio_max=None, peak_mb=100.0, peak_mb_max=100.0), 0),
    ],
    ids=["too slow", "as slow as may be", "too small to judge", "too large", "as large as may be"],
)
def test_a_stage_above_its_ratio_or_memory_is_told_by_the_exit_code(measured: Measured, exit_code: int) -> None:
    assert measured.exit_code == exit_code


def test_a_checkout_without_the_real_papers_measures_made_up_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(corpora, "SHARED", tmp_path / "absent")
    monkeypatch.setattr(queries, "PAPERS", 20)
    monkeypatch.setattr(rebuild, "PAPERS", 100)

    older, newer = rebuild.older_and_newer(None, None, tmp_path)

    assert queries.first_snapshot(None, tmp_path).card.papers == 20
    assert (older.card.papers, newer.card.papers) == (97, 100)


@pytest.mark.parametrize("name", ["speed", "stages", "retrieval"])
def test_a_page_of_measurements_says_its_command_date_and_versions(name: str) -> None:
    heading = HEADING.search((REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8"))

    assert heading
    assert (REPOSITORY / f"{heading[1].replace('.', '/')}.py").is_file()
