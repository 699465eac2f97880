"""Offline check of everything one manifest stands for: snapshot, papers.parquet, collection, vectors.

Reads    the manifest, and what it pins where that is at hand
Writes   nothing
Holds    every difference is named with both values, and every part that was not compared; the gate is the code that
         the server runs at its start
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from manifests.collection import content_sha256, ids_sha256
from manifests.contract import Manifest, read_manifest
from manifests.differences import IDS_NAMED_MAX
from manifests.embedding.local import local_spec
from manifests.embedding.spec import EmbeddingSpec, Vectors
from manifests.errors import Difference, IndexRefused, InputRefused, MilvusError
from manifests.gate import Index, open_index
from manifests.strict_json import canonical_json
from manifests.texts import embed_text, text_sha256
from pipeline.corpus import PAPERS, Corpus, read_corpus
from pipeline.embedding_store import EmbeddingStore, windowed
from pipeline.errors import MachineRefused, StoreDamaged, StoreHeld
from pipeline.places import Places
from pipeline.progress import Report
from pipeline.snapshot import open_snapshot
from pipeline.work import LINK, recorded

SNAPSHOT = "snapshot"
COLLECTION = "collection"
VECTORS = "vectors"
# Another processor rounds the local model's numbers otherwise; the nearest two papers of ICML 2026 have 0.86.
COSINE_MIN = 0.9
PAGE_ROWS = 2_000


class NotCompared(NamedTuple):
    """One part of the check that was left out."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} ({self.why})"


@dataclass(frozen=True)
class Verdict:
    """What `validate` found.

    Attributes:
        digest: of the manifest; None when it cannot be read.
        differences: every difference from what it pins.
        not_compared: the parts that were left out.
        failure: why Milvus could not say what it holds; nothing is in order then.
    """

    digest: str | None
    differences: list[Difference] = field(default_factory=list)
    not_compared: list[NotCompared] = field(default_factory=list)
    failure: MilvusError | None = None

    @property
    def exit_code(self) -> int:
        """0 where everything at hand is as the manifest pins it. A difference is certain, Milvus may answer later."""
        if self.differences:
            return IndexRefused.exit_code
        return self.failure.exit_code if self.failure else 0


def validate(places: Places, snapshot: Path | None, model: str | None, report: Report) -> Verdict:
    """Compare everything that is at hand with the manifest; deployers have neither snapshot, papers.parquet nor store.

    Args:
        snapshot: the source copy; None takes the one that papers.parquet was made from.
        model: folder of the local model, where the manifest pins one that is not installed.

    Raises:
        InputRefused: no such snapshot.
    """
    if snapshot is not None and not snapshot.exists():
        raise InputRefused(
            f"snapshot {snapshot}: no such folder; leave --snapshot out to compare the one it was made from"
        )
    try:
        manifest = read_manifest(places.manifest)
    except IndexRefused as refusal:
        parts = (PAPERS, SNAPSHOT, COLLECTION, VECTORS)
        return Verdict(None, refusal.differences, [NotCompared(part, "the manifest cannot be read") for part in parts])
    verdict, work, target = Verdict(manifest.digest), places.work, places.target
    corpus = _compare_corpus(manifest, work, verdict)
    _compare_snapshot(manifest, snapshot or (corpus.source if corpus else None), verdict)
    report(0, None, COLLECTION)
    left_out = [COLLECTION, VECTORS]
    try:
        opened = open_index(
            manifest,
            target.uri,
            query_spec=_query_spec(manifest.embedding, model, verdict),
            token=target.token,
            corpus_digests=corpus.digests if corpus else None,
        )
        with closing(opened):
            left_out.remove(COLLECTION)
            _compare_vectors(opened, places.store, verdict)
    except IndexRefused as refusal:
        verdict.differences.extend(refusal.differences)
        verdict.not_compared.append(NotCompared(VECTORS, "the collection differs"))
    except MilvusError as error:
        verdict.not_compared.extend(NotCompared(part, "Milvus did not answer") for part in left_out)
        return replace(verdict, failure=error)
    return verdict


def _query_spec(pinned: EmbeddingSpec, model: str | None, verdict: Verdict) -> EmbeddingSpec:
    """What this machine embeds queries with (a provider is not asked); the pinned spec where its model is unusable."""
    if pinned.provider != "local":
        return pinned
    try:
        return local_spec(model)
    except InputRefused as refusal:
        verdict.differences.append(Difference("embedding model of queries", str(pinned), str(refusal)))
        return pinned


def _compare_snapshot(manifest: Manifest, folder: Path | None, verdict: Verdict) -> None:
    if folder is None or not folder.exists():
        why = f"{folder} is not at hand" if folder else f"no {PAPERS} of the manifest names its folder"
        verdict.not_compared.append(NotCompared(SNAPSHOT, f"{why}; --snapshot names another"))
        return
    pinned = f"sha256 {manifest.snapshot.sha256}"
    try:
        found = f"sha256 {open_snapshot(folder).sha256}"
    except InputRefused as refusal:
        found = str(refusal)
    if found != pinned:
        verdict.differences.append(Difference(f"snapshot {folder}", pinned, found))


