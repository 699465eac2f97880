"""The command line of `python -m pipeline`: every subcommand and flag, and nothing that runs them.

docs/commands.md is generated from this parser.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


class _Parser(argparse.ArgumentParser):
    """Takes flags by their whole names only, and so do its subparsers, which are of its class."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)


def parser(version: str) -> argparse.ArgumentParser:
    """The whole parser."""
    top: argparse.ArgumentParser = _Parser(
        prog="python -m pipeline",
        description="Turn a source snapshot into a published, validated index.",
        epilog="Exit codes: 0 done, 1 the machine refused a write, 2 usage, 3 bad input, 4 provider or quota "
        "(resumable), 5 Milvus, 6 validation failed, 7 work folder held, 130 interrupted, 143 terminated (both "
        "resumable).",
    )
    top.add_argument("--version", action="version", version=f"icml-paper-search {version}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _fetch(commands)
    for name, summary in (
        ("build", "the whole path: load, embed, index, validate, publish"),
        ("load", "snapshot -> WORK/papers.parquet"),
        ("plan", "what a build with these options would embed, and what it takes; --work and --ledger stay untouched"),
    ):
        sub = _command(commands, name, summary)
        _snapshot(sub)
        _work(sub)
        if name != "plan":
            sub.add_argument(
                "--quarantine", action="store_true", help="move bad records to WORK/rejected.jsonl instead of stopping"
            )
        if name != "load":
            _provider(sub)
        if name == "build":
            _embedding(sub)
            _published(sub)
    embed = _command(commands, "embed", "papers.parquet -> vectors of every text the store lacks")
    _work(embed)
    _provider(embed)
    _embedding(embed)
    for name, summary in (
        ("index", "papers.parquet and stored vectors -> collection, gate, manifest"),
        ("status", "what a work folder holds and what is missing"),
    ):
        sub = _command(commands, name, summary)
        _work(sub)
        _provider(sub)
        _published(sub)
    validate = _command(commands, "validate", "compare snapshot, Parquet and collection with the manifest")
    _work(validate)
    _published(validate)
    validate.add_argument(
        "--snapshot", type=Path, help="the source copy (default: the one papers.parquet was made from)"
    )
    validate.add_argument("--model", help="folder of a local model that is not the installed one")
    validate.add_argument("--store", type=Path, help="vectors to compare with (default: those of the machine)")
    prune = _command(commands, "prune", "remove older collections and dead builds from a work folder")
    _work(prune)
    prune.add_argument(
        "--manifest", type=Path, help="keep the collection of this manifest (default: manifests/NAME.json)"
    )
    _diff(commands)
    _evaluate(commands)
    _store(commands)
    return top


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str
) -> argparse.ArgumentParser:
    sub = commands.add_parser(name, help=summary, description=f"{name}: {summary}.")
    sub.add_argument(
        "--json", action="store_true", help="one JSON object on standard output; all else on standard error"
    )
    return sub


