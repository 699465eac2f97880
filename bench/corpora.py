"""Corpora for the query benchmark: a published index and the same papers laid out for every peer."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench.synthetic import SEED, synthetic_records, synthetic_snapshot
from manifests.collection import KEY
from manifests.contract import write_manifest
from manifests.embedding.local import local_spec
from manifests.embedding.spec import Vectors
from manifests.texts import search_text_of
from pipeline.corpus import tabulate
from pipeline.embedding_store import EmbeddingStore
from pipeline.index import index
from pipeline.progress import silent
from pipeline.publish import draft
from pipeline.records import TEXT_KEY
from pipeline.snapshot import Snapshot, open_snapshot
from pipeline.work import LINK, Target, switch_link

# Real papers, where somebody has put them beside the checkout; they are no part of the repository.
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
LISTS = ("iclr2026.jsonl.gz", "icml2026_workshops.jsonl.gz")
PARQUET = "papers.parquet"


@dataclass(frozen=True)
class Laid:
    """One corpus on disk; `vectors` says in words what they are."""

    folder: Path
    work: Path
    manifest: Path
    title: str
    papers: int
    vectors: str


def lay_out(folder: Path, snapshot: Snapshot, store: Path | None, terms: Sequence[str], query_vectors: Vectors) -> Laid:
    """Publish `snapshot` under `folder`, and lay out its papers and vectors and the queries for the peers."""
    work, manifest_path = folder / "work", folder / "manifest.json"
    spec = local_spec()
    corpus = tabulate(snapshot, work, quarantine=True)
    manifest = draft(corpus, spec)
    read_vectors: Callable[[Sequence[str]], Vectors] = (
        EmbeddingStore(store, spec, create=False).vectors if store else drawn_vectors
    )
    index(corpus.path, read_vectors, manifest, Target(work, str(work / LINK), None), silent)
    switch_link(work, manifest.collection.name)
    write_manifest(manifest, manifest_path)
    rows = pl.read_parquet(corpus.path).sort(KEY)
    words = pl.Series("search_text", [search_text_of(row) for row in rows.iter_rows(named=True)])
    papers = rows.select(KEY, words, TEXT_KEY)
    papers.write_parquet(folder / PARQUET)
    np.save(folder / "vectors.npy", read_vectors(papers[TEXT_KEY].to_list()))
    (folder / "queries.json").write_text(json.dumps(terms), encoding="utf-8")
    np.save(folder / "query_vectors.npy", query_vectors)
    shutil.copytree(work / f"{manifest.collection.name}.db", folder / "bare.db")
    vectors = f"{'local model' if store else 'random unit'} vectors"
    return Laid(folder, work, manifest_path, snapshot.card.title, len(papers), vectors)


def real_snapshot(name: str) -> Snapshot | None:
    """A real snapshot from beside the checkout; None where there is none."""
    folder = SHARED / "snapshots" / name
    return open_snapshot(folder) if folder.is_dir() else None


def drawn_vectors(text_sha256s: Sequence[str]) -> Vectors:
    """A unit vector a text, drawn from its own digest, shape (texts, dimension)."""
    dimension = local_spec().dimension
    drawn = [np.random.default_rng(int(key[:16], 16)).standard_normal(dimension) for key in text_sha256s]
    return np.asarray([vector / np.linalg.norm(vector) for vector in drawn], dtype=np.float32)


def many_papers(folder: Path, papers: int) -> Snapshot:
    """A snapshot of `papers` made-up papers: titles of real lists, each with the sentences of two other papers."""
    listed = all((SHARED / name).is_file() for name in LISTS)
    return synthetic_snapshot(folder, _mixed(_listed(), papers) if listed else synthetic_records(papers))


def _listed() -> list[dict[str, Any]]:
    listed = []
    for name in LISTS:
        with gzip.open(SHARED / name, "rt", encoding="utf-8") as lines:
            listed += [json.loads(line) for line in lines]
    return listed


def _mixed(listed: Sequence[dict[str, Any]], papers: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(SEED)
    for number in range(papers):
        sentences = [
            sentence for paper in chance.sample(listed, 2) for sentence in (paper.get("abstract") or "").split(". ")
        ]
        kept = chance.sample(sentences, (len(sentences) + 1) // 2)
        titled = listed[number % len(listed)]
        yield {
            "id": f"m{number:07d}",
            "title": titled["title"],
            "abstract": ". ".join(kept),
            "authors": titled.get("authors") or [],
            "keywords": titled.get("keywords") or [],
        }
