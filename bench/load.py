"""Stage load on a synthetic snapshot, beside what nobody can do without, in one run.

    python -m bench.load [--records 1000000] [--seed 2026] [--folder DIR]

Beside it: sha256 of the papers file + a polars scan of it into a frame + a Parquet write of that frame, each timed
alone. Limits: load takes at most 4 times their sum, and at most 1.5 GB of memory, its worker processes included.
Exits 1 when a limit is exceeded (the ratio of fewer than a million records is not judged).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import psutil

from bench.measured import Measured, timed, told
from bench.synthetic import SEED, synthetic_records, synthetic_snapshot
from manifests.files import file_sha256
from pipeline.corpus import tabulate
from pipeline.snapshot import PLAIN, open_snapshot

RATIO_MAX = 4.0
PEAK_MB_MAX = 1_500.0
RECORDS = 1_000_000
SNAPSHOT = "synthetic"
SAMPLE_S = 0.25  # looking through all processes of the machine costs what it measures
# Not by -m: worker processes would import this module again, which those of a build have no need to.
PROGRAM = "import sys; from bench import load; load.print_part(*sys.argv[1:])"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS, help="papers in the synthetic snapshot")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--folder", help="where the temporary folder is made (about 4 GB at a million records)")
    return told(measured(**vars(parser.parse_args())))


def measured(records: int = RECORDS, seed: int = SEED, folder: str | None = None) -> Measured:
    """Each part in a process of its own."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-load-") as scratch:
        snapshot = synthetic_snapshot(Path(scratch) / SNAPSHOT, synthetic_records(records, seed), file=PLAIN)
        megabytes = snapshot.path.stat().st_size / 1e6
        bare, _ = _alone("bare", scratch)
        load, peak_mb = _alone("load", scratch)
    return Measured(
        stage="load",
        size=f"{records:,} records, {megabytes:,.0f} MB",
        seconds=load["load"],
        bare=" + ".join(f"{name} ({seconds:.2f})" for name, seconds in bare.items()),
        bare_s=sum(bare.values()),
        ratio_max=RATIO_MAX if records >= RECORDS else None,
        peak_mb=peak_mb,
        peak_mb_max=PEAK_MB_MAX,
    )


def _alone(part: str, folder: str) -> tuple[dict[str, float], float]:
    """Run a part in a process of its own; its seconds and the peak of its tree's resident memory in MB."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM, part, folder], stdout=subprocess.PIPE, text=True) as run:
        peak = 0

        def watch() -> None:
            nonlocal peak
            root = psutil.Process(run.pid)
            while run.poll() is None:
                try:
                    tree = [root, *root.children(recursive=True)]
                    peak = max(peak, sum(process.memory_info().rss for process in tree))
                except psutil.NoSuchProcess:
                    continue
                time.sleep(SAMPLE_S)

        watcher = threading.Thread(target=watch)
        watcher.start()
        output, _ = run.communicate()
        watcher.join()
    if run.returncode:
        raise SystemExit(f"{part} failed with exit code {run.returncode}")
    return json.loads(output), peak / 1e6


def print_part(part: str, folder: str) -> None:
    """In that process: the seconds of each step, as JSON."""
    print(json.dumps({"bare": _bare, "load": _load}[part](Path(folder))))


def _bare(folder: Path) -> dict[str, float]:
    text, texts = pl.String(), pl.List(pl.String())
    schema = {"id": text, "title": text, "abstract": text, "authors": texts, "keywords": texts, "primary_area": text}
    schema |= {"paper_type": text, "spotlight": pl.Boolean(), "oral": pl.Boolean(), "forum_url": text, "pdf_url": text}
    path = folder / SNAPSHOT / PLAIN
    seconds = {"sha256": timed(lambda: file_sha256(path))}
    frames: list[Any] = []
    seconds["polars scan"] = timed(lambda: frames.append(pl.scan_ndjson(path, schema=schema).collect()))
    seconds["Parquet write"] = timed(lambda: frames[0].write_parquet(folder / "bare.parquet"))
    return seconds


def _load(folder: Path) -> dict[str, float]:
    def load() -> None:
        corpus = tabulate(open_snapshot(folder / SNAPSHOT), folder / "work", quarantine=False)
        assert corpus.facts.rows == corpus.snapshot.counts.lines

    return {"load": timed(load)}


if __name__ == "__main__":
    sys.exit(main())
