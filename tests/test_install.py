"""scripts/install.py: a group is installed once, and again when another commit's locks moved what it shares."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.programs import REPOSITORY


def install(root: Path, group: str) -> str:
    """What installing `group` says; the locks here hold comments alone, so pip has nothing to fetch."""
    command = [sys.executable, str(root / "scripts" / "install.py"), group]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr


def test_a_group_is_installed_again_after_another_commit_moved_what_it_shares(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "scripts")
    locks = [tmp_path / "requirements" / name for name in ("serve.txt", "pipeline.txt")]
    locks[0].parent.mkdir()

    def check_out(commit: str) -> None:
        for lock in locks:
            lock.write_text(f"# {commit}\n", encoding="utf-8")

    check_out("a commit")
    assert "installing requirements/serve.txt" in install(tmp_path, "serve")
    assert "installing requirements/pipeline.txt" in install(tmp_path, "pipeline")
    assert install(tmp_path, "serve") + install(tmp_path, "pipeline") == ""

    check_out("another commit")
    assert "installing" in install(tmp_path, "serve")
    check_out("a commit")
    assert "installing" in install(tmp_path, "pipeline")
