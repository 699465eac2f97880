"""Stage: corpus facts, specs -> manifests/NAME.json.

Reads    corpus.json and the specs of this version
Writes   the manifest, atomically, after every check passed; an equal one is never rewritten
Holds    nothing that depends on the clock or the machine
"""

from __future__ import annotations

from manifests.collection import collection_facts
from manifests.contract import Manifest
from manifests.embedding.spec import EmbeddingSpec
from manifests.gate import CHECKS
from pipeline.corpus import Corpus


def draft(corpus: Corpus, embedding: EmbeddingSpec) -> Manifest:
    """The manifest that this corpus and these specs lead to; published only after the gate has passed it."""
    facts = corpus.facts
    return Manifest.sealed(
        snapshot=facts.snapshot,
        corpus=facts.corpus,
        texts=facts.texts,
        embedding=embedding,
        collection=collection_facts(facts.corpus.content_sha256, facts.texts, embedding),
        catalogue=facts.catalogue,
        checks=list(CHECKS),
    )
