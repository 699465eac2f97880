"""The index stage against a bare pymilvus loop over the same rows: insert, flush, the same indexes, in one run.

    python -m bench.index [--rows 6000] [--runs 3] [--seed 2026]

Rows are a synthetic snapshot's with deterministic unit vectors of 384 numbers. The two alternate; the ratio is that of
the medians. The bare loop gets its rows ready-made and runs the engine in its own process, as a script would.
Exits 1 above 1.2.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from milvus_lite.server_manager import server_manager_instance
from pymilvus import DataType, Function, FunctionType, MilvusClient

from bench.load import synthetic_records
from manifests.collection import (
    ANALYZER,
    BM25_PARAMS,
    DENSE,
    FIELDS,
    HNSW_PARAMS,
    KEY,
    RECORD_FIELDS,
    SEARCH_TEXT,
    SPARSE,
)
from manifests.embedding.local import local_spec
from manifests.embedding.spec import Vectors
from manifests.texts import search_text_of
from pipeline.corpus import tabulate
from pipeline.index import INSERT_ROWS, index
from pipeline.progress import silent
from pipeline.publish import draft
from pipeline.snapshot import Provenance, write_snapshot
from pipeline.work import Target

RATIO_MAX = 1.2
DIMENSION = 384


def main() -> int:
    """Run both in turn and compare their medians."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="bench-index-") as scratch:
        folder = Path(scratch)
        provenance = Provenance(
            name="synthetic", title="T", source="s", url="", retrieved_at="2026-01-01T00:00:00Z", licence="none"
        )
        snapshot = write_snapshot(folder / "synthetic", provenance, synthetic_records(arguments.rows, arguments.seed))
        corpus = tabulate(snapshot, folder / "work", quarantine=False)
        manifest = draft(corpus, local_spec())
        rows = _ready_made(corpus.path)
        ours: list[float] = []
        bare: list[float] = []
        for run in range(arguments.runs):
            work = folder / f"work-{run}"
            work.mkdir()
            target = Target(work, str(work / "milvus.db"), None)
            ours.append(_timed(lambda target=target: index(corpus.path, _vectors, manifest, target, silent)))
            bare.append(_timed(lambda run=run: _bare(folder / f"bare-{run}.db", rows)))
            print(f"run {run + 1}: stage {ours[-1]:.1f} s, bare loop {bare[-1]:.1f} s", flush=True)
    ratio = statistics.median(ours) / statistics.median(bare)
    print(f"{arguments.rows:,} rows: stage / bare loop {ratio:.2f} (at most {RATIO_MAX})")
    return int(ratio > RATIO_MAX)


def _vectors(text_sha256s: Sequence[str]) -> Vectors:
    """A unit vector a text, drawn from its own digest."""
    drawn = [np.random.default_rng(int(key[:16], 16)).normal(size=DIMENSION) for key in text_sha256s]
    return np.asarray([vector / np.linalg.norm(vector) for vector in drawn], dtype=np.float32)


def _ready_made(papers: Path) -> list[dict[str, Any]]:
    corpus = pl.read_parquet(papers).sort(KEY)
    vectors = _vectors(corpus["text_sha256"].to_list())
    fields = corpus.select(field.name for field in RECORD_FIELDS).iter_rows(named=True)
    return [
        row | {SEARCH_TEXT: search_text_of(row), DENSE: vector} for row, vector in zip(fields, vectors, strict=True)
    ]


def _bare(path: Path, rows: list[dict[str, Any]]) -> None:
    client = MilvusClient(str(path))
    schema = client.create_schema(auto_id=False)
    for field in FIELDS:
        if field.kind == "flag":
            schema.add_field(field.name, DataType.BOOL)
        elif field.kind == "texts":
            options = {"element_type": DataType.VARCHAR, "max_capacity": field.count_max, "max_length": field.bytes_max}
            schema.add_field(field.name, DataType.ARRAY, **options)
        else:
            analyzed = {"enable_analyzer": True, "analyzer_params": ANALYZER} if field.name == SEARCH_TEXT else {}
            options = {"max_length": field.bytes_max, "is_primary": field.name == KEY}
            schema.add_field(field.name, DataType.VARCHAR, **options, **analyzed)
    schema.add_field(DENSE, DataType.FLOAT_VECTOR, dim=DIMENSION)
    schema.add_field(SPARSE, DataType.SPARSE_FLOAT_VECTOR)
    schema.add_function(Function("bm25", FunctionType.BM25, [SEARCH_TEXT], [SPARSE]))
    params = client.prepare_index_params()
    params.add_index(SPARSE, index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params={"params": BM25_PARAMS})
    params.add_index(DENSE, index_type="HNSW", metric_type="COSINE", params={"params": HNSW_PARAMS})
    for field in FIELDS:
        if field.filtered:
            params.add_index(field.name, index_type="INVERTED")
    client.create_collection("papers", schema=schema, index_params=params)
    for first in range(0, len(rows), INSERT_ROWS):
        client.insert("papers", rows[first : first + INSERT_ROWS])
    client.flush("papers")
    client.load_collection("papers")
    client.close()
    server_manager_instance.release_server(str(path))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=2026)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
