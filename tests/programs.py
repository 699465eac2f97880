"""The real programs, started as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
SAMPLE = REPOSITORY / "snapshots" / "sample"


def run_pipeline(
    *arguments: str | Path, timeout_s: float = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`python -m pipeline ARGUMENTS` as its own program."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *map(str, arguments)],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@dataclass(frozen=True)
class Build:
    """A finished build: its folders, and what `--json` said."""

    work: Path
    manifest: Path
    store: Path
    result: dict[str, Any]

    @property
    def uri(self) -> str:
        """The Lite URI that the build published."""
        return str(self.work / "milvus.db")


def run_build(snapshot: Path, folder: Path, *options: str, store: Path | None = None, **environment: str) -> Build:
    """Build `snapshot` into `folder` and expect success."""
    work, manifest = folder / "work", folder / "manifest.json"
    store = store or folder / "store"
    places = ("--work", work, "--manifest", manifest, "--store", store, "--ledger", folder / "ledger.db")
    done = run_pipeline("build", snapshot, *places, "--json", *options, **environment)
    assert done.returncode == 0, done.stderr
    return Build(work, manifest, store, json.loads(done.stdout))
