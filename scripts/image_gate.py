"""Inside the image's build stage: the gate on the index just laid out, so that no image is built that would not start.

    python scripts/image_gate.py SRV        exit code 6 with every difference, as the server's own start

No provider is asked. It also proves that the trimmed packages still open and query an index.
"""

from __future__ import annotations

import sys
from pathlib import Path

from manifests.contract import read_manifest
from manifests.embedding.local import local_spec
from manifests.errors import ContractError
from manifests.gate import open_index


def main(srv: Path) -> int:
    """Open SRV/index as SRV/manifest.json describes it; nothing to do where there is no index."""
    if not (srv / "manifest.json").exists():
        return 0
    try:
        manifest = read_manifest(srv / "manifest.json")
        spec = local_spec(None) if manifest.embedding.provider == "local" else manifest.embedding
        open_index(manifest, str(srv / "index" / "milvus.db"), query_spec=spec).close()
    except ContractError as error:
        print(f"{error}\nrun `just build-index` for this index again, with this version of the code", file=sys.stderr)
        return error.exit_code
    print(f"{manifest.snapshot.name}: {manifest.corpus.rows:,} papers, digest {manifest.digest[:12]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
