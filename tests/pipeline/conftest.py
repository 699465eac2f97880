"""What the tests of the embed stage stand on: 35 papers, and an empty store of the stand-in's spec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.embedding_store import EmbeddingStore
from tests.pipeline.embed_stand import SPEC, TITLES, papers


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return papers(tmp_path / "papers.parquet", TITLES)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddingStore]:
    with EmbeddingStore(tmp_path / "store", SPEC) as opened:
        yield opened
