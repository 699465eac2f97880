"""Put one dependency group into .venv, from its hashed lock file; nothing to do when that is already done.

Needs Python >= 3.11 with pip and nothing else. `just` calls this before every recipe, so set-up is part of the first
command.

    python3 scripts/install.py GROUP
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"


def main(group: str) -> int:
    """Exit code 0 when .venv holds the group."""
    if sys.version_info < (3, 11):
        found = ".".join(map(str, sys.version_info[:2]))
        print(f"Python {found} found, 3.11 or newer needed: run `just` where python3 is that", file=sys.stderr)
        return 2
    lock, wanted = _lock(group), _digest(group)
    stamp = VENV / f"installed-{group}"
    python = VENV / ("Scripts" if os.name == "nt" else "bin") / "python"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted and python.exists():
        return 0
    if not python.exists():
        print(f"making {VENV.name}", file=sys.stderr)
        venv.create(VENV, with_pip=True)
    for other in VENV.glob("installed-*"):
        # Written at another commit: what this install moves, that group shares.
        if other.read_text(encoding="utf-8") != _digest(other.name.removeprefix("installed-")):
            other.unlink()
    print(f"installing {lock.relative_to(ROOT)} into {VENV.name} (once)", file=sys.stderr)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    done = subprocess.run([*command, "--no-deps", "--only-binary", ":all:", "-r", str(lock)], check=False)
    if done.returncode == 0:
        stamp.write_text(wanted, encoding="utf-8")
    return done.returncode


def _lock(group: str) -> Path:
    return ROOT / "requirements" / f"{group}.txt"


def _digest(group: str) -> str:
    """What the stamp of an installed `group` holds; "" if this commit has no such group."""
    lock = _lock(group)
    return hashlib.sha256(lock.read_bytes()).hexdigest() if lock.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
