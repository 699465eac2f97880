"""Evaluate: a judged set -> nDCG@10, R@100 and RR@10 of BM25, of the vectors and of both.

Reads    a judged set in BEIR layout
Writes   WORK: a snapshot of its documents, papers.parquet, one collection; runs/LEG.trec; metrics.json
Holds    the same stages, texts, collection and query functions as every build and the server
Resumes  stored vectors are not computed again, a complete collection is kept
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from manifests.embedding.local import cores_available
from manifests.embedding.spec import Embedder
from manifests.files import write_atomically
from manifests.gate import Index, open_index
from manifests.hybrid import RRF_K, Hit
from manifests.texts import collapsed, query_text
from pipeline.corpus import tabulate
from pipeline.embed import Policy, embed
from pipeline.embedding_store import EmbeddingStore
from pipeline.index import index
from pipeline.judged import Judged, read_judged
from pipeline.patience import Patience, patiently
from pipeline.progress import Report
from pipeline.publish import draft
from pipeline.snapshot import Provenance
from pipeline.snapshot_write import write_snapshot
from pipeline.work import LINK, Target, held, switch_link

LEGS = ("bm25", "dense", "hybrid")
MEASURES = ("nDCG@10", "R@100", "RR@10")
DEPTH = 100  # the candidate window of the server's default
_ENGINES_MAX = 4
_TIMEOUT_S = 120.0

# Leg -> query id -> hits, best first.
Runs = dict[str, dict[str, list[Hit]]]
Metrics = dict[str, dict[str, float]]


class Asked(NamedTuple):
    """One query as the three legs answered it."""

    query_id: str
    hits: dict[str, list[Hit]]


def evaluate(judged: Path, embedder: Embedder, store: Path, work: Path, report: Report) -> Metrics:
    """Leg -> measure -> mean over all judged queries, of the judged set in the folder `judged`.

    Raises:
        InputRefused: not a judged set.
        ContractError: as in a build; what was embedded is kept.
    """
    found = read_judged(judged)
    for note in found.notes:
        report(0, None, note)
    with held(work, f"evaluate {judged}"), closing(_indexed(found, embedder, store, work, report)) as opened:
        runs = ask(opened, embedder, found.queries, report)
    theirs = found.their_ids
    runs = {
        leg: {query_id: [Hit(theirs[hit.paper_id], hit.score) for hit in hits] for query_id, hits in run.items()}
        for leg, run in runs.items()
    }
    for leg, run in runs.items():
        write_atomically(work / "runs" / f"{leg}.trec", trec(run, leg).encode())
    metrics = measure(runs, found.qrels)
    write_atomically(work / "metrics.json", f"{json.dumps(metrics, indent=2)}\n".encode())
    return metrics


def _indexed(judged: Judged, embedder: Embedder, store: Path, work: Path, report: Report) -> Index:
    """The documents through every stage of a build, and the gate."""
    snapshot = work / "snapshot"
    shutil.rmtree(snapshot, ignore_errors=True)
    provenance = Provenance(
        name="judged", title="Judged set", source="BEIR layout", url="", retrieved_at="2026-01-01T00:00:00Z", licence=""
    )
    corpus = tabulate(write_snapshot(snapshot, provenance, judged.records), work, quarantine=True, report=report)
    if rejected := corpus.snapshot.counts.rejected:
        report(0, None, f"{rejected:,} documents are no good records; see {work / 'rejected.jsonl'}")
    with EmbeddingStore(store, embedder.spec) as vectors:
        embed(corpus.path, vectors, embedder, Policy(), report)
        manifest = draft(corpus, embedder.spec)
        target = Target(work=work, uri=str(work / LINK), token=None)
        index(corpus.path, vectors.vectors, manifest, target, report, missing=vectors.missing)
    switch_link(work, manifest.collection.name)
    engines = min(_ENGINES_MAX, cores_available())
    return open_index(manifest, target.uri, query_spec=embedder.spec, engines=engines)


def ask(opened: Index, embedder: Embedder, queries: Mapping[str, str], report: Report) -> Runs:
    """Every query to every leg, as the server would ask."""
    stopping = threading.Event()

    def asked(query: tuple[str, str]) -> Asked:
        query_id, text = query
        text, terms = collapsed(text), query_text(text)
        bm25 = opened.lexical(terms, where="", depth=DEPTH, timeout_s=_TIMEOUT_S)
        if not text:
            return Asked(query_id, {"bm25": bm25, "dense": [], "hybrid": bm25})
        vector = patiently(lambda: embedder.embed_query(text, timeout_s=_TIMEOUT_S, patient=True), Patience(), stopping)
        dense = opened.dense(vector, where="", depth=DEPTH, timeout_s=_TIMEOUT_S)
        hybrid = opened.hybrid(vector, terms, where="", depth=DEPTH, timeout_s=_TIMEOUT_S)
        return Asked(query_id, {"bm25": bm25, "dense": _ranked(dense), "hybrid": hybrid})

    runs: Runs = {leg: {} for leg in LEGS}
    with ThreadPoolExecutor(min(_ENGINES_MAX, cores_available())) as pool:
        try:
            for done, answer in enumerate(pool.map(asked, queries.items()), start=1):
                for leg, hits in answer.hits.items():
                    runs[leg][answer.query_id] = hits
                report(done, len(queries), "")
        except BaseException:  # also at Ctrl-C nobody may wait any longer, for room or to try again; raised again
            stopping.set()
            embedder.stop()
            raise
    return runs


def words(metrics: Metrics) -> str:
    """The metrics as a table for people."""
    measures = list(metrics[LEGS[0]])
    rows = [f"{'':<8}" + "".join(f"{name:>12}" for name in measures)]
    rows += [f"{leg:<8}" + "".join(f"{value:>12.4f}" for value in metrics[leg].values()) for leg in metrics]
    return "\n".join(rows)


def _ranked(paper_ids: Sequence[str]) -> list[Hit]:
    return [Hit(paper_id, (RRF_K + 1) / (RRF_K + rank)) for rank, paper_id in enumerate(paper_ids, start=1)]


def trec(run: Mapping[str, Iterable[Hit]], tag: str) -> str:
    """A TREC run: query id, Q0, document id, rank, score, tag; white space inside an id is percent-encoded."""
    lines = [
        f"{_column(query_id)} Q0 {_column(hit.paper_id)} {rank} {hit.score:.6f} {tag}\n"
        for query_id, hits in run.items()
        for rank, hit in enumerate(hits, start=1)
    ]
    return "".join(lines)


def _column(text: str) -> str:
    return quote(text, safe="") if any(character.isspace() for character in text) else text


def measure(runs: Runs, qrels: Mapping[str, Mapping[str, int]]) -> Metrics:
    """Leg -> measure -> mean over every query of `qrels`; one without an answer counts as 0.

    The order of the hits is what counts: they are scored by rank, since equal scores would be ordered anew.
    """
    import ir_measures

    measures = {name: ir_measures.parse_measure(name) for name in MEASURES}
    metrics: Metrics = {}
    for leg, run in runs.items():
        ranked = {query_id: {hit.paper_id: -float(at) for at, hit in enumerate(hits)} for query_id, hits in run.items()}
        sums = dict.fromkeys(MEASURES, 0.0)
        for value in ir_measures.iter_calc(list(measures.values()), qrels, ranked):
            sums[str(value.measure)] += value.value
        metrics[leg] = {name: round(sums[name] / len(qrels), 4) for name in MEASURES}
    return metrics
