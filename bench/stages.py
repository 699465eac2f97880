"""The stages of the pipeline, each beside a bare library or beside what it saves, as one table: docs/stages.md.

    python -m bench.stages [--scale 1] [--out FILE]

Each row is the benchmark of the same name, which also runs alone and says what it compares: bench.load, bench.embed,
bench.rebuild, bench.ledger, bench.index. Prints a line a stage, then the page; `--out` writes it too.
Exits 1 when a stage is above its limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import embed, index, ledger, load, rebuild
from bench.measured import HEADER, RIGHT, Measured, conditions, load_meanwhile, told
from docs.markdown import markdown_table, paragraphs

PACKAGES = (
    *("polars", "msgspec", "pydantic", "onnxruntime", "tokenizers", "dashscope", "pymilvus", "milvus-lite"),
    *("faiss-cpu", "numpy"),
)
NOTE = (
    "Both sides of a row take the same input in the same run, one after the other. `load` is judged at a million "
    "records, and its memory is the resident set of all its processes. The local model's bare loops load it, tokenize "
    "and embed, `padded` in batches of 32 of like length, `alone` a text a call and a core a call; the stage also "
    "checks, stores and seals. The change is what the newer of two snapshots needs over the "
    "vectors of the older, under a quota of 1,800 requests and 1,200,000 tokens a minute; its limit is the share of "
    "changed texts + 0.05. Quota accounting is ledger, token counts and pacing at 1,800 requests a minute; its limit "
    "is 2 ms of CPU a request. The bare Milvus loop has its rows ready-made and its engine in its own process."
)


def main() -> int:
    """Every stage once; 0 when none is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual sizes, for a trial")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    head = ["# Speed of the stages", conditions("bench.stages", PACKAGES), NOTE]
    rows, exit_code = [], 0
    for measured in _stages(arguments.scale):
        exit_code |= told(measured)
        rows.append(measured.cells())
    page = paragraphs([*head, markdown_table(HEADER, rows, RIGHT), load_meanwhile()])
    print(f"\n{page}", end="")
    if arguments.out:
        arguments.out.write_text(page, encoding="utf-8")
    return exit_code


def _stages(scale: float) -> Iterator[Measured]:
    """In the order of a build; accounting before Milvus, whose threads would count as its processor time."""

    def share(size: int) -> int:
        return max(1, round(size * scale))

    yield load.measured(share(load.RECORDS))
    yield embed.measured(share(embed.TEXTS), rounds=share(embed.ROUNDS))
    yield rebuild.measured() if scale == 1 else rebuild.measured(share(rebuild.PAPERS))
    yield ledger.measured()
    yield index.measured(share(index.ROWS), share(index.RUNS))


if __name__ == "__main__":
    sys.exit(main())
