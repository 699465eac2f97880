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
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from milvus_lite.server_manager import server_manager_instance
from pymilvus import DataType, Function, FunctionType, MilvusClient

from bench.corpora import drawn_vectors
from bench.measured import Measured, timed, told
from bench.synthetic import SEED, synthetic_records, synthetic_snapshot
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
from manifests.texts import search_text_of
from pipeline.corpus import tabulate
from pipeline.index import INSERT_ROWS, index
from pipeline.progress import silent
from pipeline.publish import draft
from pipeline.work import LINK, Target

RATIO_MAX = 1.2
ROWS, RUNS = 6_000, 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=SEED)
    return told(measured(**vars(parser.parse_args())))


def measured(rows: int = ROWS, runs: int = RUNS, seed: int = SEED) -> Measured:
    """Both in turn; the medians."""
    with tempfile.TemporaryDirectory(prefix="bench-index-") as scratch:
        folder = Path(scratch)
        snapshot = synthetic_snapshot(folder / "synthetic", synthetic_records(rows, seed))
        corpus = tabulate(snapshot, folder / "work", quarantine=False)
        manifest = draft(corpus, local_spec())
        ready_made = _ready_made(corpus.path)
        ours: list[float] = []
        bare: list[float] = []
        for run in range(runs):
            work = folder / f"work-{run}"
            work.mkdir()
            target = Target(work, str(work / LINK), None)
            ours.append(timed(partial(index, corpus.path, drawn_vectors, manifest, target, silent)))
            bare.append(timed(partial(_bare, folder / f"bare-{run}.db", ready_made)))
    return Measured(
        stage="index",
        size=f"{rows:,} rows, median of {runs}",
        seconds=statistics.median(ours),
        bare="pymilvus: create, insert, flush, load",
        bare_s=statistics.median(bare),
        ratio_max=RATIO_MAX,
    )


def _ready_made(papers: Path) -> list[dict[str, Any]]:
    corpus = pl.read_parquet(papers).sort(KEY)
    vectors = drawn_vectors(corpus["text_sha256"].to_list())
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
    schema.add_field(DENSE, DataType.FLOAT_VECTOR, dim=local_spec().dimension)
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


if __name__ == "__main__":
    sys.exit(main())
