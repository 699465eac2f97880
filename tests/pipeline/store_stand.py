"""What the tests of the embedding store stand on: texts, their vectors, and stores with both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.embedding_store import EmbeddingStore
from tests.pipeline.embed_stand import SPEC, vector_of


def key(number: int) -> str:
    return hashlib.sha256(f"text {number}".encode()).hexdigest()


def keys(numbers: Sequence[int]) -> list[str]:
    return [key(number) for number in numbers]


def rows(numbers: Sequence[int]) -> np.ndarray:
    return np.stack([vector_of(f"text {number}") for number in numbers])


def fill(folder: Path, *parts: Sequence[int]) -> None:
    with EmbeddingStore(folder, SPEC) as store:
        for numbers in parts:
            store.append(keys(numbers), rows(numbers))


def manifest(path: Path, digest: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"digest": digest}), encoding="utf-8")
    return path


def parts(folder: Path) -> list[Path]:
    return sorted((folder / SPEC.fingerprint).glob("part-*.parquet"))


def cut_short(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-20])