def _compare_corpus(manifest: Manifest, work: Path, verdict: Verdict) -> Corpus | None:
    """Compare the corpus at hand; None where there is none, or none that can be read, or that of another build."""
    if not (work / PAPERS).exists():
        verdict.not_compared.append(NotCompared(PAPERS, f"not at hand in {work}"))
        return None
    try:
        corpus = read_corpus(work)
        digests = list(corpus.paper_digests())
    except (InputRefused, pl.exceptions.PolarsError) as error:
        wanted = "the rows of the manifest; run `load` again"
        verdict.differences.append(Difference(str(work / PAPERS), wanted, str(error)))
        return None
    found = {
        "snapshot facts": canonical_json(corpus.snapshot.model_dump()).decode(),
        "rows": str(len(digests)),
        "ids sha256": ids_sha256(paper_id for paper_id, _ in digests),
        "content sha256": content_sha256(digests),
    }
    if _is_of_another_build(manifest, corpus, found, work):
        why = f"of another snapshot, from which {work} was built later: sha256 {corpus.snapshot.sha256}"
        verdict.not_compared.append(NotCompared(PAPERS, why))
        return None
    expected = {
        "snapshot facts": canonical_json(manifest.snapshot.model_dump()).decode(),
        "rows": str(manifest.corpus.rows),
        "ids sha256": manifest.corpus.ids_sha256,
        "content sha256": manifest.corpus.content_sha256,
    }
    verdict.differences.extend(
        Difference(f"{PAPERS} {what}", expected[what], found[what]) for what in found if expected[what] != found[what]
    )
    return corpus


def _is_of_another_build(manifest: Manifest, corpus: Corpus, found: dict[str, str], work: Path) -> bool:
    """Whether the corpus is whole, of another snapshot, and the manifest's collection an older one of `work`.

    The newest build of a folder, in CI the only one, must have its own corpus.
    """
    name, link = manifest.collection.name, work / LINK
    try:
        built = recorded(work)
    except IndexRefused:
        return False  # the gate names it
    if name not in built or built[name].manifest_digest != manifest.digest:
        return False
    newest = link.readlink().stem if link.is_symlink() else max(built, key=lambda each: built[each].built_at)
    facts = corpus.facts
    own = {"rows": str(facts.rows), "ids sha256": facts.ids_sha256, "content sha256": facts.content_sha256}
    return (
        newest in built.keys() - {name}
        and corpus.snapshot.sha256 != manifest.snapshot.sha256
        and own.items() <= found.items()
    )


def _compare_vectors(opened: Index, folder: Path, verdict: Verdict) -> None:
    """The stored vectors with those that this machine has of the same texts; the manifest cannot pin them."""
    keys = {
        paper_id: text_sha256(embed_text(paper["title"], paper["abstract"]))
        for paper_id, paper in opened.papers.items()
    }
    unlike: list[str] = []
    try:
        with EmbeddingStore(folder, opened.manifest.embedding, create=False) as store:
            absent = set(store.missing(keys.values()))
            texts = [key for key in keys.values() if key not in absent]
            known = (row for row in opened.vectors() if keys[row[0]] not in absent)  # as the papers came: by their ids
            for expected in windowed(store.vectors, texts, store.spec.dimension, PAGE_ROWS):
                page = list(islice(known, len(expected)))
                cosines = _cosines(np.asarray([vector for _, vector in page], dtype=np.float32), expected)
                unlike += [
                    f"{paper_id} (cosine {cosine:.2f})"
                    for (paper_id, _), cosine in zip(page, cosines, strict=True)
                    if not cosine >= COSINE_MIN
                ]
    except (StoreDamaged, StoreHeld, MachineRefused) as refusal:
        verdict.not_compared.append(NotCompared(VECTORS, str(refusal)))
        return
    if absent:
        without = sum(key in absent for key in keys.values())
        verdict.not_compared.append(NotCompared(VECTORS, f"{without:,} of {len(keys):,} papers have none in {folder}"))
    if unlike:
        more = f" and {len(unlike) - IDS_NAMED_MAX:,} more" if len(unlike) > IDS_NAMED_MAX else ""
        wanted = f"those in {folder}; to have them, remove the collection and build again"
        found = ", ".join(unlike[:IDS_NAMED_MAX]) + more
        verdict.differences.append(Difference(f"{VECTORS} of {len(unlike):,} paper(s)", wanted, found))


def _cosines(some: Vectors, others: Vectors) -> Vectors:
    """Of each row with the same row, shape (rows,); NaN where one is zero or not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        lengths = np.linalg.norm(some, axis=1) * np.linalg.norm(others, axis=1)
        return np.asarray((some * others).sum(axis=1) / lengths, dtype=np.float32)
