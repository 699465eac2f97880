"""Write requirements/*.txt from pyproject.toml: hashed pins, valid on every platform, without any URL.

The dev group is solved first and holds the others to its versions, so one environment can serve them all.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GROUPS = ("dev", "pipeline", "serve", "bench")
# Deterministic order of solving: every later group is constrained by the first.
COMMAND = ("--universal", "--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-header", "-q")


def main() -> int:
    """Compile every group; extra arguments go to `uv pip compile`, for instance --upgrade."""
    for group in GROUPS:
        target = ROOT / "requirements" / f"{group}.txt"
        constraint = [] if group == "dev" else ["-c", str(ROOT / "requirements" / "dev.txt")]
        command = [sys.executable, "-m", "uv", "pip", "compile", "--group", f"pyproject.toml:{group}", *COMMAND]
        command += ["--python-version", "3.11", *constraint, "-o", str(target), *sys.argv[1:]]
        subprocess.run(command, cwd=ROOT, check=True)
        if found := re.search(r"\S*://\S*", target.read_text(encoding="utf-8")):
            print(f"{target} holds a URL: {found[0]}; a lock file may hold none", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
