"""From papers.parquet to requests: the texts that have no vector yet, cut into batches that the embedder takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import polars as pl

from manifests.embedding.spec import Embedder
from manifests.errors import InputRefused
from manifests.texts import embed_text, text_sha256
from pipeline.records import TEXT_KEY

_ROWS_READ = 4_096  # of papers.parquet at once: memory does not grow with the corpus
_TEXTS_COUNTED = 128  # tokens counted at once, while requests are in flight


class Batch(NamedTuple):
    """Texts that go in one request, with the tokens each is counted at."""

    keys: list[str]
    texts: list[str]
    tokens: list[int]


def missing_texts(papers: Path, missing: set[str]) -> Iterator[tuple[str, str]]:
    """Pairs (sha256, embed text) of the corpus at `papers`: each missing one once, in corpus order.

    Empties `missing`.

    Raises:
        InputRefused: the file was made by another version of the embed text.
    """
    corpus = pl.scan_parquet(papers, glob=False).select(TEXT_KEY, "title", "abstract")
    offset = 0
    while missing and len(rows := corpus.slice(offset, _ROWS_READ).collect()):
        offset += len(rows)
        for key, title, abstract in rows.iter_rows():
            if key not in missing:
                continue
            text = embed_text(title, abstract)
            if text_sha256(text) != key:
                raise InputRefused(
                    f"{papers}: the text of {title!r} has sha256 {text_sha256(text)}, the column says {key}; the file "
                    "was made by another version: run `python -m pipeline load` again"
                )
            missing.discard(key)
            yield key, text


def batches(texts: Iterator[tuple[str, str]], embedder: Embedder) -> Iterator[Batch]:
    """Pairs (sha256, text) in their order, cut where a request would hold too many texts or tokens."""
    batch = Batch([], [], [])
    while chunk := list(islice(texts, _TEXTS_COUNTED)):
        counted = embedder.count_tokens([text for _, text in chunk])
        for (key, text), tokens in zip(chunk, counted, strict=True):
            full = len(batch.keys) >= embedder.batch_texts_max
            if batch.keys and (full or sum(batch.tokens) + tokens > embedder.batch_tokens_max):
                yield batch
                batch = Batch([], [], [])
            batch.keys.append(key)
            batch.texts.append(text)
            batch.tokens.append(tokens)
    if batch.keys:
        yield batch
