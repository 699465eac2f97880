"""Offline check of everything one manifest stands for: snapshot, papers.parquet, collection.

Reads    the manifest, and what it pins where that is at hand
Writes   nothing
Holds    every difference is named with both values; the gate is the code that the server runs at its start
"""

from __future__ import annotations

from pathlib import Path

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


def validate(
    manifest_path: Path, target: Target, snapshot: Path | None, model: str | None, report: Report
) -> tuple[str | None, list[Difference]]:
    """The manifest's digest (None when unreadable) and every difference from what it pins.

    Args:
        snapshot: the source copy; None takes the one that papers.parquet was made from. One that is not at hand is
            reported and not compared: deployers have none.
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
        return None, refusal.differences
    differences = _corpus_differences(manifest, target.work, report)
    differences += _snapshot_differences(manifest, snapshot or _source_of(target.work), report)
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
        differences += refusal.differences
    return manifest.digest, differences


def installed_spec(pinned: EmbeddingSpec, model: str | None) -> EmbeddingSpec:
    """The spec that queries would be embedded with on this machine; a provider elsewhere is not asked."""
    return local_spec(model) if pinned.provider == "local" else pinned


def _source_of(work: Path) -> Path | None:
    try:
        return read_corpus(work).source
    except InputRefused:
        return None


def _snapshot_differences(manifest: Manifest, folder: Path | None, report: Report) -> list[Difference]:
    if folder is None or not folder.exists():
        report(0, None, f"snapshot {folder or manifest.snapshot.name} is not at hand and was not compared")
        return []
    try:
        found = open_snapshot(folder).sha256
    except InputRefused as refusal:
        return [Difference(f"snapshot {folder}", f"sha256 {manifest.snapshot.sha256}", str(refusal))]
    if found != manifest.snapshot.sha256:
        return [Difference(f"snapshot {folder}", f"sha256 {manifest.snapshot.sha256}", f"sha256 {found}")]
    return []


def _corpus_differences(manifest: Manifest, work: Path, report: Report) -> list[Difference]:
    if not (work / PAPERS).exists():
        report(0, None, f"{work / PAPERS} is not at hand and was not compared")
        return []
    try:
        corpus = read_corpus(work)
        rows = corpus.scan().select(field.name for field in RECORD_FIELDS).collect()
    except (InputRefused, pl.exceptions.PolarsError) as error:
        return [Difference(str(work / PAPERS), "the rows of the manifest; run `load` again", str(error))]
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
    return [
        Difference(f"{PAPERS} {what}", expected[what], found[what]) for what in found if expected[what] != found[what]
    ]
