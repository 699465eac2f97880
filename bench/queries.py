"""search_papers over HTTP beside a bare hybrid_search and beside what a user would pick instead.

    python -m bench.queries [--snapshot DIR] [--store DIR] [--papers 50000] [--out FILE]

The same fixed queries, papers, vectors and window of 100 for all; they take turns of ten queries, so that
whatever else the machine does falls on all alike. The first corpus is the snapshot, by default real papers found beside
the checkout, else made-up ones; the second is larger and made up. `--store` has the vectors of the snapshot; all other
vectors are deterministic and random. Prints a table a corpus in Markdown; `--out` writes the page.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bench.corpora import Laid, lay_out, many_papers, real_snapshot
from bench.measured import conditions, load_meanwhile
from bench.running import PeerProgram, Program, Server, throughput
from bench.synthetic import synthetic_records, synthetic_snapshot
from manifests.embedding.local import LocalEmbedder, local_spec
from manifests.texts import collapsed, query_text
from pipeline.snapshot import Snapshot, open_snapshot

QUERIES = Path(__file__).with_name("queries.txt")
PAPERS = 6_000  # in place of the real ones
CLIENTS = (1, 8, 64)
# Queries one program answers in a row before the next one's turn, as a program in use would.
BLOCK = 10
NAMES = {
    "http": "`search_papers` over HTTP, engines: {engines}",
    "bare": "bare pymilvus `hybrid_search`, one engine, in process",
    "flat": "the same with a `FLAT` index in place of HNSW",
    "sqlite": "SQLite FTS5 + numpy",
    "lancedb": "LanceDB hybrid",
    "bm25s": "bm25s + faiss, in process",
}
LITE = """
## What Milvus Lite costs, and what a server would change

