"""One self-contained HTML page about a build: what is in it, what it cost, how well it finds, and a map of it.

    python -m bench.report NAME [--work builds/NAME] [--manifest manifests/NAME.json] [--store DIR] [--out FILE]

The index is opened through the gate, so the page describes what would be served. The measured success on known items
is kept in WORK/evaluations.json by collection, and compared with that of the collection before. The map is t-SNE of
the vectors where scikit-learn is installed, else their first two principal components.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from bench.known_items import find_known_items
from bench.report_page import Report, page
from bench.title_queries import known_items
from manifests.artifact import Artifact
from manifests.contract import read_manifest
from manifests.embedding.local import LocalEmbedder, local_spec
from manifests.embedding.spec import Vectors
from manifests.errors import ContractError
from manifests.files import write_atomically
from manifests.gate import Index, open_index
from manifests.places import state_home
from manifests.texts import embed_text, text_sha256
from pipeline.embedding_store import EmbeddingStore
from pipeline.evaluate import Metrics
from pipeline.progress import silent

EVALUATIONS = "evaluations.json"
NEIGHBOURS_OF = 12
NEIGHBOURS = 5
KNOWN_PER_KIND = 40
_COMPONENTS = 50
_TSNE_PAPERS_MIN = 30
_SEED = 2026


def main() -> int:
    """Write the page; 0, or the exit code of what is wrong with the build."""
    arguments = _arguments()
    try:
        report = gather(arguments)
    except ContractError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    text = page(report)
    out = arguments.out or arguments.work / "report.html"
    write_atomically(out, text.encode())
    print(f"{out}: {len(report.papers):,} papers, {len(text.encode()) / 1e6:.2f} MB", file=sys.stderr)
    return 0


def gather(arguments: argparse.Namespace) -> Report:
    """Open the index through the gate and measure what the page shows.

    Raises:
        ContractError: the index is not what its manifest says, or a vector is absent.
    """
    manifest = read_manifest(arguments.manifest)
    built = Artifact.read(arguments.work).collections.get(manifest.collection.name)
    started = time.perf_counter()
    index = open_index(manifest, str(arguments.work / "milvus.db"), query_spec=manifest.embedding)
    validation_s = time.perf_counter() - started
    with closing(index):
        papers = [index.papers[paper_id] for paper_id in sorted(index.papers)]
        evaluation = _evaluation(index)
    texts = [embed_text(paper["title"], paper["abstract"]) for paper in papers]
    with closing(EmbeddingStore(arguments.store, manifest.embedding, create=False)) as store:
        vectors = store.vectors([text_sha256(text) for text in texts])
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    points, projection = projected(vectors)
    return Report(
        manifest=manifest,
        papers=papers,
        points=points,
        projection=projection,
        neighbours=nearest(vectors),
        tokens=sum(LocalEmbedder(local_spec()).count_tokens(texts)),
        price_per_million=arguments.price_per_million,
        seconds=built.seconds if built else {},
        versions=built.versions if built else {},
        built_at=built.built_at if built else "unknown",
        validation_s=validation_s,
        evaluation=evaluation,
        before=_compared(arguments.work / EVALUATIONS, manifest.collection.name, evaluation),
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def projected(vectors: Vectors) -> tuple[Vectors, str]:
    """Two numbers in [0, 1] a paper, near where vectors are near; and how they were made."""
    centred = vectors - vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(centred if len(centred) < _SVD_ROWS else centred.T @ centred, full_matrices=False)
    components = centred @ axes[:_COMPONENTS].T
    points, words = np.zeros((len(vectors), 2), dtype=np.float32), "first two principal components"
    points[:, : components.shape[1]] = components[:, :2]
    if len(vectors) >= _TSNE_PAPERS_MIN:
        try:
            from sklearn.manifold import TSNE
        except ImportError:
            pass
        else:
            tsne = TSNE(init="pca", perplexity=min(30, len(vectors) // 4), random_state=_SEED, n_jobs=os.cpu_count())
            points, words = tsne.fit_transform(components), f"t-SNE of {components.shape[1]} principal components"
    low, high = points.min(axis=0), points.max(axis=0)
    return ((points - low) / np.maximum(high - low, 1e-9)).astype(np.float32), words


_SVD_ROWS = 2_000  # above, the small covariance matrix gives the same axes for less


def nearest(vectors: Vectors) -> list[tuple[int, list[tuple[int, float]]]]:
    """For an even sample of papers: their row, and the rows and cosines of the nearest others."""
    found = []
    for row in np.linspace(0, len(vectors) - 1, min(NEIGHBOURS_OF, len(vectors)), dtype=int):
        cosines = vectors @ vectors[row]
        cosines[row] = -np.inf
        best = np.argsort(-cosines, kind="stable")[:NEIGHBOURS]
        found.append((int(row), [(int(other), float(cosines[other])) for other in best if other != row]))
    return found


def _evaluation(index: Index) -> Metrics:
    """Success at ten on known items; nothing for an index whose queries would cost money."""
    if index.manifest.embedding.provider != "local":
        return {}
    items = known_items(
        ((paper_id, str(paper["title"])) for paper_id, paper in index.papers.items()), per_kind=KNOWN_PER_KIND
    )
    return find_known_items(index, LocalEmbedder(index.manifest.embedding), items, silent) if items else {}


def _compared(path: Path, collection: str, evaluation: Metrics) -> Metrics | None:
    """Keep this evaluation; give that of the collection before it, if there was one."""
    kept: dict[str, Metrics] = json.loads(path.read_bytes()) if path.is_file() else {}
    others = [name for name in kept if name != collection]
    kept = {name: kept[name] for name in others} | {collection: evaluation}
    write_atomically(path, f"{json.dumps(kept, indent=2)}\n".encode())
    return kept[others[-1]] if others else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the build")
    parser.add_argument("--work", type=Path, help="work folder (default: builds/NAME)")
    parser.add_argument("--manifest", type=Path, help="the published file (default: manifests/NAME.json)")
    parser.add_argument("--store", type=Path, help="vectors, shared by all builds of the machine")
    parser.add_argument("--price-per-million", type=float, help="what a million tokens cost, in your currency")
    parser.add_argument("--out", type=Path, help="the page (default: WORK/report.html)")
    arguments = parser.parse_args()
    arguments.work = arguments.work or Path("builds") / arguments.name
    arguments.manifest = arguments.manifest or Path("manifests") / f"{arguments.name}.json"
    arguments.store = arguments.store or state_home(os.environ) / "vectors"
    return arguments


if __name__ == "__main__":
    sys.exit(main())
