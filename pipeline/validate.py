"""Offline check of everything one manifest stands for: snapshot, papers.parquet, collection.

Reads    the manifest, and what it pins where that is at hand
Writes   nothing
Holds    every difference is named with both values, and every part that was not compared; the gate is the code that
         the server runs at its start
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import polars as pl

from manifests.collection import KEY, RECORD_FIELDS, content_sha256, ids_sha256, paper_digest
from manifests.contract import Manifest, canonical_json, read_manifest
from manifests.embedding.local import local_spec
from manifests.embedding.spec import EmbeddingSpec
from manifests.errors import Difference, IndexRefused, InputRefused
from manifests.gate import open_index
from pipeline.corpus import PAPERS, read_corpus
from pipeline.progress import Report
from pipeline.snapshot import open_snapshot
from pipeline.work import Target

SNAPSHOT = "snapshot"


class NotCompared(NamedTuple):
    """One part of the check that was left out."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} ({self.why})"


@dataclass(frozen=True)
class Verdict:
    """The manifest's digest (None when unreadable), every difference from what it pins, and what was not compared."""

    digest: str | None
    differences: list[Difference] = field(default_factory=list)
    not_compared: list[NotCompared] = field(default_factory=list)


def validate(manifest_path: Path, target: Target, snapshot: Path | None, model: str | None, report: Report) -> Verdict:
    """Compare everything that is at hand with the manifest; deployers have neither snapshot nor papers.parquet.

    Args:
        snapshot: the source copy; None takes the one that papers.parquet was made from.
        model: folder of the local model, where the manifest pins one that is not installed.

    Raises:
        MilvusError: Milvus cannot be reached.
    """
    if snapshot is not None and not snapshot.exists():
        raise InputRefused(
            f"snapshot {snapshot}: no such folder; leave --snapshot out to compare the one it was made from"
        )
    try:
        manifest = read_manifest(manifest_path)
    except IndexRefused as refusal:
        unread = [NotCompared(what, "the manifest cannot be read") for what in (PAPERS, SNAPSHOT, "collection")]
        return Verdict(None, refusal.differences, unread)
    verdict = Verdict(manifest.digest)
    _compare_corpus(manifest, target.work, verdict)
    _compare_snapshot(manifest, snapshot or _source_of(target.work), verdict)
    report(0, None, "collection")
    try:
        open_index(
            manifest,
            target.uri,
            query_spec=installed_spec(manifest.embedding, model),
            token=target.token,
            corpus_digests=lambda: read_corpus(target.work).digests(),
        ).close()
    except IndexRefused as refusal:
        verdict.differences.extend(refusal.differences)
    return verdict


def installed_spec(pinned: EmbeddingSpec, model: str | None) -> EmbeddingSpec:
    """The spec that queries would be embedded with on this machine; a provider elsewhere is not asked."""
    return local_spec(model) if pinned.provider == "local" else pinned


def _source_of(work: Path) -> Path | None:
    try:
        return read_corpus(work).source
    except InputRefused:
        return None


def _compare_snapshot(manifest: Manifest, folder: Path | None, verdict: Verdict) -> None:
    if folder is None or not folder.exists():
        why = f"{folder} is not at hand" if folder else f"{PAPERS}, which names its folder, cannot be read"
        verdict.not_compared.append(NotCompared(SNAPSHOT, f"{why}; --snapshot names another"))
        return
    pinned = f"sha256 {manifest.snapshot.sha256}"
    try:
        found = f"sha256 {open_snapshot(folder).sha256}"
    except InputRefused as refusal:
        found = str(refusal)
    if found != pinned:
        verdict.differences.append(Difference(f"snapshot {folder}", pinned, found))


def _compare_corpus(manifest: Manifest, work: Path, verdict: Verdict) -> None:
    if not (work / PAPERS).exists():
        verdict.not_compared.append(NotCompared(PAPERS, f"not at hand in {work}"))
        return
    try:
        corpus = read_corpus(work)
        rows = corpus.scan().select(each.name for each in RECORD_FIELDS).collect()
    except (InputRefused, pl.exceptions.PolarsError) as error:
        wanted = "the rows of the manifest; run `load` again"
        verdict.differences.append(Difference(str(work / PAPERS), wanted, str(error)))
        return
    found = {
        "snapshot facts": canonical_json(corpus.snapshot.model_dump()).decode(),
        "rows": str(len(rows)),
        "ids sha256": ids_sha256(rows[KEY]),
        "content sha256": content_sha256((row[KEY], paper_digest(row)) for row in rows.iter_rows(named=True)),
    }
    expected = {
        "snapshot facts": canonical_json(manifest.snapshot.model_dump()).decode(),
        "rows": str(manifest.corpus.rows),
        "ids sha256": manifest.corpus.ids_sha256,
        "content sha256": manifest.corpus.content_sha256,
    }
    verdict.differences.extend(
        Difference(f"{PAPERS} {what}", expected[what], found[what]) for what in found if expected[what] != found[what]
    )
