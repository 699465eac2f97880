"""Retrieval as it is built and served, against floors: a judged set of our own, and papers known to be there."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from bench.known_items import find_known_items
from bench.title_queries import known_items
from manifests.embedding.local import LocalEmbedder, local_spec
from manifests.embedding.spec import Vectors
from manifests.errors import ProviderBusy, ProviderRefused
from manifests.gate import Index, open_index
from manifests.hybrid import Hit
from manifests.texts import query_text
from pipeline.corpus import tabulate
from pipeline.evaluate import ask, measure, trec
from pipeline.index import index
from pipeline.progress import silent
from pipeline.publish import draft
from pipeline.snapshot import open_snapshot
from pipeline.work import LINK, Target, switch_link
from tests.programs import REPOSITORY, SAMPLE, Build, run_pipeline

JUDGED = REPOSITORY / "tests" / "golden" / "sample-judged"
KNOWN_ITEM_FLOOR = 0.95


def lines_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def test_every_leg_keeps_its_floor_on_our_judged_set_and_fusing_loses_nothing(
    sample_build: Build, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    done = run_pipeline("evaluate", JUDGED, "--work", work, "--store", sample_build.store, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    floors = json.loads((JUDGED / "floors.json").read_text(encoding="utf-8"))
    assert {leg: found[leg].keys() for leg in found} == {leg: floors[leg].keys() for leg in floors}
    below = {
        (leg, name): found[leg][name] for leg in floors for name in floors[leg] if found[leg][name] < floors[leg][name]
    }
    assert not below
    assert found["hybrid"]["nDCG@10"] >= max(found["bm25"]["nDCG@10"], found["dense"]["nDCG@10"])

    papers = {paper["id"] for paper in lines_of(SAMPLE / "papers.jsonl")}
    for leg in floors:
        columns = [line.split() for line in (work / "runs" / f"{leg}.trec").read_text(encoding="utf-8").splitlines()]
        assert {len(row) for row in columns} == {6}
        assert {row[0] for row in columns} == {query["_id"] for query in lines_of(JUDGED / "queries.jsonl")}
        assert {row[2] for row in columns} <= papers


def test_our_judged_set_is_about_the_sample() -> None:
    papers = [
        {"_id": paper["id"], "title": paper["title"], "text": paper.get("abstract") or ""}
        for paper in lines_of(SAMPLE / "papers.jsonl")
    ]
    assert lines_of(JUDGED / "corpus.jsonl") == papers


def test_measures_are_those_of_trec_eval_with_ranks_in_the_order_given() -> None:
    equal = [Hit("b", 0.5), Hit("a", 0.5)]  # trec_eval would order equal scores by id, backwards
    found = measure({"bm25": {"1": equal, "2": []}}, {"1": {"a": 1}, "2": {"a": 1}, "3": {"a": 1, "gone": 1}})

    assert found == {"bm25": {"nDCG@10": round(1 / np.log2(3) / 3, 4), "R@100": 0.3333, "RR@10": 0.1667}}


def test_a_run_has_six_columns_whatever_the_ids() -> None:
    assert trec({"q 1": [Hit("a\tb", 1.0), Hit("ü%20", 0.5)]}, "bm25") == (
        "q%201 Q0 a%09b 1 1.000000 bm25\nq%201 Q0 ü%20 2 0.500000 bm25\n"
    )


def test_known_items_depend_on_papers_and_seed_alone() -> None:
    papers = [(paper["id"], paper["title"]) for paper in lines_of(SAMPLE / "papers.jsonl")]

    items = known_items(papers)
    assert items == known_items(reversed(papers))
    assert items != known_items(papers, seed=1)
    assert {item.kind for item in items} == {"words", "typos", "formula"}
    titles = dict(papers)
    assert all(item.query.strip() and item.query != titles[item.paper_id] for item in items)


def test_known_papers_of_the_sample_are_found(sample_build: Build, sample_index: Index) -> None:
    papers = [(paper_id, str(paper["title"])) for paper_id, paper in sample_index.papers.items()]

    found = find_known_items(sample_index, LocalEmbedder(local_spec()), known_items(papers), silent)

    assert found["hybrid"]["all"] >= KNOWN_ITEM_FLOOR
    assert found["bm25"]["all"] >= KNOWN_ITEM_FLOOR


class Hesitant(LocalEmbedder):
    """Does `before` a query, and leaves it at that until it returns."""

    def __init__(self, before: Callable[[str], None]) -> None:
        super().__init__(local_spec())
        self.stopped = threading.Event()
        self._before = before

    def embed_query(self, text: str, *, timeout_s: float, patient: bool = False) -> Vectors:
        assert patient
        self._before(text)
        return super().embed_query(text, timeout_s=timeout_s)

    def stop(self) -> None:
        self.stopped.set()


def test_a_busy_provider_is_asked_again_when_it_says(sample_index: Index) -> None:
    refused_at: list[float] = []

    def busy_once(_: str) -> None:
        if not refused_at:
            refused_at.append(time.monotonic())
            raise ProviderBusy("429", retry_after_s=0.3)

    runs = ask(sample_index, Hesitant(busy_once), {"1": "graphs"}, silent)

    assert time.monotonic() - refused_at[0] >= 0.3
    assert all(run["1"] for run in runs.values())


def test_once_the_provider_refuses_nobody_waits_any_longer(
    sample_index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.evaluate.cores_available", lambda: 2)
    waiting = threading.Event()

    def before(text: str) -> None:
        if text == "refused":
            assert waiting.wait(60)
            raise ProviderRefused("Arrearage")
        waiting.set()
        assert embedder.stopped.wait(60)

    embedder = Hesitant(before)

    with pytest.raises(ProviderRefused, match="Arrearage"):
        ask(sample_index, embedder, {"1": "refused", "2": "waits for room"}, silent)


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.timeout(1_800)
def test_known_papers_of_the_real_corpus_are_found_by_their_words(shared: Path, tmp_path: Path) -> None:
    """The BM25 leg on its own, since vectors of the whole corpus take an hour of CI; they only add to it."""
    corpus = tabulate(open_snapshot(shared / "snapshots" / "icml2026"), tmp_path, quarantine=True)
    manifest = draft(corpus, local_spec())
    target = Target(work=tmp_path, uri=str(tmp_path / LINK), token=None)
    index(corpus.path, any_vectors, manifest, target, silent)
    switch_link(tmp_path, manifest.collection.name)

    with closing(open_index(manifest, target.uri, query_spec=manifest.embedding)) as opened:
        items = known_items((paper_id, str(paper["title"])) for paper_id, paper in opened.papers.items())
        found = [
            item.paper_id
            in {hit.paper_id for hit in opened.lexical(query_text(item.query), where="", depth=10, timeout_s=60.0)}
            for item in items
        ]

    assert len(items) > 400
    assert sum(found) / len(found) >= KNOWN_ITEM_FLOOR


def any_vectors(text_sha256s: Sequence[str]) -> Vectors:
    """Vectors of length 1 that depend on the text alone."""
    dimension = local_spec().dimension
    rows = [np.random.default_rng(int(key[:16], 16)).standard_normal(dimension) for key in text_sha256s]
    return np.asarray([row / np.linalg.norm(row) for row in rows], dtype=np.float32)
