"""Stage: corpus facts, specs -> manifests/NAME.json.

Reads    corpus.json and the specs of this version
Writes   the manifest, atomically, after every check passed; an equal one is never rewritten
Holds    nothing that depends on the clock or the machine
"""

from __future__ import annotations

from manifests.collection import collection_facts
from manifests.contract import Manifest
from manifests.differences import CHECKS
from manifests.embedding.spec import EmbeddingSpec
from pipeline.corpus import Corpus


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
