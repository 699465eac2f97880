"""The embedded engine in its child: the answers of the bare library, without its needless work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from manifests.collection import DENSE, KEY
from manifests.embedding.local import LocalEmbedder
from manifests.gate import Index
from manifests.hybrid import SCORE_DIGITS, SCORE_MAX
from manifests.lite import SEARCHED, linked
from manifests.lite_child import make_rows_lean
from tests.programs import Build

TIMEOUT_S = 30.0
QUERIES = ("graph neural networks", "causal inference from text", "quantum")
WHERES = ("", "spotlight == true")
# The bare library in a program of its own, on links to the same files: ids and scores of both requests fused, and the
# stored vector of the first hit.
BARE = """
import json, sys
from pymilvus import AnnSearchRequest, MilvusClient, RRFRanker
client = MilvusClient(sys.argv[1])
(name,) = client.list_collections()
client.load_collection(name)
answers = []
for text, vector, where in json.load(sys.stdin):
    requests = [
        AnnSearchRequest([vector], "dense", {"metric_type": "COSINE", "params": {"ef": 16384}}, 50, expr=where or None),
        AnnSearchRequest([text], "sparse", {"metric_type": "BM25"}, 50, expr=where or None),
    ]
    hits = client.hybrid_search(name, requests, RRFRanker(), limit=50, output_fields=["paper_id"])[0]
    ranking = [(hit["paper_id"], hit["distance"]) for hit in hits]
    (stored,) = client.get(name, ids=[ranking[0][0]], output_fields=["dense"])
    answers.append((ranking, [float(value) for value in stored["dense"]]))
json.dump(answers, sys.stdout)
"""


def test_the_child_answers_as_the_bare_library_does(sample_index: Index, sample_build: Build, tmp_path: Path) -> None:
    embedder = LocalEmbedder(sample_index.manifest.embedding)
    asked = [
        (text, embedder.embed_query(text, timeout_s=TIMEOUT_S).tolist(), where) for text in QUERIES for where in WHERES
    ]
    folder = linked(Path(sample_build.uri), tmp_path / "bare.db")
    bare = subprocess.run(
        [sys.executable, "-c", BARE, str(folder)], input=json.dumps(asked), capture_output=True, text=True, check=True
    )

    for (text, vector, where), (ranking, stored) in zip(asked, json.loads(bare.stdout), strict=True):
        hits = sample_index.hybrid(
            np.asarray(vector, dtype=np.float32), text, where=where, depth=50, timeout_s=TIMEOUT_S
        )
        wanted = [(paper_id, round(score / SCORE_MAX, SCORE_DIGITS)) for paper_id, score in ranking]
        assert hits == wanted
        (engine,) = sample_index._engines
        assert engine.vector(sample_index.manifest.collection.name, hits[0].paper_id) == stored


def test_no_hit_pays_for_columns_that_nobody_asked_for(sample_build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    from milvus_lite.engine import collection

    (rows,) = Path(sample_build.uri).resolve().rglob("data/*.parquet")
    whole = collection.Segment.load(str(rows), "_default", KEY, DENSE)
    monkeypatch.setattr(collection, "Segment", collection.Segment)
    make_rows_lean(SEARCHED)

    lean = collection.Segment.load(str(rows), "_default", KEY, DENSE)

    assert set(lean.table.column_names) == {"_seq", *SEARCHED}
    assert np.shares_memory(lean.row_to_dict(3)[DENSE], lean.vectors)
    assert {**lean.row_to_dict(3), DENSE: lean.row_to_dict(3)[DENSE].tolist()} == whole.row_to_dict(3)
