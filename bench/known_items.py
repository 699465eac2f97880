"""Success at ten on known items of a published index, in Markdown.

python -m bench.known_items NAME [--work builds/NAME] [--manifest manifests/NAME.json]
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

from manifests.contract import read_manifest
from manifests.embedding.local import LocalEmbedder
from manifests.gate import open_index
from pipeline.evaluate import find_known_items
from pipeline.known_items import known_items
from pipeline.progress import silent


def main() -> int:
    """Print the table; 0 when the hybrid ranking finds at least 95 in 100."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--manifest", type=Path)
    arguments = parser.parse_args()
    work = arguments.work or Path("builds") / arguments.name
    manifest = read_manifest(arguments.manifest or Path("manifests") / f"{arguments.name}.json")
    with closing(open_index(manifest, str(work / "milvus.db"), query_spec=manifest.embedding, engines=2)) as index:
        items = known_items((paper_id, str(paper["title"])) for paper_id, paper in index.papers.items())
        found = find_known_items(index, LocalEmbedder(manifest.embedding), items, silent)
    kinds = list(found["hybrid"])
    print(f"{len(items)} queries over {manifest.corpus.rows:,} papers, collection {manifest.collection.name}.\n")
    print(f"| | {' | '.join(kinds)} |\n|---{'|---' * len(kinds)}|")
    for leg, shares in found.items():
        print(f"| {leg} | {' | '.join(f'{shares[kind]:.3f}' for kind in kinds)} |")
    return int(found["hybrid"]["all"] < FLOOR)


FLOOR = 0.95

if __name__ == "__main__":
    sys.exit(main())
