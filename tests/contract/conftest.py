"""The emulated service, and the adapter over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.emulated_quota import Quota
from bench.emulator import Emulator, emulator
from manifests.embedding.dashscope import DashScopeEmbedder
from tests.contract.dashscope_stand import KEY, opened


@pytest.fixture
def service() -> Iterator[Emulator]:
    with emulator(Quota(100_000, 100_000_000), api_key=KEY) as running:
        yield running


@pytest.fixture
def embedder(service: Emulator, tmp_path: Path) -> DashScopeEmbedder:
    return opened(service, tmp_path)
