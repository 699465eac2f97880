"""What a user would pick in place of this server, each asked for the same hundred papers over the same vectors.

    python -m bench.peers NAME FOLDER

FOLDER holds papers.parquet, vectors.npy, queries.json and query_vectors.npy as bench.queries lays them out. Builds or
opens the peer, prints `ready SECONDS`, then answers every line with a query's number by the milliseconds it took.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

# As manifests/ has them; repeated, because importing them would count in a peer's memory.
DEPTH = 100
RRF_K = 60
K1, B = 1.5, 0.6


class Peer(ABC):
    """One way to search; ready once made."""

    @abstractmethod
    def search(self, terms: str, vector: np.ndarray[Any, Any]) -> Sequence[Any]:
        """The best hundred of both rankings."""


class BareMilvus(Peer):
    """`MilvusClient` on a copy of the same database, in process, asked exactly what the server asks."""

    database = "bare.db"

    def __init__(self, folder: Path, _papers: pl.DataFrame, _vectors: np.ndarray[Any, Any]) -> None:
        from pymilvus import MilvusClient

        self._client = MilvusClient(str(folder / self.database))
        (self._name,) = self._client.list_collections()
        self._client.load_collection(self._name)

    def search(self, terms: str, vector: np.ndarray[Any, Any]) -> Sequence[Any]:
        """See `Peer`."""
        from pymilvus import AnnSearchRequest, RRFRanker

        dense = AnnSearchRequest([vector], "dense", {"metric_type": "COSINE", "params": {"ef": 2 * DEPTH}}, DEPTH)
        sparse = AnnSearchRequest([terms], "sparse", {"metric_type": "BM25"}, DEPTH)
        found: list[Sequence[Any]] = self._client.hybrid_search(
            self._name, [dense, sparse], RRFRanker(), limit=DEPTH, output_fields=["paper_id"]
        )
        return found[0]


class FlatMilvus(BareMilvus):
    """The same over every vector instead of the HNSW graph: why the collection has that index, at each size."""

    database = "flat.db"

    def __init__(self, folder: Path, papers: pl.DataFrame, vectors: np.ndarray[Any, Any]) -> None:
        shutil.copytree(folder / super().database, folder / self.database)
        super().__init__(folder, papers, vectors)
        self._client.release_collection(self._name)
        self._client.drop_index(self._name, "dense")
        flat = self._client.prepare_index_params()
        flat.add_index("dense", index_type="FLAT", metric_type="COSINE")
        self._client.create_index(self._name, flat)
        self._client.load_collection(self._name)


class SqliteNumpy(Peer):
    """SQLite FTS5 for the words, one numpy product for the vectors."""

    def __init__(self, folder: Path, papers: pl.DataFrame, vectors: np.ndarray[Any, Any]) -> None:
        self._vectors = vectors
        self._database = sqlite3.connect(folder / "fts.db")
        self._database.execute("CREATE VIRTUAL TABLE papers USING fts5(search_text, tokenize = 'unicode61')")
        self._database.executemany(
            "INSERT INTO papers(rowid, search_text) VALUES (?, ?)", enumerate(papers["search_text"])
        )
        self._database.execute("INSERT INTO papers(papers) VALUES ('optimize')")
        self._database.commit()

    def search(self, terms: str, vector: np.ndarray[Any, Any]) -> Sequence[Any]:
        """See `Peer`."""
        query = " OR ".join(f'"{term}"' for term in terms.split())
        rows = self._database.execute(
            "SELECT rowid FROM papers WHERE papers MATCH ? ORDER BY rank LIMIT ?", (query, DEPTH)
        )
        scores = self._vectors @ vector
        best = np.argpartition(-scores, DEPTH)[:DEPTH]
        return fused([row[0] for row in rows], best[np.argsort(-scores[best])])


class Lance(Peer):
    """LanceDB's own hybrid query, its full-text index, exact vectors, its RRF."""

    def __init__(self, folder: Path, papers: pl.DataFrame, vectors: np.ndarray[Any, Any]) -> None:
        import lancedb
        import pyarrow as pa
        from lancedb.rerankers import RRFReranker

        rows = pa.table(
            {
                "paper_id": papers["paper_id"].to_list(),
                "search_text": papers["search_text"].to_list(),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
            }
        )
        self._table = lancedb.connect(folder / "lance").create_table("papers", rows)
        self._table.create_fts_index("search_text", stem=False, remove_stop_words=False)
        self._reranker = RRFReranker(RRF_K)

    def search(self, terms: str, vector: np.ndarray[Any, Any]) -> Sequence[Any]:
        """See `Peer`."""
        query = self._table.search(query_type="hybrid").vector(vector).text(terms).distance_type("cosine")
        found: Sequence[Any] = query.rerank(self._reranker).limit(DEPTH).select(["paper_id"]).to_arrow()
        return found


class Bm25sFaiss(Peer):
    """bm25s and an exact faiss index in this very process: the limit of what Python libraries do."""

    def __init__(self, _folder: Path, papers: pl.DataFrame, vectors: np.ndarray[Any, Any]) -> None:
        import bm25s
        import faiss

        self._words = bm25s.BM25(method="lucene", k1=K1, b=B)
        self._words.index([text.split() for text in papers["search_text"]], show_progress=False)
        self._vectors = faiss.IndexFlatIP(vectors.shape[1])
        self._vectors.add(vectors)

    def search(self, terms: str, vector: np.ndarray[Any, Any]) -> Sequence[Any]:
        """See `Peer`."""
        words, _ = self._words.retrieve([terms.split()], k=DEPTH, show_progress=False)
        _, near = self._vectors.search(vector[None], DEPTH)
        return fused(words[0], near[0])


PEERS: dict[str, Callable[[Path, pl.DataFrame, np.ndarray[Any, Any]], Peer]] = {
    "bare": BareMilvus,
    "flat": FlatMilvus,
    "sqlite": SqliteNumpy,
    "lancedb": Lance,
    "bm25s": Bm25sFaiss,
}


def fused(*rankings: Iterable[int]) -> list[int]:
    """The best hundred by reciprocal rank."""
    scores: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            scores[int(row)] += 1 / (RRF_K + rank)
    return sorted(scores, key=lambda row: (-scores[row], row))[:DEPTH]


def main(name: str, folder: Path) -> int:
    """Answer until standard input ends."""
    papers, vectors = pl.read_parquet(folder / "papers.parquet"), np.load(folder / "vectors.npy")
    queries = json.loads((folder / "queries.json").read_text(encoding="utf-8"))
    query_vectors = np.load(folder / "query_vectors.npy")
    started = time.perf_counter()
    peer = PEERS[name](folder, papers, vectors)
    del papers
    print(f"ready {time.perf_counter() - started:.3f}", flush=True)
    for line in sys.stdin:
        number = int(line)
        started = time.perf_counter()
        found = peer.search(queries[number], query_vectors[number])
        print(f"{1000 * (time.perf_counter() - started):.4f} {len(found)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
