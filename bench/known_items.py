"""Success at ten on known items of a published index, in Markdown.

python -m bench.known_items NAME [--work builds/NAME] [--manifest manifests/NAME.json]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bench.title_queries import KnownItem, known_items
from manifests.contract import read_manifest
from manifests.embedding.local import LocalEmbedder
from manifests.embedding.spec import Embedder
from manifests.gate import Index, open_index
from pipeline.evaluate import Metrics, ask
from pipeline.progress import Report, silent

FLOOR = 0.95
TOP = 10


def main() -> int:
    """Print the table; 0 when the hybrid ranking finds at least 95 in 100."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--manifest", type=Path)
    arguments = parser.parse_args()
    table, found = known_items_table(
        arguments.manifest or Path("manifests") / f"{arguments.name}.json",
        arguments.work or Path("builds") / arguments.name,
    )
    print(table)
    return int(found["hybrid"]["all"] < FLOOR)


def known_items_table(manifest_path: Path, work: Path) -> tuple[str, Metrics]:
    """Success at ten of the index in `work`, in Markdown and as numbers."""
    manifest = read_manifest(manifest_path)
    with closing(open_index(manifest, str(work / "milvus.db"), query_spec=manifest.embedding, engines=2)) as index:
        items = known_items((paper_id, str(paper["title"])) for paper_id, paper in index.papers.items())
        found = find_known_items(index, LocalEmbedder(manifest.embedding), items, silent)
    kinds = list(found["hybrid"])
    lines = [
        f"{len(items)} queries over {manifest.corpus.rows:,} papers of {manifest.snapshot.title}.\n",
        f"| | {' | '.join(kinds)} |",
        f"|---{'|---' * len(kinds)}|",
        *(f"| {leg} | {' | '.join(f'{shares[kind]:.3f}' for kind in kinds)} |" for leg, shares in found.items()),
    ]
    return "\n".join(lines), found


def find_known_items(opened: Index, embedder: Embedder, items: Sequence[KnownItem], report: Report) -> Metrics:
    """Leg -> kind of query, and `all` -> the share whose paper stands among the first ten."""
    runs = ask(opened, embedder, {str(number): item.query for number, item in enumerate(items)}, report)
    found: Metrics = {}
    for leg, run in runs.items():
        hit = [item.paper_id in {hit.paper_id for hit in run[str(number)][:TOP]} for number, item in enumerate(items)]
        kinds = dict.fromkeys(item.kind for item in items)
        of_kind = {
            kind: [success for success, item in zip(hit, items, strict=True) if item.kind == kind] for kind in kinds
        }
        found[leg] = {kind: round(sum(each) / len(each), 4) for kind, each in (of_kind | {"all": hit}).items()}
    return found


if __name__ == "__main__":
    sys.exit(main())
