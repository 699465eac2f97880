"""The gate: what `validate`, CI and the server's start run before anything is served.

manifest agrees with this version, query spec equals build spec -> Lite files equal artifact.json -> schema, BM25
function, analyzer, indexes -> rows, the full paper-id set, content digest from the stored fields, catalogue, search
texts -> a hybrid query answers on every engine. No provider is called. `open_index` alone makes an `Index`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import numpy as np

from manifests.collection import DENSE, FIELDS, KEY, RECORD_FIELDS, SEARCH_TEXT, paper_digest
from manifests.contract import Manifest
from manifests.differences import (
    IDS_NAMED_MAX,
    CorpusDigests,
    Paper,
    catalogue_differences,
    collection_differences,
    content_differences,
    lite_file_differences,
    part_differences,
    segment_differences,
    spec_differences,
)
from manifests.embedding.spec import EmbeddingSpec, Vectors
from manifests.errors import Difference, IndexRefused, MilvusError
from manifests.hybrid import Hit, hybrid, lexical
from manifests.lite import LiteEngine, is_lite, linked
from manifests.milvus import CALL_TIMEOUT_S, Milvus
from manifests.scratch import scratch_folder
from manifests.texts import search_text_of

_CANARY_TOKENS = 32
# One attempt to connect to a server; `wait_s` allows for more of them.
_CONNECT_S = 5.0
# Lite builds its BM25 index in the first query: 10 s of processor time at 50,000 papers, on a busy machine minutes.
_FIRST_QUERY_TIMEOUT_S = 900.0

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

    def hybrid(self, vector: Vectors, text: str, *, where: str, depth: int, timeout_s: float) -> list[Hit]:
        """See `manifests.hybrid.hybrid`."""
        return self._on_an_engine(
            lambda milvus: hybrid(milvus, self._name, vector, text, where=where, depth=depth, timeout_s=timeout_s)
        )

    def lexical(self, text: str, *, where: str, depth: int, timeout_s: float) -> list[Hit]:
        """See `manifests.hybrid.lexical`."""
        return self._on_an_engine(
            lambda milvus: lexical(milvus, self._name, text, where=where, depth=depth, timeout_s=timeout_s)
        )

    def dense(self, vector: Vectors, *, where: str, depth: int, timeout_s: float) -> list[str]:
        """The dense ranking alone, for evaluation: ids, best first."""
        return self._on_an_engine(
            lambda milvus: milvus.dense(self._name, vector, where=where, depth=depth, timeout_s=timeout_s)
        )

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
    if differing := spec_differences(manifest, query_spec):
        raise IndexRefused(subject, differing)
    with ExitStack() as opened:
        if is_lite(milvus_uri):
            folder = _intact_folder(milvus_uri, manifest.collection.name, subject)
            segments = segment_differences(folder)
            children, connections = _open_lite(folder, max(1, engines), opened)
        else:
            segments = []  # a server merges them as it likes, its statistics are over all
            children = []
            connections = [opened.enter_context(_open_server(milvus_uri, token, wait_s))]
        papers, canary = _verified(manifest, connections[0], subject, segments, corpus_digests)
        # Also builds each engine's BM25 index, before any user waits.
        with ThreadPoolExecutor(len(connections)) as pool:
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


def _intact_folder(milvus_uri: str, collection: str, subject: str) -> Path:
    """The Lite folder, after its files were compared."""
    try:
        folder = lite_folder(milvus_uri, collection)
        differing = lite_file_differences(folder, collection)
    except OSError as error:
        unreadable = Difference("index folder", "files that this user can read", f"{error.filename}: {error.strerror}")
        raise IndexRefused(subject, [unreadable]) from error
    if differing:
        raise IndexRefused(subject, differing)
    return folder


def _open_lite(folder: Path, engines: int, opened: ExitStack) -> tuple[list[LiteEngine], list[Milvus]]:
    try:
        scratch = opened.enter_context(scratch_folder())
    except OSError as error:
        raise MilvusError(
            f"no scratch folder for the Milvus Lite engine: {error.strerror}; mount a tmpfs on /tmp, or set TMPDIR to "
            "a folder that this user can write"
        ) from error
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
            return Milvus(uri, token=token, connect_s=max(_CONNECT_S, min(CALL_TIMEOUT_S, wait_s)))
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
    if differing := collection_differences(manifest.collection, milvus.describe(name), ""):
        raise IndexRefused(subject, differing)
    milvus.load(name, _FIRST_QUERY_TIMEOUT_S)
    papers: dict[str, Paper] = {}
    digests: dict[str, bytes] = {}
    rows = 0
    canary: Paper | None = None
    searched_wrongly: list[Difference] = []
    unnamed = 0
    for row in milvus.rows(name, [field.name for field in FIELDS]):
        rows += 1
        digests[row[KEY]] = paper_digest(row)
        if canary is None or (row[SEARCH_TEXT] and not canary[SEARCH_TEXT]):
            canary = dict(row)
        papers[row[KEY]] = {field.name: row[field.name] for field in RECORD_FIELDS}
        wrong = part_differences(f"search text of {row[KEY]}", search_text_of(row), row[SEARCH_TEXT])
        if len(searched_wrongly) < IDS_NAMED_MAX:  # both texts of every paper would be a second corpus in memory
            searched_wrongly += wrong
        else:
            unnamed += len(wrong)
    differing = segments + part_differences("rows", str(manifest.corpus.rows), str(rows))
    differing += content_differences(manifest, digests, corpus_digests)
    differing += catalogue_differences(manifest.catalogue, papers.values())
    if unnamed:
        searched_wrongly.append(Difference(f"search text of {unnamed} more papers", "as made here", "others"))
    differing += searched_wrongly
    if differing:
        raise IndexRefused(subject, differing)
    assert canary is not None  # noqa: S101 -- a manifest has at least one row
    return papers, canary


def _canary(milvus: Milvus, manifest: Manifest, paper: Paper) -> Difference | None:
    """Ask for a stored paper by its own vector and its own words; both rankings must know it."""
    name, paper_id = manifest.collection.name, paper[KEY]
    milvus.load(name, _FIRST_QUERY_TIMEOUT_S)
    vector = np.asarray(milvus.vector(name, paper_id), dtype=np.float32)
    text = " ".join(paper[SEARCH_TEXT].split()[:_CANARY_TOKENS])
    depth, timeout_s = min(100, manifest.corpus.rows), _FIRST_QUERY_TIMEOUT_S
    fused = hybrid(milvus, name, vector, text, where="", depth=depth, timeout_s=timeout_s)
    worded = lexical(milvus, name, text, where="", depth=depth, timeout_s=timeout_s)
    legs = {
        "hybrid query": [hit.paper_id for hit in fused],
        "dense query": milvus.dense(name, vector, where="", depth=depth, timeout_s=timeout_s),
        "BM25 query": [hit.paper_id for hit in worded] if text else [paper_id],
    }
    for leg, found in legs.items():
        if paper_id not in found:
            return Difference(f"{leg} for a stored paper", paper_id, ", ".join(found[:3]) or "no hit")
    return None
