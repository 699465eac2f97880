"""What a work folder holds and what a build would still have to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from manifests.artifact import Artifact
from manifests.contract import read_manifest
from manifests.embedding.spec import EmbeddingSpec
from manifests.errors import IndexRefused, InputRefused
from pipeline.corpus import Corpus, read_corpus
from pipeline.embedding_store import EmbeddingStore
from pipeline.errors import MachineRefused, StoreDamaged, StoreHeld
from pipeline.work import LINK, holder, unfinished


def status(work: Path, manifest_path: Path, store: Path, spec: EmbeddingSpec) -> dict[str, Any]:
    """One fact a key; what is absent is null."""
    link = work / LINK
    corpus = _corpus(work)
    return {
        "work": str(work),
        "held_by": holder(work),
        "papers": corpus.facts.rows if isinstance(corpus, Corpus) else corpus,
        "vectors": _vectors(corpus, store, spec) if isinstance(corpus, Corpus) else None,
        "collections": _collections(work),
        "unfinished": [path.name for path in unfinished(work)],
        "link": str(link.readlink()) if link.is_symlink() else None,
        "manifest": _manifest(manifest_path),
    }


def _corpus(work: Path) -> Corpus | str | None:
    """The corpus, else why there is none, else (in a folder without anything) None."""
    try:
        return read_corpus(work)
    except InputRefused as refusal:
        return str(refusal) if work.is_dir() and any(work.iterdir()) else None


def _vectors(corpus: Corpus, folder: Path, spec: EmbeddingSpec) -> dict[str, int] | str:
    wanted = set(corpus.text_sha256s())
    try:
        with EmbeddingStore(folder, spec, create=False) as opened:
            missing = len(opened.missing(wanted))
    except (StoreDamaged, StoreHeld, MachineRefused) as refusal:
        return str(refusal)
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