def _snapshot(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("snapshot", type=Path, help="snapshot folder, such as snapshots/sample")


def _work(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--work", type=Path, help="work folder (default: builds/NAME)")


def _published(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--manifest", type=Path, help="the published file (default: manifests/NAME.json)")
    sub.add_argument("--milvus-uri", help="http(s)://… or unix:… of a server, or a Lite path (default: WORK/milvus.db)")


def _provider(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--provider", choices=("local", "dashscope"), default="local", help="who embeds (default: local)")
    sub.add_argument("--model", help="model name, or the folder of an ONNX model (default: the provider's)")
    sub.add_argument("--dimension", type=int, help="of the vectors (default: the model's)")
    sub.add_argument("--requests-per-minute", type=int, help="DashScope quota (or DASHSCOPE_REQUESTS_PER_MINUTE)")
    sub.add_argument("--tokens-per-minute", type=int, help="DashScope quota (or DASHSCOPE_TOKENS_PER_MINUTE)")
    sub.add_argument(
        "--query-reserve",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the quotas left free for queries of a server beside it (default: 0)",
    )
    sub.add_argument("--store", type=Path, help="vectors, shared by all builds of the machine")
    sub.add_argument("--ledger", type=Path, help="provider minutes, shared by all builds and servers of the machine")


def _embedding(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--budget-tokens", type=_positive, help="stop, resumably, before this many tokens are spent")


def _fetch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    fetch = commands.add_parser("fetch", help="get a snapshot", description="fetch: get a snapshot.")
    sources = fetch.add_subparsers(dest="source", required=True, metavar="SOURCE")
    openreview = _command(sources, "openreview", "the accepted papers of an OpenReview venue; login by environment")
    openreview.add_argument(
        "venue_ids", nargs="+", metavar="VENUE_ID", help="such as ICML.cc/2026/Conference; several make one snapshot"
    )
    _snapshot_to_be(openreview)
    _work(openreview)
    openreview.add_argument(
        "--requests-per-minute", type=_rate, default=60, metavar="N", help="at most, to OpenReview (default: 60)"
    )
    listed = _command(sources, "file", "a list of papers in JSONL, JSON, CSV, TSV or Parquet")
    listed.add_argument("path", type=Path, metavar="PATH", help="the list; .gz is read too")
    _snapshot_to_be(listed)
    listed.add_argument(
        "--map",
        type=_mapping,
        action="extend",
        nargs="+",
        default=[],
        metavar="OURS=THEIRS",
        help="our field is their column or a template such as https://openreview.net/forum?id={id}; "
        "an empty column leaves the field out",
    )
    listed.add_argument(
        "--format", choices=("jsonl", "json", "csv", "tsv", "parquet"), help="of the file (default: by its suffix)"
    )
    listed.add_argument("--separator", help="between authors in one text (default: each cell's first of ; | ,)")
    listed.add_argument(
        "--entities",
        metavar="FIELDS",
        help="fields whose HTML entities are decoded, such as title,authors (default: authors in one text)",
    )
    listed.add_argument("--url", default="", help="where the list is from")


def _snapshot_to_be(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--name", required=True, help="of the new snapshot")
    sub.add_argument(
        "--snapshots",
        type=Path,
        default=Path("snapshots"),
        metavar="DIR",
        help="its parent folder (default: snapshots)",
    )
    sub.add_argument("--title", default="", help='such as "ICML 2026" (default: the venue\'s, or the name)')
    sub.add_argument("--licence", default="", help="of the texts (default: as the papers state it)")
    sub.add_argument("--quarantine", action="store_true", help="leave bad records out, counted and named")


def _mapping(text: str) -> tuple[str, str]:
    ours, equals, theirs = text.partition("=")
    if not equals or not ours:
        raise argparse.ArgumentTypeError(f"{text!r} is not OURS=THEIRS")
    return ours, theirs


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of requests above 0")
    return rate


def _diff(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    diff = _command(commands, "diff", "added, removed and changed papers between two snapshots or manifests")
    diff.add_argument("a", type=Path, help="the older snapshot folder or manifest")
    diff.add_argument("b", type=Path, help="the newer one")
    diff.add_argument("--markdown", action="store_true", help="a changelog entry on standard output")


def _evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    evaluate = _command(commands, "evaluate", "nDCG@10, R@100 and RR@10 of a judged set in BEIR layout")
    evaluate.add_argument("judged", type=Path, metavar="BEIR_DIR", help="corpus.jsonl, queries.jsonl, qrels/test.tsv")
    _work(evaluate)
    _provider(evaluate)


def _store(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    store = commands.add_parser(
        "store", help="the vectors of this machine", description="store: the vectors of this machine."
    )
    actions = store.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary in (
        ("verify", "read every part; name what is damaged, and what is needed and not there"),
        ("stats", "parts, vectors and bytes by embedding spec"),
        ("prune", "remove vectors that no published manifest or corpus needs, and damaged parts"),
    ):
        action = _command(actions, name, summary)
        action.add_argument("--store", type=Path, help="the store's folder")
        if name == "prune":
            action.add_argument("--dry-run", action="store_true", help="only say what would be removed")
            action.add_argument(
                "--forget",
                type=Path,
                action="extend",
                nargs="+",
                default=[],
                metavar="PATH",
                help="manifest, papers.parquet or folder of some that is gone for good; else what is missing keeps its "
                "vectors",
            )
