"""The gate: what `validate`, CI and the server's start run before anything is served.

manifest agrees with this version -> Lite files equal artifact.json -> schema, BM25 function, analyzer, indexes ->
row count and the full paper-id set -> content digest from the stored fields -> query spec equals build spec ->
a hybrid query answers on every engine. No provider is called. `open_index` is the only maker of an `Index`.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from manifests.artifact import NAME as ARTIFACT
from manifests.artifact import Artifact, file_differences
from manifests.collection import (
    DENSE,
    FIELDS,
    KEY,
    RECORD_FIELDS,
    SEARCH_TEXT,
    collection_facts,
    content_sha256,
    ids_sha256,
    paper_digest,
)
from manifests.contract import Catalogue, CollectionFacts, Manifest, TextVersions, canonical_json
from manifests.embedding.spec import EmbeddingSpec, Vectors
from manifests.errors import Difference, IndexRefused, MilvusError
from manifests.hybrid import Hit, hybrid, lexical
from manifests.lite import LiteEngine, folder_digests, is_lite, linked
from manifests.milvus import Milvus
from manifests.texts import EMBED_TEXT_VERSION, SEARCH_TEXT_VERSION, search_text_of

# Names of the checks, in order; a published manifest lists those that passed.
CHECKS = (
    "specs",
    "files",
    "schema",
    "rows",
    "paper_ids",
    "content",
    "hybrid_query",
)
IDS_NAMED_MAX = 20
_CANARY_TOKENS = 32
_TIMEOUT_S = 60.0
# Lite builds its BM25 index in the first query: 10 s of processor time at 50,000 papers, on a busy machine minutes.
_FIRST_QUERY_TIMEOUT_S = 900.0

Paper = Mapping[str, Any]
# paper_digest by paper id
CorpusDigests = Callable[[], Mapping[str, bytes]]
R = TypeVar("R")


class Index:
    """A collection that was compared with its manifest; `papers` are the stored fields that were compared.

    Thread-safe. Queries go to the engine with the fewest in flight.
    """

    def __init__(
        self,
        manifest: Manifest,
        papers: Mapping[str, Paper],
        engines: Sequence[Milvus],
        children: Sequence[LiteEngine],
        opened: ExitStack,
    ) -> None:
        self.manifest = manifest
        self.papers = papers
        self._name = manifest.collection.name
        self._engines = list(engines)
        self._children = list(children)
        self._in_flight = [0] * len(engines)
        self._lock = threading.Lock()
        self._opened = opened

    def hybrid(self, vector: Vectors, text: str, where: str, depth: int, timeout_s: float) -> list[Hit]:
        """See `manifests.hybrid.hybrid`."""
        return self._on_an_engine(lambda milvus: hybrid(milvus, self._name, vector, text, where, depth, timeout_s))

    def lexical(self, text: str, where: str, depth: int, timeout_s: float) -> list[Hit]:
        """See `manifests.hybrid.lexical`."""
        return self._on_an_engine(lambda milvus: lexical(milvus, self._name, text, where, depth, timeout_s))

    def dense(self, vector: Vectors, where: str, depth: int, timeout_s: float) -> list[str]:
        """The dense ranking alone, for evaluation: ids, best first."""
        return self._on_an_engine(lambda milvus: milvus.dense(self._name, vector, where, depth, timeout_s))

    def vectors(self) -> Iterator[tuple[str, list[float]]]:
        """Every paper's id with its stored vector."""
        for row in self._engines[0].rows(self._name, [KEY, DENSE]):
            yield row[KEY], row[DENSE]

    def running(self) -> bool:
        """False once an embedded engine has ended by itself: only opening the index anew helps then."""
        return all(child.running for child in self._children)

    def close(self) -> None:
        """Close every connection and end every engine."""
        self._opened.close()

    def _on_an_engine(self, query: Callable[[Milvus], R]) -> R:
        with self._lock:
            chosen = min(range(len(self._engines)), key=self._in_flight.__getitem__)
            self._in_flight[chosen] += 1
        try:
            return query(self._engines[chosen])
        finally:
            with self._lock:
                self._in_flight[chosen] -= 1


