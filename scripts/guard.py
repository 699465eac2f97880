"""Guard what may never be committed: stale locks, URLs in them, paths of one machine, registry hosts, large files.

Prints every finding and exits 1; silent otherwise.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.dependency_groups import resolve_dependency_groups
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FILE_BYTES_MAX = 1_000_000
LOCKS = ("requirements/", "package-lock.json", "uv.lock", "poetry.lock", "pylock.toml")
# Written in pieces, so that this file does not find itself.
FORBIDDEN = (
    ("a path of one machine", re.compile(r"/" + r"(?:root|home/\w+|work/(?:main|shared|w))/")),
    ("a package registry's host", re.compile(r"(?:files\.pythonhosted|pypi)\." + r"org|registry\.npmjs\." + r"org")),
    ("a secret", re.compile(r"\bsk-" + r"[0-9a-f]{24,}\b")),
)


def main() -> int:
    """Look at every file that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    findings = [finding for name in listed.decode().split("\0") if name for finding in findings_in(name)]
    findings += [finding for lock in sorted(ROOT.glob("requirements/*.txt")) for finding in unlocked(lock)]
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


def findings_in(name: str) -> list[str]:
    """What is wrong with the tracked file `name`."""
    path = ROOT / name
    if not path.is_file():
        return []
    content = path.read_bytes()
    found = []
    if len(content) > FILE_BYTES_MAX:
        found.append(f"{name}: {len(content):,} bytes, at most {FILE_BYTES_MAX:,} may be committed")
    text = content.decode(errors="replace")
    if any(lock in name for lock in LOCKS) and "://" in text:
        found.append(f"{name}: a lock file holds a URL; write it with `just lock`")
    for number, line in enumerate(text.splitlines(), start=1):
        found += [f"{name}:{number}: {what}" for what, pattern in FORBIDDEN if pattern.search(line)]
    return found


def unlocked(lock: Path) -> list[str]:
    """What pyproject.toml asks for in the group of `lock` and the lock file does not pin."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    pins = dict(re.findall(r"^([\w.-]+)==([\w.+!-]+)", lock.read_text(encoding="utf-8"), re.MULTILINE))
    wanted = map(Requirement, resolve_dependency_groups(groups, lock.stem))
    return [
        f"{lock.relative_to(ROOT)}: pins {pins.get(name, 'nothing')} for {each}; run `just lock`"
        for each in wanted
        if (name := canonicalize_name(each.name)) not in pins or not each.specifier.contains(pins[name])
    ]


if __name__ == "__main__":
    sys.exit(main())
