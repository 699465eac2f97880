"""What a work folder holds and what a build would still have to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from manifests.artifact import Artifact
from manifests.contract import read_manifest
from manifests.embedding.spec import EmbeddingSpec
from manifests.errors import IndexRefused, InputRefused
from pipeline.corpus import read_corpus
from pipeline.embedding_store import EmbeddingStore
from pipeline.errors import StoreDamaged
from pipeline.work import LINK, holder, unfinished


def status(work: Path, manifest_path: Path, store: Path, spec: EmbeddingSpec) -> dict[str, Any]:
    """One fact a key; what is absent is null."""
    link = work / LINK
    return {
        "work": str(work),
        "held_by": holder(work),
        "papers": _corpus(work),
        "vectors": _vectors(work, store, spec),
        "collections": _collections(work),
        "unfinished": [path.name for path in unfinished(work)],
        "link": str(link.readlink()) if link.is_symlink() else None,
        "manifest": _manifest(manifest_path),
    }


def _corpus(work: Path) -> int | str | None:
    try:
        return read_corpus(work).facts.rows
    except InputRefused as refusal:
        return str(refusal) if work.is_dir() and any(work.iterdir()) else None


def _vectors(work: Path, folder: Path, spec: EmbeddingSpec) -> dict[str, int] | str | None:
    try:
        wanted = set(read_corpus(work).text_sha256s())
        missing = len(EmbeddingStore(folder, spec, create=False).missing(wanted))
    except InputRefused:
        return None
    except StoreDamaged as damage:
        return str(damage)
    return {"texts": len(wanted), "stored": len(wanted) - missing}


def _collections(work: Path) -> list[str] | str:
    try:
        return sorted(Artifact.read(work).collections)
    except IndexRefused as refusal:
        return str(refusal)


def _manifest(path: Path) -> str | None:
    if not path.exists():
        return None
    try:
        return read_manifest(path).digest
    except IndexRefused as refusal:
        return str(refusal)
