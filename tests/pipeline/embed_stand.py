"""What the embed tests stand on: papers.parquet, and an embedder that can be told to fail."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from manifests.embedding.spec import EmbeddingSpec, Vectors
from manifests.texts import embed_text, text_sha256
from pipeline.embed import Policy, embed
from pipeline.embedding_store import EmbeddingStore

TITLES = [f"Paper {number}" for number in range(35)]
SPEC = EmbeddingSpec(
    provider="dashscope",
    model="scripted",
    dimension=8,
    document_text_type="document",
    query_text_type="query",
    weights_sha256=None,
)
# One step of what the provider does to a call: raise, wait, or nothing.
Step = Callable[[Sequence[str]], None]


def papers(path: Path, titles: Sequence[str]) -> Path:
    """papers.parquet with what the stage reads, one paper a title."""
    texts = [embed_text(title, f"About {title}.") for title in titles]
    pl.DataFrame(
        {
            "paper_id": [f"id-{number:05}" for number in range(len(titles))],
            "title": list(titles),
            "abstract": [f"About {title}." for title in titles],
            "text_sha256": [text_sha256(text) for text in texts],
        }
    ).write_parquet(path)
    return path


def vector_of(text: str, dimension: int = 8) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return np.random.default_rng(seed).normal(size=dimension).astype(np.float32)


class Scripted:
    """An embedder whose calls follow `steps`, one a call, and then succeed."""

    def __init__(self, *steps: Step, texts_max: int = 10, tokens_max: int = 1_000, concurrency: int = 1) -> None:
        self.spec = SPEC
        self.batch_texts_max, self.batch_tokens_max, self.concurrency = texts_max, tokens_max, concurrency
        self.tokens_spent = 0
        self.calls: list[list[str]] = []
        self.answered: list[str] = []
        self.stopped = False
        self._steps = list(steps)
        self._lock = threading.Lock()

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def usage_note(self) -> str:
        return "quota 7 %"

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        with self._lock:
            step = self._steps[len(self.calls)] if len(self.calls) < len(self._steps) else None
            self.calls.append(list(texts))
        if step:
            step(texts)
        with self._lock:
            self.answered += texts
            self.tokens_spent += sum(self.count_tokens(texts))
        return np.stack([vector_of(text) for text in texts])

    def embed_query(self, text: str, *, timeout_s: float, patient: bool = False) -> Vectors:
        raise AssertionError("a build embeds documents only")

    def stop(self) -> None:
        self.stopped = True


def well(_texts: Sequence[str]) -> None:
    """The call succeeds."""


def raising(error: Exception) -> Step:
    def step(_texts: Sequence[str]) -> None:
        raise error

    return step


def main() -> None:
    """`python embed_stand.py PAPERS STORE TEXTS_MAX [KILL_AT]`: one build; dies by SIGKILL inside call KILL_AT."""
    corpus, store, texts_max, *kill = sys.argv[1:]

    def die(_texts: Sequence[str]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work(_texts: Sequence[str]) -> None:
        time.sleep(0.002)  # stands for the provider's time

    steps = [work] * (int(kill[0]) if kill else 10_000) + [die]
    embedder = Scripted(*steps, texts_max=int(texts_max), concurrency=2)
    with EmbeddingStore(Path(store), SPEC) as opened:
        embed(Path(corpus), opened, embedder, Policy())


if __name__ == "__main__":
    main()