def open_index(
    manifest: Manifest,
    milvus_uri: str,
    *,
    query_spec: EmbeddingSpec,
    token: str | None = None,
    engines: int = 1,
    wait_s: float = 0.0,
    corpus_digests: CorpusDigests | None = None,
) -> Index:
    """Open the manifest's collection at `milvus_uri` and compare everything.

    Args:
        query_spec: of the embedder that will embed queries.
        engines: child engines for Lite, each with its own links; a server needs one connection.
        wait_s: how long to wait for a server that is not up yet.
        corpus_digests: of `papers.parquet` where it is at hand, to name the papers that differ.

    Raises:
        IndexRefused: with every difference found.
        MilvusError: Milvus cannot be reached or cannot answer.
    """
    subject = f"index {manifest.collection.name} at {milvus_uri}"
    if differing := _spec_differences(manifest, query_spec):
        raise IndexRefused(subject, differing)
    with ExitStack() as opened:
        if is_lite(milvus_uri):
            folder = lite_folder(milvus_uri, manifest.collection.name)
            if differing := lite_file_differences(folder, manifest.collection.name):
                raise IndexRefused(subject, differing)
            segments = _segment_differences(folder)
            children, connections = _open_lite(folder, max(1, engines), opened)
        else:
            segments = []  # a server merges them as it likes, its statistics are over all
            children = []
            connections = [opened.enter_context(_open_server(milvus_uri, token, wait_s))]
        papers, canary = _verified(manifest, connections[0], subject, segments, corpus_digests)
        with ThreadPoolExecutor(
            len(connections)
        ) as pool:  # also builds each engine's BM25 index, before any user waits
            unanswered = [
                found for found in pool.map(lambda milvus: _canary(milvus, manifest, canary), connections) if found
            ]
        if unanswered:
            raise IndexRefused(subject, unanswered[:1])
        return Index(manifest, papers, connections, children, opened.pop_all())


def lite_folder(milvus_uri: str, collection: str) -> Path:
    """The folder of `collection` for a Lite URI: the one of that name beside it, else the one it leads to.

    `milvus.db` leads to the newest collection; starting with an older manifest finds the older one beside it.
    """
    path = Path(milvus_uri)
    beside = path.parent / f"{collection}.db"
    return beside if beside.is_dir() else path


def lite_file_differences(folder: Path, collection: str) -> list[Difference]:
    """Differences between the files of `folder` and artifact.json beside it; reads bytes, opens nothing."""
    if not folder.is_dir():
        return [Difference("index folder", f"{folder}; build it, or set the Milvus URI", "no such folder")]
    built = Artifact.read(folder.parent).collections.get(collection)
    if built is None:
        known = ", ".join(sorted(Artifact.read(folder.parent).collections)) or "none"
        return [Difference(f"{ARTIFACT} in {folder.parent}", f"digests of {collection}", f"digests of {known}")]
    return file_differences(built.files, folder_digests(folder, Path(f"{collection}.db")))


def _segment_differences(folder: Path) -> list[Difference]:
    """More than one segment, whose BM25 statistics would each be of its own papers."""
    segments = sum(path.is_file() for path in folder.rglob("data/*"))
    return _part_differences("segments", "1", str(segments))


