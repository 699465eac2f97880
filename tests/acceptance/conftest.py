"""Running servers: one over the sample for the module that asks, one over the real corpus where it is at hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.served import Served, serving
from tests.programs import REPOSITORY, Build, run_pipeline

# The real corpus takes minutes to embed: kept in a folder that git ignores, and brought up to date in seconds.
CORPUS_FOLDER = REPOSITORY / "builds" / "acceptance" / "icml2026"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def corpus_build(shared: Path) -> Build:
    """snapshots/icml2026 with the local model."""
    work, manifest, store = (CORPUS_FOLDER / name for name in ("work", "manifest.json", "store"))
    places = ("--work", work, "--manifest", manifest, "--store", store, "--ledger", CORPUS_FOLDER / "ledger.db")
    done = run_pipeline("build", shared / "snapshots" / "icml2026", *places, "--json", timeout_s=3_600)
    assert done.returncode == 0, done.stderr
    return Build(work, manifest, store, json.loads(done.stdout))


@pytest.fixture(scope="module")
def sample_server(sample_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(sample_build, tmp_path_factory.mktemp("served"), "--rate-limit", "0") as served:
        yield served


@pytest.fixture(scope="module")
def corpus_server(corpus_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(corpus_build, tmp_path_factory.mktemp("served"), "--rate-limit", "0") as served:
        yield served
