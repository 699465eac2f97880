"""A pull request that edits what is published without rebuilding fails CI, and is told what to run."""

from __future__ import annotations

import json
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
    copied = ("manifests", "pipeline", "serve", "scripts", "snapshots/sample", "requirements")
    for folder in copied:
        shutil.copytree(REPOSITORY / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", copy)
    shutil.copy(sample_build.manifest, copy / "manifests" / "sample.json")
    git(copy, "init", "-q")
    git(copy, "add", "-A")
    return copy


def git(folder: Path, *arguments: str | Path) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, message: str) -> None:
    git(folder, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-a", "-m", message)


def guard(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The step of `just check` that looks at snapshots and manifests, run with the copy's own code."""
    return subprocess.run(
        [sys.executable, "-m", "scripts.published", *arguments], cwd=folder, capture_output=True, text=True, check=False
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


def test_a_dependency_that_was_not_locked_is_refused(checkout: Path) -> None:
    replace_once(checkout / "pyproject.toml", '"rich>=[0-9]+,<[0-9]+"', '"rich>=99,<100"')

    done = subprocess.run(
        [sys.executable, "scripts/guard.py"], cwd=checkout, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "requirements/pipeline.txt: pins 1" in done.stderr
    assert "just lock" in done.stderr


FACTS = {
    "name": "sample2",
    "title": "Sample Conference 2027",
    "source": "written elsewhere",
    "url": "https://example.org/another",
    "retrieved_at": "2026-11-30T00:00:01Z",
    "licence": "CC-BY-4.0",
    "papers": 151,
}


@pytest.mark.parametrize("fact", FACTS)
def test_an_edit_of_the_snapshot_card_is_refused_also_when_it_is_committed(checkout: Path, fact: str) -> None:
    card = checkout / "snapshots/sample/snapshot.json"
    commit(checkout, "publish")
    assert guard(checkout).returncode == 0

    facts = json.loads(card.read_text(encoding="utf-8"))
    card.write_text(json.dumps(facts | {fact: FACTS[fact]}, indent=2), encoding="utf-8")
    edited = guard(checkout)
    commit(checkout, "edit")
    committed = guard(checkout)

    assert facts.keys() == {*FACTS, "files"}
    for done in (edited, committed):
        assert done.returncode == 1
        assert "snapshot" in done.stderr


def test_a_snapshot_card_that_comes_after_or_with_its_manifest_is_no_edit(checkout: Path) -> None:
    card, manifest = (checkout / path for path in ("snapshots/sample/snapshot.json", "manifests/sample.json"))
    git(checkout, "rm", "-q", "--cached", card)
    commit(checkout, "manifest alone")
    git(checkout, "add", "-A")
    commit(checkout, "snapshot")
    assert guard(checkout).stderr == ""

    rewritten = json.dumps(json.loads(card.read_text(encoding="utf-8")))
    published = manifest.read_bytes()
    manifest.write_bytes(b"{}")
    commit(checkout, "another index of another snapshot")
    manifest.write_bytes(published)
    card.write_text(rewritten, encoding="utf-8")
    commit(checkout, "both")

    assert guard(checkout).stderr == ""


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
