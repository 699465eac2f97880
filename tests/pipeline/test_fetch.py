from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.snapshot import open_snapshot
from tests.pipeline.openreview_loopback import PASSWORD, VENUE, Loopback, running, v2_group, v2_note
from tests.programs import run_pipeline


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    with running(Loopback()) as server:
        server.groups[VENUE] = v2_group()
        server.login_required = True
        server.notes["v2"] = [
            v2_note(1),
            v2_note(2, venue="ICML 2026 spotlight", abstract=None),
            v2_note(3, venue="Submitted to ICML 2026"),
            v2_note(4, title=None),
        ]
        yield server


def fetch_openreview(loopback: Loopback, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    places = ("--snapshots", str(folder / "snapshots"), "--work", str(folder / "work"))
    command = ("fetch", "openreview", VENUE, "--name", "icml2026", *places, "--requests-per-minute", "100000", *options)
    return run_pipeline(*command, **loopback.environment(login=True))


def test_fetch_openreview_prints_the_counts_by_reason_and_never_the_password(
    loopback: Loopback, tmp_path: Path
) -> None:
    refused = fetch_openreview(loopback, tmp_path)
    done = fetch_openreview(loopback, tmp_path, "--quarantine")

    assert refused.returncode == 3
    assert "1 accepted note(s) cannot become records" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert "2 papers" in done.stdout
    assert "excluded       submitted: 1" in done.stdout
    assert "excluded       bad_record: 1" in done.stdout
    assert "cases          missing_abstract: 1" in done.stdout
    assert PASSWORD not in done.stdout + done.stderr + refused.stderr
    assert open_snapshot(tmp_path / "snapshots" / "icml2026").card.papers == 2


def test_fetch_openreview_gives_one_json_object_whose_counts_add_up(loopback: Loopback, tmp_path: Path) -> None:
    done = fetch_openreview(loopback, tmp_path, "--quarantine", "--json")

    result = json.loads(done.stdout)
    assert result["papers"] + sum(result["excluded"].values()) == result["count"] == 4
    assert "fetch" in done.stderr


def test_a_refused_login_ends_with_exit_code_4(loopback: Loopback, tmp_path: Path) -> None:
    environment = loopback.environment(login=True) | {"OPENREVIEW_PASSWORD": "wrong secret"}
    places = ("--snapshots", tmp_path, "--work", tmp_path / "work")

    done = run_pipeline("fetch", "openreview", VENUE, "--name", "icml2026", *places, **environment)

    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith("error: OpenReview refused the login")
    assert "wrong secret" not in done.stderr


def test_fetch_file_takes_several_mappings_and_names_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "papers.csv"
    path.write_text("nr,heading,wer\n007,Über Ringe,Emmy N.; Ada L.\n1e10,Zwei,\n,Drei,\n")
    flags = (
        "--name",
        "mine",
        "--snapshots",
        tmp_path / "snapshots",
        "--map",
        "id=nr",
        "title=heading",
        "--map",
        "authors=wer",
    )

    refused = run_pipeline("fetch", "file", path, *flags, "--json")
    done = run_pipeline("fetch", "file", path, *flags, "--json", "--quarantine")

    assert refused.returncode == 3
    assert "line 4: no id" in refused.stderr
    result = json.loads(done.stdout)
    assert result["papers"] == 2
    assert result["excluded"] == {"bad_row": 1}
    lines = [json.loads(line) for _, line in open_snapshot(tmp_path / "snapshots" / "mine").lines()]
    assert [(record["id"], record["authors"]) for record in lines] == [("007", ["Emmy N.", "Ada L."]), ("1e10", [])]


@pytest.mark.parametrize("flags", [("--map", "title"), ("--format", "xlsx"), ()])
def test_flags_that_do_not_fit_are_usage_errors(tmp_path: Path, flags: tuple[str, ...]) -> None:
    name = ("--name", "mine") if flags else ()

    assert run_pipeline("fetch", "file", tmp_path / "a.csv", *name, *flags).returncode == 2


def test_a_title_that_a_card_cannot_hold_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "papers.csv"
    path.write_text("id,title\nA,T\n")

    done = run_pipeline("fetch", "file", path, "--name", "mine", "--snapshots", tmp_path, "--title", "two\nlines")

    assert done.returncode == 3
    assert "title" in done.stderr
    assert not (tmp_path / "mine").exists()
