"""What the tests of the embed stage stand on: 35 papers, and an empty store of the stand-in's spec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from manifests.embedding.spec import EmbeddingSpec
from pipeline.embedding_store import EmbeddingStore
from tests.pipeline.embed_stand import SPEC, TITLES, papers


@pytest.fixture
def titles() -> Sequence[str]:
    return TITLES


@pytest.fixture
def spec() -> EmbeddingSpec:
    return SPEC


@pytest.fixture
def corpus(tmp_path: Path, titles: Sequence[str]) -> Path:
    return papers(tmp_path / "papers.parquet", titles)


@pytest.fixture
def store(tmp_path: Path, spec: EmbeddingSpec) -> Iterator[EmbeddingStore]:
    with EmbeddingStore(tmp_path / "store", spec) as opened:
        yield opened
