"""The evidence for the search text and BM25's parameters, as docs/retrieval.md.

    python -m bench.retrieval JUDGED [JUDGED ...] --work DIR [--store DIR] [--index MANIFEST WORK] [--out FILE]

Every JUDGED folder is a set in BEIR layout. First the path as it is built and served: `pipeline evaluate` on each,
known items on a published index. Then one choice after another over the same texts and vectors, with BM25 by bm25s and
the fusion computed in this process; where the row in force does not repeat the numbers of the path, no page is written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np

from bench.known_items import FLOOR, known_items_table
from bench.measured import conditions
from docs.markdown import markdown_table, paragraphs
from manifests import texts
from manifests.collection import BM25_PARAMS
from manifests.embedding.local import LocalEmbedder, local_spec
from manifests.hybrid import RRF_K, Hit
from manifests.places import state_home
from manifests.stems import stemmed as stem
from pipeline.embedding_store import EmbeddingStore
from pipeline.evaluate import DEPTH, MEASURES, Metrics, evaluate, measure
from pipeline.judged import Judged, read_judged
from pipeline.progress import silent

PACKAGES = ("pymilvus", "milvus-lite", "bm25s", "faiss-cpu", "onnxruntime", "PyStemmer", "ir-measures", "numpy")


@dataclass(frozen=True)
class Choice:
    """One way to make and weigh the words; the defaults are what is in force."""

    stems: bool = True
    function_words: str = "in documents"
    title_times: int = texts.TITLE_TIMES
    k1: float = BM25_PARAMS["bm25_k1"]
    b: float = BM25_PARAMS["bm25_b"]
    window: int = DEPTH


IN_FORCE = Choice()
PLAIN = Choice(stems=False, function_words="everywhere", title_times=1, k1=1.2, b=0.75)
# The first rows lead from PLAIN to IN_FORCE, the others change one choice of it.
STEPS: dict[str, Choice] = {
    f"words as they stand, k1 {PLAIN.k1}, b {PLAIN.b}": PLAIN,
    "+ stems": (stems := replace(PLAIN, stems=IN_FORCE.stems)),
    "+ queries without function words": (asked := replace(stems, function_words=IN_FORCE.function_words)),
    f"+ title {IN_FORCE.title_times} times": replace(asked, title_times=IN_FORCE.title_times),
    f"+ k1 {IN_FORCE.k1}, b {IN_FORCE.b}: **in force**": IN_FORCE,
    "in force, without stems": replace(IN_FORCE, stems=False),
    "in force, function words kept in queries": replace(IN_FORCE, function_words="everywhere"),
    "in force, none in documents either": replace(IN_FORCE, function_words="nowhere"),
    "in force, title once": replace(IN_FORCE, title_times=1),
    "in force, title three times": replace(IN_FORCE, title_times=3),
    "in force, k1 0.9, b 0.4": replace(IN_FORCE, k1=0.9, b=0.4),
    "in force, k1 2.0, b 0.75": replace(IN_FORCE, k1=2.0, b=0.75),
    "in force, window 50": replace(IN_FORCE, window=50),
    "in force, window 200": replace(IN_FORCE, window=200),
}
# nDCG@10 of BM25 alone and of the fusion.
Scores = tuple[float, float]


@dataclass(frozen=True)
class Prepared:
    """A judged set with its dense rankings."""

    judged: Judged
    dense: Mapping[str, Sequence[int]]


def main() -> int:
    """Write the page; 1 in place of it when its row in force is not what the path gives."""
    arguments = _arguments()
    embedder = LocalEmbedder(local_spec())
    path = {
        folder.name: evaluate(folder, embedder, arguments.store, arguments.work / folder.name, silent)
        for folder in arguments.judged
    }
    prepared = {folder.name: _prepared(folder, embedder, arguments.store) for folder in arguments.judged}
    scores: dict[str, dict[str, Scores]] = {}
    for words, choice in STEPS.items():
        scores[words] = {name: _scores(each, choice) for name, each in prepared.items()}
        print(words, *scores[words].values(), file=sys.stderr, flush=True)
        if choice == IN_FORCE and (differing := differences(path, scores[words])):
            print(*differing, "The page is not written.", sep="\n", file=sys.stderr)
            return 1
    known = f"## Known items\n\n{KNOWN}\n\n{known_items_table(*arguments.index)[0]}" if arguments.index else ""
    heading = f"# Retrieval\n\n{conditions('bench.retrieval', PACKAGES)} Local model {local_spec().model}."
    asked = sorted(len(each.judged.queries) for each in prepared.values())
    about = CHOICES.format(window=IN_FORCE.window, fewest=asked[0], most=asked[-1])
    parts = [heading, _path_table(path), known, _choices_table(about, scores), REASONS]
    text = paragraphs([part for part in parts if part])
    print(text, end="") if arguments.out is None else arguments.out.write_text(text, encoding="utf-8")
    return 0


def differences(path: Mapping[str, Metrics], row: Mapping[str, Scores]) -> list[str]:
    """Where the row in force differs, as printed, from the path as it is built and served."""
    return [
        f"{name}, {leg}: the path has {metrics[leg]['nDCG@10']:.4f}, the row in force {score:.4f}"
        for name, metrics in path.items()
        for leg, score in zip(("bm25", "hybrid"), row[name], strict=True)
        if f"{metrics[leg]['nDCG@10']:.4f}" != f"{score:.4f}"
    ]


def _path_table(path: Mapping[str, Metrics]) -> str:
    rows = [
        (name, leg, *(f"{value:.4f}" for value in found.values()))
        for name, metrics in path.items()
        for leg, found in metrics.items()
    ]
    return f"## The path as it is built and served\n\n{markdown_table(('set', 'ranking', *MEASURES), rows)}"


def _choices_table(about: str, scores: Mapping[str, Mapping[str, Scores]]) -> str:
    names = next(iter(scores.values()))
    header = ("nDCG@10", *(f"{name} {ranking}" for name in names for ranking in ("BM25", "fused")))
    rows = [(words, *(f"{score:.4f}" for both in row.values() for score in both)) for words, row in scores.items()]
    return f"## One choice after another\n\n{about}\n\n{markdown_table(header, rows)}"


def _prepared(folder: Path, embedder: LocalEmbedder, store: Path) -> Prepared:
    judged = read_judged(folder)
    keys = [texts.text_sha256(texts.embed_text(record["title"], record["abstract"])) for record in judged.records]
    with closing(EmbeddingStore(store, embedder.spec, create=False)) as opened:
        vectors = opened.vectors(keys)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    dense = {
        query_id: np.argsort(
            -(vectors @ embedder.embed_query(texts.collapsed(text), timeout_s=60)), kind="stable"
        ).tolist()
        for query_id, text in judged.queries.items()
    }
    return Prepared(judged, dense)


def _scores(prepared: Prepared, choice: Choice) -> Scores:
    judged = prepared.judged
    stemmed: Callable[[Sequence[str]], str] = stem if choice.stems else " ".join
    with mock.patch.multiple(texts, stemmed=stemmed, TITLE_TIMES=choice.title_times):
        documents = [texts.search_text_of(record).split() for record in judged.records]
        ask = texts.normalise if choice.function_words == "everywhere" else texts.query_text
        queries = {query_id: ask(text).split() for query_id, text in judged.queries.items()}
    if choice.function_words == "nowhere":
        documents = [[word for word in document if word not in texts.FUNCTION_WORDS] for document in documents]
    words = _ranked(documents, queries, choice)
    fused = {query_id: _fused(words[query_id], prepared.dense[query_id], choice.window) for query_id in queries}
    ids = [judged.their_ids[record["id"]] for record in judged.records]
    runs = {
        leg: {query_id: [Hit(ids[row], 0.0) for row in found] for query_id, found in run.items()}
        for leg, run in (("bm25", words), ("hybrid", fused))
    }
    found = measure(runs, judged.qrels)
    return found["bm25"]["nDCG@10"], found["hybrid"]["nDCG@10"]


def _ranked(
    documents: Sequence[Sequence[str]], queries: Mapping[str, Sequence[str]], choice: Choice
) -> dict[str, list[int]]:
    """The best rows by BM25 that hold a word of the query; equal scores in the order of the rows, as Milvus Lite."""
    import bm25s

    index = bm25s.BM25(method="lucene", k1=choice.k1, b=choice.b)
    index.index(documents, show_progress=False)
    ranked = {}
    for query_id, query in queries.items():
        scores = index.get_scores_from_ids(index.get_tokens_ids(query))
        best = np.argsort(-scores, kind="stable")[: choice.window]
        ranked[query_id] = [int(row) for row in best if scores[row] > 0]
    return ranked


def _fused(words: Sequence[int], dense: Sequence[int], window: int) -> list[int]:
    scores: dict[int, float] = {}
    for ranking in (words[:window], dense[:window]):
        for rank, row in enumerate(ranking, start=1):
            scores[row] = scores.get(row, 0.0) + 1 / (RRF_K + rank)
    return sorted(scores, key=lambda row: (-scores[row], row))[:window]


KNOWN = (
    "Queries made by rule and seed from the titles of the corpus (`bench/title_queries.py`): four title words in any "
    "order, words with typing errors, the name before the colon, a formula without its markup, a paraphrase. The share "
    f"whose paper stands among the first ten; at least {FLOOR} of `all` must be found by the hybrid ranking."
)
CHOICES = (
    "Each row is BM25 alone and its fusion with the same vectors, window {window} unless it says otherwise. BM25 is "
    "that of bm25s, and the row in force gives the numbers of the path above. Rows of ±0.005 are alike: the sets have "
    "{fewest} to {most} queries."
)
REASONS = """\
## What is in force, and why

Each with the rest as it is; a gain or a loss is one of more than 0.005.

- **Stems** (Snowball English, and the plurals of abbreviations it does not know) gain most of all choices, for BM25 and
  for the fusion, on every set.
- **Function words** are dropped from queries: BM25 gains on CACM, the fusion on SciFact, nothing loses, and Milvus is
  spared the longest postings. Documents keep them. Without them BM25 would be alike on every set, and the fusion would
  gain on CACM; but `Will` would find no author, and a query of nothing else no paper, which no judged set asks for.
- **The title counts twice**: BM25 gains on CACM and Cranfield, the fusion is alike. Three times is alike on every set
  and lengthens every document.
- **k1 and b** against the usual 1.2 and 0.75: both rankings gain on CACM and are alike on the others. With the lower
  pair BM25 loses on every set, though the fusion gains on CACM; with the higher pair both lose on CACM.
- **Order of the fields** changes nothing: BM25 knows no places. **Truncation**: none; a record that is too long is
  a bad record.
- **Window**: 200 is alike on every set and costs time; 50 loses on CACM."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judged", type=Path, nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=state_home(os.environ) / "vectors")
    parser.add_argument("--index", type=Path, nargs=2, metavar=("MANIFEST", "WORK"), help="for known items")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