def _spec_differences(manifest: Manifest, query_spec: EmbeddingSpec) -> list[Difference]:
    """Whether this version of the code would build and query the same index."""
    checks = _part_differences("checks", ", ".join(CHECKS), ", ".join(manifest.checks))
    texts = TextVersions(search=SEARCH_TEXT_VERSION, embed=EMBED_TEXT_VERSION)
    expected = collection_facts(manifest.corpus.content_sha256, manifest.texts, manifest.embedding)
    found = checks + _part_differences("collection name", expected.name, manifest.collection.name)
    found += _part_differences("text versions", str(manifest.texts), str(texts))
    found += _collection_differences(expected, manifest.collection, "manifest ")
    pinned, queried = manifest.embedding.model_dump(), query_spec.model_dump()
    found += [
        Difference(f"embedding {key} of queries", repr(pinned[key]), repr(queried[key]))
        for key in pinned
        if pinned[key] != queried[key]
    ]
    return found


def _collection_differences(expected: CollectionFacts, found: CollectionFacts, whose: str) -> list[Difference]:
    differing: list[Difference] = []
    for what, wanted, given in (
        ("field", {x.name: x for x in expected.fields}, {x.name: x for x in found.fields}),
        ("function", {x.name: x for x in expected.functions}, {x.name: x for x in found.functions}),
        ("index on", {x.field: x for x in expected.indexes}, {x.field: x for x in found.indexes}),
    ):
        for key in sorted(wanted.keys() | given.keys()):
            differing += _part_differences(f"{whose}{what} {key}", _shown(wanted.get(key)), _shown(given.get(key)))
    return differing + _part_differences(f"{whose}analyzer", expected.analyzer, found.analyzer or "absent")


def _shown(part: BaseModel | None) -> str:
    return canonical_json(part.model_dump()).decode() if part else "absent"


def _part_differences(what: str, expected: str, found: str) -> list[Difference]:
    return [] if expected == found else [Difference(what, expected, found)]


def _open_lite(folder: Path, engines: int, opened: ExitStack) -> tuple[list[LiteEngine], list[Milvus]]:
    scratch = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="papers-")))
    started = []
    for number in range(engines):
        engine = LiteEngine(linked(folder, scratch / f"{number}.db"), scratch)
        opened.callback(engine.close)
        started.append(engine)
    return started, [opened.enter_context(Milvus(engine.wait_ready().uri)) for engine in started]


def _open_server(uri: str, token: str | None, wait_s: float) -> Milvus:
    deadline = time.monotonic() + wait_s
    pause_s = 0.5
    while True:
        try:
            return Milvus(uri, token=token, timeout_s=max(5.0, min(_TIMEOUT_S, wait_s)))
        except MilvusError:
            if time.monotonic() + pause_s > deadline:
                raise
            time.sleep(pause_s)
            pause_s = min(5.0, 2 * pause_s)


def _verified(
    manifest: Manifest, milvus: Milvus, subject: str, segments: list[Difference], corpus_digests: CorpusDigests | None
) -> tuple[dict[str, Paper], Paper]:
    """The stored papers, after schema, rows, ids and content were compared; and one paper to ask for."""
    name = manifest.collection.name
    if name not in (present := milvus.collections()):
        raise IndexRefused(subject, [Difference("collection", name, ", ".join(present) or "no collection")])
    if differing := _collection_differences(manifest.collection, milvus.describe(name), ""):
        raise IndexRefused(subject, differing)
    milvus.load(name, _FIRST_QUERY_TIMEOUT_S)
    papers: dict[str, Paper] = {}
    digests: dict[str, bytes] = {}
    rows = 0
    canary: Paper | None = None
    searched_wrongly: list[Difference] = []
    for row in milvus.rows(name, [field.name for field in FIELDS]):
        rows += 1
        digests[row[KEY]] = paper_digest(row)
        if canary is None or (row[SEARCH_TEXT] and not canary[SEARCH_TEXT]):
            canary = dict(row)
        papers[row[KEY]] = {field.name: row[field.name] for field in RECORD_FIELDS}
        searched_wrongly += _part_differences(f"search text of {row[KEY]}", search_text_of(row), row[SEARCH_TEXT])
    differing = segments + _part_differences("rows", str(manifest.corpus.rows), str(rows))
    differing += _content_differences(manifest, digests, corpus_digests)
    differing += _catalogue_differences(manifest.catalogue, papers.values())
    if len(searched_wrongly) > IDS_NAMED_MAX:
        rest = len(searched_wrongly) - IDS_NAMED_MAX
        searched_wrongly[IDS_NAMED_MAX:] = [Difference(f"search text of {rest} more papers", "as made here", "others")]
    differing += searched_wrongly
    if differing:
        raise IndexRefused(subject, differing)
    assert canary is not None  # noqa: S101 -- a manifest has at least one row
    return papers, canary


