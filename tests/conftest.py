"""What every test stands on: a scrubbed environment, the optional real data, one built sample index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SAMPLE = REPOSITORY / "snapshots" / "sample"
# The real snapshots and judged sets; never part of the repository.
SHARED = REPOSITORY.parent / "shared" / "data"
SCRUBBED = ("DASHSCOPE_", "SERVE_", "MILVUS_", "OPENREVIEW_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True, scope="session")
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No key, proxy or state of this machine reaches a test, nor a program that a test starts."""
    before = dict(os.environ)
    for name in list(os.environ):
        if name.upper().startswith(SCRUBBED):
            del os.environ[name]
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state-home"))
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    os.environ["NO_COLOR"] = "1"
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data; skips where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("needs the real snapshots in ../shared/data, which are no part of the repository")
    return SHARED


def run_pipeline(
    *arguments: str | Path, timeout_s: float = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`python -m pipeline ARGUMENTS` as its own program."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *map(str, arguments)],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@dataclass(frozen=True)
class Build:
    """A finished build: its folders, and what `--json` said."""

    work: Path
    manifest: Path
    store: Path
    result: dict[str, Any]

    @property
    def uri(self) -> str:
        """The Lite URI that the build published."""
        return str(self.work / "milvus.db")


def run_build(snapshot: Path, folder: Path, *options: str, store: Path | None = None, **environment: str) -> Build:
    """Build `snapshot` into `folder` and expect success."""
    work, manifest = folder / "work", folder / "manifest.json"
    store = store or folder / "store"
    places = ("--work", work, "--manifest", manifest, "--store", store, "--ledger", folder / "ledger.db")
    done = run_pipeline("build", snapshot, *places, "--json", *options, **environment)
    assert done.returncode == 0, done.stderr
    return Build(work, manifest, store, json.loads(done.stdout))


@pytest.fixture(scope="session")
def sample_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """snapshots/sample, built once by the real program with the local model. Read it, never change it."""
    return run_build(SAMPLE, tmp_path_factory.mktemp("sample"))
