"""A scratch folder ends with its program, however that ends, and never before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from manifests import scratch
from tests.programs import REPOSITORY

HOLD = """
import sys
from manifests.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "0.db").mkdir()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@contextmanager
def program() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A program with a scratch folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        yield running, Path(running.stdout.readline().strip())


def test_the_folder_of_a_killed_program_goes_when_another_starts_and_that_of_a_running_one_stays() -> None:
    with program() as (running, kept), program() as (doomed, left):
        doomed.kill()
        doomed.wait()
        assert left.is_dir()

        with scratch.scratch_folder() as fresh:
            assert sorted(fresh.parent.iterdir()) == sorted([fresh, kept])

        assert running.poll() is None
    assert not list(kept.parent.iterdir())


@pytest.mark.parametrize("marked", [True, False], ids=["another-user", "no-lock"])
def test_a_folder_that_is_not_known_to_be_abandoned_stays(
    tmp_path: Path, marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / f"{scratch.PREFIX}foreign"
    foreign.mkdir()
    if marked:
        (foreign / scratch.LOCK).touch()
        monkeypatch.setattr("os.getuid", lambda: foreign.stat().st_uid + 1)

    with scratch.scratch_folder():
        pass

    assert [path.name for path in tmp_path.iterdir()] == [foreign.name]


def test_a_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / scratch.LOCK).touch()
    (tmp_path / f"{scratch.PREFIX}link").symlink_to(elsewhere)

    with scratch.scratch_folder():
        pass

    assert (elsewhere / scratch.LOCK).exists()
