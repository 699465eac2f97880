"""Stage publish: the manifest, drafted from a corpus and specs, takes effect.

Reads    corpus.json and the specs of this version; the collection has passed the gate
Writes   the list of texts it needs (store), WORK/milvus.db, times in artifact.json; last the manifest, atomically
Holds    the manifest knows nothing of the clock or the machine; an equal one is never rewritten
Resumes  until the manifest is written the index does not count as published, and the same build comes here again
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from manifests.collection import collection_facts
from manifests.contract import Manifest, write_manifest
from manifests.differences import CHECKS, lite_file_differences
from manifests.embedding.spec import EmbeddingSpec
from manifests.lite import is_lite
from manifests.milvus import Milvus
from pipeline.corpus import Corpus
from pipeline.embedding_store import EmbeddingStore
from pipeline.places import Places
from pipeline.work import LINK, record_seconds, switch_link


def draft(corpus: Corpus, embedding: EmbeddingSpec) -> Manifest:
    """The manifest that this corpus and these specs lead to; published only after the gate has passed it."""
    return Manifest.sealed(
        snapshot=corpus.snapshot,
        corpus=corpus.facts,
        texts=corpus.texts,
        embedding=embedding,
        collection=collection_facts(corpus.facts.content_sha256, corpus.texts, embedding),
        catalogue=corpus.catalogue,
        checks=list(CHECKS),
    )


def publish(
    corpus: Corpus, manifest: Manifest, store: EmbeddingStore, places: Places, seconds: Mapping[str, float]
) -> None:
    """Let `manifest` be the published one; `seconds` of the build so far are noted beside the collection."""
    work, name = places.work, manifest.collection.name
    store.reference(places.manifest, manifest.digest, corpus.text_sha256s())
    if is_lite(places.target.uri):
        switch_link(work, name)
    record_seconds(work, name, seconds)
    write_manifest(manifest, places.manifest)


def is_published(manifest: Manifest, places: Places) -> bool:
    """Whether the manifest file holds exactly `manifest` and the collection behind it is in place."""
    if not places.manifest.is_file() or places.manifest.read_bytes() != manifest.text().encode():
        return False
    name, target = manifest.collection.name, places.target
    if is_lite(target.uri):
        link = target.work / LINK
        return (
            link.is_symlink()
            and link.readlink() == Path(f"{name}.db")
            and not lite_file_differences(target.work / f"{name}.db", name)
        )
    with Milvus(target.uri, token=target.token) as milvus:
        return name in milvus.collections() and milvus.count(name) == manifest.corpus.rows
