from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.fetch.decisions import REFUSED
from pipeline.fetch.openreview_notes import OUTCOMES
from pipeline.snapshot import open_snapshot
from tests.pipeline.openreview_loopback import VENUE, Loopback, running, v2_group, v2_note
from tests.programs import REPOSITORY, SAMPLE

PAGE = (REPOSITORY / "docs" / "snapshots.md").read_text(encoding="utf-8")
TRACK = "ICML.cc/2026/Position_Paper_Track"


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    """The lists that the page names, and a `python` that is this one."""
    papers = [json.loads(line) for _, line in open_snapshot(SAMPLE).lines()][:20]
    entries = [
        {"id": paper["id"], "title": paper["title"], "author": ";".join(paper["authors"]), "status": "Poster"}
        for paper in papers
    ]
    (tmp_path / "icml2025.json").write_text(json.dumps(entries))
    tables = {
        "ICML 2026 Events.csv": [
            ["type", "name", "virtualsite_url", "speakers/authors", "abstract"],
            *(
                ["Poster", paper["title"], f"/virtual/2026/poster/{number}", "", ""]
                for number, paper in enumerate(papers)
            ),
        ],
        "papers.csv": [["Nr", "Heading", "People"], *([paper["id"], paper["title"], "A; B"] for paper in papers)],
    }
    for name, rows in tables.items():
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return tmp_path


@pytest.mark.slow
def test_every_command_of_the_page_does_what_it_says(lists: Path) -> None:
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
    with running(Loopback()) as loopback:
        loopback.login_required = True
        loopback.groups = {VENUE: v2_group(), TRACK: v2_group(TRACK)}
        position = v2_note(2, venue="ICML 2026 Position Paper Track regular", venueid=TRACK)
        loopback.notes["v2"] = [v2_note(1), position | {"invitations": [f"{TRACK}/-/Submission"]}]
        environment = {**os.environ, **loopback.environment(login=True)}

        done = subprocess.run(
            ["bash", "-euc", commands], cwd=lists, env=environment, capture_output=True, text=True, check=False
        )

    assert done.returncode == 0, done.stderr
    found = {folder.name: open_snapshot(folder).card.papers for folder in (lists / "snapshots").iterdir()}
    assert found == {"icml2026": 2, "icml2025": 20, "icml2026-events": 20, "mine": 20}
    assert "icml2025" in (lists / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_page_names_every_reason_that_an_outcome_gives() -> None:
    reasons = {reason for _, reason in (*OUTCOMES, *REFUSED)}

    assert reasons <= set(re.findall(r"`(\w+)`", PAGE))
