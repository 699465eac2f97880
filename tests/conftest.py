"""What every test stands on: a scrubbed environment, the optional real data, one built sample index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from manifests.contract import read_manifest
from manifests.gate import Index, open_index
from tests.programs import REPOSITORY, SAMPLE, Build, run_build

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


@pytest.fixture(scope="session")
def sample_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """snapshots/sample, built once by the real program with the local model. Read it, never change it."""
    return run_build(SAMPLE, tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="session")
def sample_index(sample_build: Build) -> Iterator[Index]:
    """The sample's collection, opened through the gate."""
    manifest = read_manifest(sample_build.manifest)
    index = open_index(manifest, sample_build.uri, query_spec=manifest.embedding)
    yield index
    index.close()
