"""Stage load on a synthetic snapshot, beside what nobody can do without, in one run.

    python bench/load.py [--records 1000000] [--seed 2026] [--folder DIR]

Reference: sha256 of the papers file + a polars scan of it into a frame + a Parquet write of that frame, each timed
alone. Limits: load takes at most 4 times their sum, and at most 1.5 GB of memory, its worker processes included.
Exits 1 when a limit is exceeded (on fewer than a million records the ratio is only printed).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RATIO_MAX = 4.0
PEAK_MB_MAX = 1_500.0
RECORDS = 1_000_000
SAMPLE_S = 0.25  # looking through all processes of the machine costs what it measures

WORDS = """
we propose a method for learning representations of graphs with diffusion models that improves robustness under
distribution shift and scales to large language attention sparse kernel bounds regret policy gradient inference
Bayesian posterior causal discovery federated optimisation convergence stochastic adaptive benchmark evaluation
reasoning alignment safety protein molecule robotics vision speech transformer token memory efficient training
"""
# As among the papers of a real conference: a third hold LaTeX, a quarter something outside ASCII.
LATEX = (r"$\mathcal{O}(n \log n)$", r"$\epsilon$-greedy", r"$\tau^2$-Bench", r"\textbf{bold}", "$k$", r"$\ell_2$ norm")
UNICODE = (
    "Rényi",
    "naïve",
    "Schrödinger",
    "ﬁne-tuning",
    "Poincaré",
    "state\u2011of\u2011the\u2011art",
    "“curly”",
    "β-VAE",
)
LATEX_SHARE, UNICODE_SHARE, NAME_SHARE = 0.06, 0.025, 0.03
NAMES = "Ada Wei Ivan Kenji Amara Okafor Smith Chen Kumar Rossi Novak Silva Tanaka Brown Ali Weber"
ACCENTED = "José Łukasz Müller Nguyễn Søren Chloé Zoë Petrović García"
AREAS = [f"{parent}->Topic {child}" for parent in ("Deep Learning", "Theory", "Applications") for child in range(25)]


def main() -> int:
    arguments = _arguments()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](Path(arguments.folder))))
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-load-") as folder:
        return _compare(Path(folder), arguments.records, arguments.seed)


def _compare(folder: Path, records: int, seed: int) -> int:
    from pipeline.snapshot import PLAIN, Provenance, write_snapshot

    provenance = Provenance(
        name="synthetic", title="Synthetic", source="bench", url="", retrieved_at="2026-01-01T00:00:00Z", licence="none"
    )
    snapshot = write_snapshot(folder / "synthetic", provenance, synthetic_records(records, seed), file=PLAIN)
    size = snapshot.path.stat().st_size
    print(f"{records:,} records, {size / 1e6:,.0f} MB, {size / records:,.0f} bytes a record")
    reference, _ = _measured("reference", folder)
    load, peak_mb = _measured("load", folder)
    total = sum(reference.values())
    ratio = load["load"] / total
    for name, seconds in {**reference, "sum of these": total, **load}.items():
        print(f"  {name:24} {seconds:8.2f} s")
    print(f"load / sum: {ratio:.2f} (at most {RATIO_MAX})")
    print(f"peak memory of load: {peak_mb:,.0f} MB (at most {PEAK_MB_MAX:,.0f})")
    judged = records >= RECORDS
    return int(peak_mb > PEAK_MB_MAX or (judged and ratio > RATIO_MAX))


def _reference(folder: Path) -> dict[str, float]:
    import polars as pl

    from manifests.files import file_sha256

    text, texts = pl.String(), pl.List(pl.String())
    schema = {"id": text, "title": text, "abstract": text, "authors": texts, "keywords": texts, "primary_area": text}
    schema |= {"paper_type": text, "spotlight": pl.Boolean(), "oral": pl.Boolean(), "forum_url": text, "pdf_url": text}
    path = folder / "synthetic" / "papers.jsonl"
    seconds = {"sha256": _timed(lambda: file_sha256(path))}
    frames: list[Any] = []
    seconds["polars scan"] = _timed(lambda: frames.append(pl.scan_ndjson(path, schema=schema).collect()))
    seconds["Parquet write"] = _timed(lambda: frames[0].write_parquet(folder / "reference.parquet"))
    return seconds


def _load(folder: Path) -> dict[str, float]:
    from pipeline.corpus import tabulate
    from pipeline.snapshot import open_snapshot

    def load() -> None:
        corpus = tabulate(open_snapshot(folder / "synthetic"), folder / "work", quarantine=False)
        assert corpus.facts.rows == corpus.snapshot.counts.lines

    return {"load": _timed(load)}


PARTS = {"reference": _reference, "load": _load}


def _measured(part: str, folder: Path) -> tuple[dict[str, float], float]:
    """Run a part in a process of its own; its seconds and the peak of its tree's resident memory in MB."""
    import psutil

    command = [sys.executable, str(Path(__file__).resolve()), "--part", part, "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
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


def synthetic_records(count: int, seed: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(seed)
    words, names, accented = WORDS.split(), NAMES.split(), ACCENTED.split()
    sentences = [_sentence(chance, words) for _ in range(20_000)]
    authors = [
        f"{chance.choice(accented if chance.random() < NAME_SHARE else names)} {chance.choice(names)}"
        for _ in range(2_000)
    ]
    for number in range(count):
        paper_id = f"{number:010x}"
        yield {
            "id": paper_id,
            "title": chance.choice(sentences)[:80].strip().title() + f" {number}",
            "abstract": " ".join(chance.choices(sentences, k=6)),
            "authors": chance.choices(authors, k=1 + number % 8),
            "keywords": chance.choices(words, k=number % 4),
            "primary_area": chance.choice(AREAS) if number % 12 else None,
            "paper_type": "regular",
            "spotlight": number % 11 == 0,
            "oral": number % 44 == 0,
            "forum_url": f"https://example.org/forum?id={paper_id}",
            "pdf_url": None,
        }


def _sentence(chance: random.Random, known: list[str]) -> str:
    words = chance.choices(known, k=18)
    for share, special in ((LATEX_SHARE, LATEX), (UNICODE_SHARE, UNICODE)):
        if chance.random() < share:
            words.insert(chance.randrange(len(words)), chance.choice(special))
    return " ".join(words).capitalize() + "."


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS, help="papers in the synthetic snapshot")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--folder", help="where the temporary folder is made (about 4 GB at a million records)")
    parser.add_argument("--part", choices=sorted(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
