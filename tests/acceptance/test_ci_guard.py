"""A pull request that edits what is published without rebuilding fails CI, and is told what to run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import REPOSITORY, Build

SCHEMA = "manifests/collection.py"
NORMALISER = "manifests/texts.py"


@pytest.fixture
def checkout(tmp_path: Path, sample_build: Build) -> Path:
    """A copy of this repository as CI checks it out, with the manifest that its code gives."""
    copy = tmp_path / "checkout"
    copied = ("manifests", "pipeline", "serve", "scripts", "snapshots/sample")
    for folder in copied:
        shutil.copytree(REPOSITORY / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", copy)
    shutil.copy(sample_build.manifest, copy / "manifests" / "sample.json")
    git(copy, "init", "-q")
    git(copy, "add", "-A")
    return copy


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def guard(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The step of `just check` that looks at snapshots and manifests, run with the copy's own code."""
    return subprocess.run(
        [sys.executable, "scripts/published.py", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def replace_once(path: Path, old: str, new: str) -> None:
    """Replace the first match of the pattern `old`."""
    text, count = re.subn(old, new, path.read_text(encoding="utf-8"), count=1)
    assert count == 1
    path.write_text(text, encoding="utf-8")


def test_an_untouched_checkout_passes(checkout: Path) -> None:
    done = guard(checkout)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        pytest.param(
            lambda root: replace_once(root / "snapshots/sample/papers.jsonl", "Monsoon", "Monsoom"),
            "git checkout -- snapshots/sample",
            id="one character of a snapshot",
        ),
        pytest.param(
            lambda root: replace_once(root / "snapshots/sample/snapshot.json", "Sample", "Simple"),
            "just build-index sample",
            id="one character of a snapshot card",
        ),
        pytest.param(
            lambda root: replace_once(root / "manifests/sample.json", '"spotlight": 15', '"spotlight": 16'),
            "just build-index sample",
            id="one character of a manifest",
        ),
        pytest.param(
            lambda root: replace_once(root / SCHEMA, r'"bm25_b": 0\.', '"bm25_b": 1.'),
            "just build-index sample",
            id="one character of an index parameter",
        ),
        pytest.param(
            lambda root: replace_once(root / SCHEMA, '"tokenizer": "standard"', '"tokenizer": "stundard"'),
            "just build-index sample",
            id="one character of the analyzer",
        ),
        pytest.param(
            lambda root: (root / "manifests/sample.json").unlink(), "just build-index sample", id="manifest removed"
        ),
    ],
)
def test_an_edit_without_a_rebuild_is_refused_with_what_to_run(
    checkout: Path, edit: Callable[[Path], None], says: str
) -> None:
    edit(checkout)

    done = guard(checkout)

    assert done.returncode == 1
    assert says in done.stderr


@pytest.mark.slow
def test_a_raised_text_version_gives_another_manifest_which_the_rebuild_shows(
    checkout: Path, sample_build: Build
) -> None:
    replace_once(checkout / NORMALISER, "SEARCH_TEXT_VERSION = 1", "SEARCH_TEXT_VERSION = 2")

    rebuilt = build(checkout, sample_build.store)
    done = guard(checkout, "--rebuilt")

    assert rebuilt.returncode == 0, rebuilt.stderr
    assert done.returncode == 1
    assert "just build-index sample" in done.stderr


@pytest.mark.slow
def test_a_rebuild_of_an_untouched_checkout_changes_nothing(checkout: Path, sample_build: Build) -> None:
    rebuilt = build(checkout, sample_build.store)
    done = guard(checkout, "--rebuilt")

    assert rebuilt.returncode == 0, rebuilt.stderr
    assert (done.returncode, done.stderr) == (0, "")


def build(folder: Path, store: Path) -> subprocess.CompletedProcess[str]:
    """`just build-index` of the copy, with its own code and the vectors that are there already."""
    places = ["--store", str(store), "--ledger", str(folder / "ledger.db")]
    return subprocess.run(
        [sys.executable, "-m", "pipeline", "build", "snapshots/sample", *places],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