def _content_differences(
    manifest: Manifest, digests: Mapping[str, bytes], corpus_digests: CorpusDigests | None
) -> list[Difference]:
    """Ids and content; with the corpus at hand also which papers."""
    pinned = manifest.corpus
    differing = _part_differences("paper ids sha256", pinned.ids_sha256, ids_sha256(digests))
    differing += _part_differences("content sha256", pinned.content_sha256, content_sha256(digests.items()))
    if not differing or corpus_digests is None:
        return differing
    expected = corpus_digests()
    if content_sha256(expected.items()) != pinned.content_sha256:
        return differing  # the corpus is another one; validate names that by itself
    missing, extra = sorted(expected.keys() - digests.keys()), sorted(digests.keys() - expected.keys())
    changed = sorted(key for key in expected.keys() & digests.keys() if expected[key] != digests[key])
    if missing:
        differing.append(Difference(f"paper ids, {len(missing)} missing", _named(missing), "not in the collection"))
    if extra:
        differing.append(Difference(f"paper ids, {len(extra)} extra", "not in the corpus", _named(extra)))
    if changed:
        differing.append(Difference(f"papers, {len(changed)} changed", "as in the corpus", _named(changed)))
    return differing


def _catalogue_differences(catalogue: Catalogue, papers: Iterable[Paper]) -> list[Difference]:
    """What can be asked for, counted again over the stored papers."""
    areas: Counter[str] = Counter()
    types: Counter[str] = Counter()
    spotlight = oral = plain = 0
    for paper in papers:
        areas[paper["area"]] += 1
        types[paper["paper_type"]] += 1
        spotlight += paper["spotlight"]
        oral += paper["oral"]
        plain += not paper["abstract"]
    found = {"areas": areas, "paper_types": types, "spotlight": spotlight, "oral": oral, "without_abstract": plain}
    pinned = catalogue.model_dump()
    return [
        Difference(f"catalogue {what}", str(pinned[what]), str(found[what]))
        for what in pinned
        if pinned[what] != found[what]
    ]


def _named(paper_ids: list[str]) -> str:
    more = len(paper_ids) - IDS_NAMED_MAX
    return ", ".join(paper_ids[:IDS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _canary(milvus: Milvus, manifest: Manifest, paper: Paper) -> Difference | None:
    """Ask for a stored paper by its own vector and its own words; both rankings must know it."""
    name, paper_id = manifest.collection.name, paper[KEY]
    milvus.load(name, _FIRST_QUERY_TIMEOUT_S)
    vector = np.asarray(milvus.vector(name, paper_id), dtype=np.float32)
    text = " ".join(paper[SEARCH_TEXT].split()[:_CANARY_TOKENS])
    depth = min(100, manifest.corpus.rows)
    legs = {
        "hybrid query": [hit.paper_id for hit in hybrid(milvus, name, vector, text, "", depth, _FIRST_QUERY_TIMEOUT_S)],
        "dense query": milvus.dense(name, vector, "", depth, _FIRST_QUERY_TIMEOUT_S),
        "BM25 query": [hit.paper_id for hit in lexical(milvus, name, text, "", depth, _FIRST_QUERY_TIMEOUT_S)]
        if text
        else [paper_id],
    }
    for leg, found in legs.items():
        if paper_id not in found:
            return Difference(f"{leg} for a stored paper", paper_id, ", ".join(found[:3]) or "no hit")
    return None