Lite is Python: it scores BM25 posting by posting, checks every paper's version twice a query and makes a row of every
hit, in time proportional to the corpus. The bare rows are that cost; bm25s and faiss in one process are what is left of
the same search without it. The server adds HTTP, MCP, the cached vector and the text of the answer to Lite; what
it saves is rows that nobody asked for ([decision 0009](decisions/0009-lean-rows-in-the-engine.md)). A Milvus server
scores in C++, skips postings that cannot win, and answers clients side by side; it is another process to run, and none
was measured here.
"""
PACKAGES = ("pymilvus", "milvus-lite", "faiss-cpu", "numpy", "mcp", "uvicorn", "lancedb", "bm25s")


def main() -> int:
    """Measure each corpus in turn; 0."""
    arguments = _arguments()
    queries = QUERIES.read_text(encoding="utf-8").splitlines()
    embedder = LocalEmbedder(local_spec())
    vectors = np.asarray([embedder.embed_query(collapsed(query), timeout_s=60) for query in queries], dtype=np.float32)
    parts = [_heading(arguments)]
    with tempfile.TemporaryDirectory(prefix="bench-queries-") as scratch:
        corpora = [(first_snapshot(arguments.snapshot, Path(scratch)), arguments.store)]
        if arguments.papers:
            corpora.append((many_papers(Path(scratch) / "many", arguments.papers), None))
        for number, (snapshot, store) in enumerate(corpora):
            folder = Path(scratch) / f"corpus-{number}"
            laid = lay_out(folder, snapshot, store, [query_text(query) for query in queries], vectors)
            parts.append(measured(laid, queries, arguments.rounds, arguments.engines, arguments.seconds))
            print(parts[-1], flush=True)
            shutil.rmtree(folder)
    report = "\n".join([*parts, LITE])
    if arguments.out:
        arguments.out.write_text(report, encoding="utf-8")
    return 0


def first_snapshot(given: Path | None, scratch: Path) -> Snapshot:
    """The snapshot given, the real one, or one made up in `scratch`."""
    if given:
        return open_snapshot(given)
    return real_snapshot("icml2026") or synthetic_snapshot(scratch / "made-up", synthetic_records(PAPERS))


def measured(laid: Laid, queries: Sequence[str], rounds: int, engines: int, seconds: float) -> str:
    """The table of one corpus."""
    cold_ms = []  # of each start another query, so that none is known beforehand
    for query in queries[: rounds - 1]:
        with Server(laid, engines) as started:
            cold_ms.append(started.ask(query))
    with ExitStack() as stack:
        server = stack.enter_context(Server(laid, engines))
        cold_ms.append(server.ask(queries[rounds - 1]))
        programs: dict[str, Program] = {"http": server}
        programs |= {name: stack.enter_context(PeerProgram(name, laid.folder)) for name in NAMES if name != "http"}
        for program in programs.values():
            for number in range(len(queries)):
                program.ask_number(number, queries)
        before = {name: program.cpu_s() for name, program in programs.items()}
        taken: dict[str, list[float]] = {name: [] for name in programs}
        for _, first in itertools.product(range(rounds), range(0, len(queries), BLOCK)):
            for name, program in programs.items():
                for number in range(first, min(first + BLOCK, len(queries))):
                    taken[name].append(program.ask_number(number, queries))
        rows = []
        for name, program in programs.items():
            cpu_ms = 1000 * (program.cpu_s() - before[name]) / len(taken[name])
            rows.append((name, taken[name], cpu_ms, program.memory_mb(), program.ready_s))
        rates = {clients: throughput(server.port, queries, clients, seconds) for clients in CLIENTS}
        return table(laid, rows, engines) + _concurrency(rows, rates, cold_ms, server.memory_mb(), engines)


def table(laid: Laid, rows: Sequence[tuple[str, list[float], float, float, float]], engines: int) -> str:
    """Of each program its name, milliseconds a query, CPU ms, memory and time to readiness; docs/scale.py reads it."""
    bare = float(np.median(next(taken for name, taken, *_ in rows if name == "bare")))
    lines = [
        f"\n## {laid.title}: {laid.papers:,} papers, {laid.vectors}\n",
        f"{load_meanwhile()}\n",
        "| | p50 ms | p95 ms | of bare p50 | CPU ms a query | memory MB | ready after s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, taken, cpu_ms, memory_mb, ready_s in rows:
        p50, p95 = np.percentile(taken, [50, 95])
        lines.append(
            f"| {NAMES[name].format(engines=engines)} | {p50:.1f} | {p95:.1f} | {p50 / bare:.2f} | {cpu_ms:.1f} "
            f"| {memory_mb:,.0f} | {ready_s:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _concurrency(
    rows: Sequence[tuple[str, list[float], float, float, float]],
    rates: dict[int, tuple[float, float, int]],
    cold_ms: Sequence[float],
    memory_mb: float,
    engines: int,
) -> str:
    taken = {name: each for name, each, *_ in rows}
    bare = 1000 / float(np.mean(taken["bare"]))
    http_p50, first_ms = float(np.median(taken["http"])), float(np.median(cold_ms))
    lines = [
        f"\nOne bare client loop: {bare:.1f} queries/s. `search_papers` with {engines} engines:\n",
        "| clients | queries/s | of one bare loop | p50 ms | errors |",
        "|---|---|---|---|---|",
        *(
            f"| {clients} | {rate:.1f} | {rate / bare:.2f} | {p50:.0f} | {errors} |"
            for clients, (rate, p50, errors) in rates.items()
        ),
        "",
    ]
    lines.append(
        f"First query after a start, its vector unknown, median of {len(cold_ms)}: {first_ms:.1f} ms, "
        f"{first_ms / http_p50:.2f} of the p50; memory after "
        f"{max(rates)} clients {memory_mb:,.0f} MB."
    )
    return "\n".join(lines) + "\n"


def _heading(arguments: argparse.Namespace) -> str:
    return (
        f"# Speed of a query\n\n{conditions('bench.queries', PACKAGES)} "
        f"{len(QUERIES.read_text(encoding='utf-8').splitlines())} fixed queries, window 100, {arguments.rounds} rounds "
        "on each corpus, query vectors known beforehand. Memory is the proportional set size of the whole program and "
        "its children: each engine of the server is a child with a collection of its own.\n"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshot", type=Path, help="the first corpus")
    parser.add_argument("--store", type=Path, help="vectors of the snapshot by the local model")
    parser.add_argument("--papers", type=int, default=50_000, help="of the large corpus; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15, help="of each number of clients")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
