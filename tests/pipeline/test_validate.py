"""`validate`: what it compared, and what it could not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from tests.programs import Build


@pytest.fixture
def index_alone(sample_build: Build, tmp_path: Path) -> tuple[str, ...]:
    """The options that validate a published index as a deployer has it: without Parquet and snapshot."""
    work = Path(
        shutil.copytree(
            sample_build.work, tmp_path / "work", symlinks=True, ignore=shutil.ignore_patterns("papers.parquet")
        )
    )
    return ("validate", "--manifest", str(sample_build.manifest), "--work", str(work))


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_is_not_at_hand_is_told_as_not_compared(
    index_alone: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = told(capsys, *index_alone)

    assert verdict["ok"]
    assert [each["what"] for each in verdict["not_compared"]] == ["papers.parquet", "snapshot"]
    assert main([*index_alone]) == 0
    said = capsys.readouterr().out
    assert "everything it pins" not in said
    assert "not compared: papers.parquet (" in said
    assert "snapshot (" in said


def test_with_everything_at_hand_nothing_is_left_out(sample_build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = told(capsys, "validate", "--manifest", sample_build.manifest, "--work", sample_build.work)

    assert (verdict["ok"], verdict["not_compared"]) == (True, [])


def test_behind_a_manifest_that_cannot_be_read_nothing_counts_as_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text("{}")

    verdict = told(capsys, "validate", "--manifest", manifest, code=6)

    assert [each["what"] for each in verdict["not_compared"]] == ["papers.parquet", "snapshot", "collection"]
    assert main(["validate", "--manifest", str(manifest)]) == 6
    assert "not compared: papers.parquet (" in capsys.readouterr().err
