"""The whole path: snapshot -> papers.parquet -> vectors -> collection -> gate -> published manifest.

A stage a line. Every stage keeps what it finished, so the same command after any interruption goes on from there;
the manifest, written last, is the one sign that an index is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manifests.contract import Manifest
from manifests.embedding.spec import Embedder
from manifests.gate import open_index
from manifests.lite import is_lite
from manifests.milvus import Milvus
from pipeline.console import Console
from pipeline.corpus import Corpus, tabulate
from pipeline.embed import EmbedResult, Policy, embed
from pipeline.embedding_store import EmbeddingStore
from pipeline.index import index
from pipeline.measure import Meter
from pipeline.places import Places
from pipeline.publish import draft, is_published, publish
from pipeline.snapshot import open_snapshot
from pipeline.work import Target, held, recorded


@dataclass(frozen=True)
class Request:
    """One build: what, where to, and what is allowed. `command` is shown to whoever finds the folder held."""

    snapshot: Path
    places: Places
    quarantine: bool
    policy: Policy
    command: str


@dataclass(frozen=True)
class Built:
    """A published index and what it cost; `vectors` is None when nothing had to be embedded or looked up."""

    manifest: Manifest
    path: Path
    vectors: EmbedResult | None
    meter: Meter = field(repr=False)

    def facts(self) -> dict[str, Any]:
        """The one object of `--json`."""
        counts = self.manifest.snapshot.counts
        return {
            "name": self.manifest.snapshot.name,
            "digest": self.manifest.digest,
            "manifest": str(self.path),
            "papers": counts.papers,
            "rejected": counts.rejected,
            "embedded": self.vectors.embedded if self.vectors else 0,
            "reused": self.vectors.reused if self.vectors else counts.papers,
            "seconds": self.meter.seconds,
            "peak_rss_mb": max(self.meter.peak_rss_mb.values()),
        }


def build(request: Request, embedder: Embedder, console: Console) -> Built:
    """Build, validate and publish; or find that the published index is exactly what this would give.

    Raises:
        ContractError: see the exit codes; whatever finished before is kept.
    """
    meter, places = Meter(), request.places
    with held(places.work, request.command):
        with meter.stage("load"), console.stage("load") as report:
            snapshot = open_snapshot(request.snapshot)
            corpus = tabulate(snapshot, places.work, quarantine=request.quarantine, report=report)
            manifest = draft(corpus, embedder.spec)
            if is_published(manifest, places):
                return Built(manifest, places.manifest, None, meter)
        _require_target(places.target)  # before vectors are paid for
        with EmbeddingStore(places.store, embedder.spec) as store:
            with meter.stage("embed"), console.stage("embed") as report:
                vectors = embed(corpus.path, store, embedder, request.policy, report)
            finish(corpus, manifest, store, places, meter, console)
    return Built(manifest, places.manifest, vectors, meter)


def _require_target(target: Target) -> None:
    """Read artifact.json, and ask a server for its collections; Lite is our own child and starts when it is needed.

    Raises:
        IndexRefused: artifact.json is no file, so it could not be written.
        MilvusError: nobody answers, or not to this token.
    """
    recorded(target.work)
    if not is_lite(target.uri):
        with Milvus(target.uri, token=target.token) as milvus:
            milvus.collections()


def finish(
    corpus: Corpus, manifest: Manifest, store: EmbeddingStore, places: Places, meter: Meter, console: Console
) -> None:
    """The second half of the path: collection, gate, manifest."""
    target = places.target
    with meter.stage("index"), console.stage("index") as report:
        index(corpus.path, store.vectors, manifest, target, report, missing=store.missing)
    with meter.stage("validate"), console.stage("validate"):
        open_index(
            manifest, target.uri, query_spec=store.spec, token=target.token, corpus_digests=corpus.digests
        ).close()
    with meter.stage("publish"), console.stage("publish"):
        publish(corpus, manifest, store, places, meter.seconds)
