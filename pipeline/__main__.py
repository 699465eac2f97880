"""`python -m pipeline`: flags, environment and exit codes.

Here alone they are taken from the machine. Stages get values; only `fetch` unpacks its own flags (fetch/commands.py).
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from manifests import VERSION
from manifests.contract import read_manifest
from manifests.errors import ContractError, InputRefused
from manifests.places import state_home
from manifests.visible import visible_lines
from pipeline.arguments import parser
from pipeline.console import Console
from pipeline.embed import Policy
from pipeline.embedders import Wanted, embedding_spec, open_counter, open_embedder, query_reserve, quotas
from pipeline.errors import MachineRefused
from pipeline.places import Given, Places, require_buildable

if TYPE_CHECKING:
    from pipeline.store_upkeep import Pruned, SpecStats

VALIDATION_FAILED, INTERRUPTED, TERMINATED = 6, 130, 143
MISSING = (
    "Missing files keep their vectors. Where one has moved to, run `python -m pipeline index --work WORK --manifest "
    "MANIFEST`, with the other options of its build: it is then listed there. For what is gone for good, run "
    "`python -m pipeline store prune --forget PATH`"
)
KEPT = "what was finished is kept, the same command goes on from there"

Environment = Mapping[str, str]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    args = parser(VERSION).parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return COMMANDS[args.command](args, os.environ)
    except ContractError as error:
        _complain(f"error: {error}")
        return error.exit_code
    except BrokenPipeError:  # nobody reads the progress any more, and a build must not seem to have ended well
        _close_to_readers(sys.stderr)
        return MachineRefused.exit_code
    except OSError as error:
        refused = _machine_refusal(error)
        if refused is None:
            raise
        _complain(f"error: {refused}")
        return refused.exit_code
    except KeyboardInterrupt:
        _complain(f"\ninterrupted; {KEPT}")
        return INTERRUPTED
    except SystemExit:  # only `_terminated` raises it
        _complain(f"terminated; {KEPT}")
        return TERMINATED


def _build(args: argparse.Namespace, environment: Environment) -> int:
    from pipeline.build import Request, build
    from pipeline.summary import say_built

    console = Console()
    places = Places.of_snapshot(args.snapshot, _published(args), environment)
    require_buildable(places)
    request = Request(args.snapshot, places, args.quarantine, _policy(args), f"build {args.snapshot}")
    built = build(request, open_embedder(_wanted(args), environment, places.ledger), console)
    say_built(built, places)
    return _say(args, built.facts())


def _load(args: argparse.Namespace, environment: Environment) -> int:
    from pipeline.corpus import tabulate
    from pipeline.snapshot import open_snapshot
    from pipeline.work import held

    places = Places.of_snapshot(args.snapshot, Given(args.work), environment)
    with held(places.work, f"load {args.snapshot}"), Console().stage("load") as report:
        corpus = tabulate(open_snapshot(args.snapshot), places.work, quarantine=args.quarantine, report=report)
    return _say(args, corpus.facts.model_dump(), f"{corpus.path}: {corpus.facts.rows:,} papers")


def _embed(args: argparse.Namespace, environment: Environment) -> int:
    from pipeline.corpus import read_corpus
    from pipeline.embed import embed
    from pipeline.embedding_store import EmbeddingStore
    from pipeline.work import held

    places = Places.of_work(Given(args.work, store=args.store, ledger=args.ledger), environment)
    embedder = open_embedder(_wanted(args), environment, places.ledger)
    with held(places.work, "embed"), Console().stage("embed") as report:
        corpus = read_corpus(places.work)
        with EmbeddingStore(places.store, embedder.spec) as store:
            result = embed(corpus.path, store, embedder, _policy(args), report)
    return _say(args, asdict(result), f"{result.reused:,} reused, {result.embedded:,} new vectors in {places.store}")


def _index(args: argparse.Namespace, environment: Environment) -> int:
    from pipeline.build import Built, finish
    from pipeline.corpus import read_corpus
    from pipeline.embedding_store import EmbeddingStore
    from pipeline.measure import Meter
    from pipeline.publish import draft
    from pipeline.work import held

    console, meter = Console(), Meter()
    places = Places.of_work(_published(args), environment)
    require_buildable(places)
    spec = embedding_spec(_wanted(args))
    with held(places.work, "index"), EmbeddingStore(places.store, spec) as store:
        corpus = read_corpus(places.work)
        manifest = draft(corpus, spec)
        finish(corpus, manifest, store, places, meter, console)
    built = Built(manifest, places.manifest, None, meter)
    return _say(args, built.facts(), f"{places.manifest} published, digest {manifest.digest[:12]}")


def _validate(args: argparse.Namespace, environment: Environment) -> int:
    from pipeline.validate import validate

    places = Places.of_manifest(Given(args.work, args.manifest, args.store, milvus_uri=args.milvus_uri), environment)
    with Console().stage("validate") as report:
        verdict = validate(places, args.snapshot, args.model, report)
    facts = {
        "ok": verdict.exit_code == 0,
        "digest": verdict.digest,
        "differences": [asdict(each) for each in verdict.differences],
        "not_compared": [each._asdict() for each in verdict.not_compared],
    }
    left_out = f"not compared: {', '.join(map(str, verdict.not_compared))}" if verdict.not_compared else ""
    if verdict.exit_code == 0:
        found = f"what is at hand is as it pins; {left_out};" if left_out else "everything it pins is in place,"
        return _say(args, facts, f"{places.manifest}: {found} digest {verdict.digest}")
    if verdict.differences:
        lines = "".join(f"\n  - {difference}" for difference in verdict.differences)
        _complain(f"error: {places.manifest}: {len(verdict.differences)} difference(s):{lines}")
    if verdict.failure:
        _complain(f"error: {verdict.failure}")
    if left_out:
        _complain(left_out)
    return _say(args, facts, exit_code=verdict.exit_code)


def _plan(args: argparse.Namespace, environment: Environment) -> int:
    from manifests.scratch import scratch_folder
    from manifests.texts import embed_text
    from pipeline.corpus import tabulate
    from pipeline.embedding_store import EmbeddingStore
    from pipeline.plan import plan
    from pipeline.snapshot import open_snapshot

    places = Places.of_snapshot(args.snapshot, Given(store=args.store), environment)
    wanted = _wanted(args)
    with scratch_folder() as scratch, Console().stage("plan") as report:
        embedder = open_counter(wanted, environment, scratch)
        corpus = tabulate(open_snapshot(args.snapshot), scratch, quarantine=True, report=report)
        texts = (embed_text(*row) for frame in corpus.slices("title", "abstract") for row in frame.iter_rows())
        with EmbeddingStore(places.store, embedder.spec, create=False) as store:
            planned = plan(texts, store, embedder, *quotas(wanted, environment), share=1 - query_reserve(wanted))
    return _say(args, asdict(planned), _lines(asdict(planned)))


def _status(args: argparse.Namespace, environment: Environment) -> int:
    from pipeline.status import status

    places = Places.of_work(_published(args), environment)
    found = status(places.work, places.manifest, places.store, embedding_spec(_wanted(args)))
    return _say(args, found, _lines(found))


def _prune(args: argparse.Namespace, environment: Environment) -> int:
    from pipeline.work import held, prune

    places = Places.of_work(Given(args.work, args.manifest), environment)
    with held(places.work, "prune"):
        kept = read_manifest(places.manifest).collection.name
        removed = [path.name for path in prune(places.work, kept)]
    return _say(args, {"kept": kept, "removed": removed}, f"kept {kept}, removed {', '.join(removed) or 'nothing'}")


def _diff(args: argparse.Namespace, _environment: Environment) -> int:
    from pipeline.diff import diff
    from pipeline.diff_text import diff_markdown, diff_text

    with Console().stage("diff") as report:
        found = diff(args.a, args.b, report)
    if args.json:
        return _say(args, found.facts())
    return _say(args, {}, diff_markdown(found) if args.markdown else diff_text(found))


def _evaluate(args: argparse.Namespace, environment: Environment) -> int:
    from pipeline.evaluate import evaluate, words

    places = Places.of_judged(args.judged, Given(args.work, store=args.store, ledger=args.ledger), environment)
    embedder = open_embedder(_wanted(args), environment, places.ledger)
    with Console().stage("evaluate") as report:
        metrics = evaluate(args.judged, embedder, places.store, places.work, report)
    return _say(args, metrics, f"{words(metrics)}\nruns in {places.work / 'runs'}")


def _store(args: argparse.Namespace, environment: Environment) -> int:
    from pipeline.store_upkeep import prune_store, stats
    from pipeline.store_verify import verify

    folder = args.store or state_home(environment) / "vectors"
    if args.store is not None and not folder.is_dir():
        raise InputRefused(f"--store {folder}: no such folder; a build makes one")
    with Console().stage(f"store {args.action}") as report:
        if args.action == "verify":
            verified = verify(folder, report)
            damaged = {str(each.path): each.reason for each in verified.damaged}
            incomplete = {each.path: each.reason for each in verified.incomplete}
            sound = "every part that is here is sound" if incomplete else "every part is sound"
            lines = [f"{path}: {reason}" for path, reason in (damaged | incomplete).items()]
            facts = {"ok": verified.ok, "damaged": damaged, "incomplete": incomplete}
            exit_code = 0 if verified.ok else VALIDATION_FAILED
            return _say(args, facts, "\n".join(lines if damaged else [sound, *lines]), exit_code=exit_code)
        if args.action == "stats":
            found: Sequence[SpecStats | Pruned] = stats(folder)
        else:
            found = prune_store(folder, dry_run=args.dry_run, forget=args.forget, report=report)
    words = [_lines(asdict(each) | {"missing": each.missing}) for each in found] or [f"{folder} holds no vectors"]
    if any(each.missing for each in found):
        words.append(MISSING)
    return _say(args, {"specs": [asdict(each) for each in found]}, "\n\n".join(words))


def _fetch(args: argparse.Namespace, environment: Environment) -> int:
    from pipeline.fetch.commands import fetch, words

    with Console().stage("fetch") as report:
        result = fetch(args, environment, report)
    return _say(args, result, words(result))


COMMANDS: dict[str, Callable[[argparse.Namespace, Environment], int]] = {
    "fetch": _fetch,
    "build": _build,
    "load": _load,
    "embed": _embed,
    "index": _index,
    "validate": _validate,
    "plan": _plan,
    "status": _status,
    "prune": _prune,
    "diff": _diff,
    "evaluate": _evaluate,
    "store": _store,
}


def _published(args: argparse.Namespace) -> Given:
    return Given(args.work, args.manifest, args.store, args.ledger, args.milvus_uri)


def _wanted(args: argparse.Namespace) -> Wanted:
    quotas = args.requests_per_minute, args.tokens_per_minute
    return Wanted(args.provider, args.model, args.dimension, *quotas, args.query_reserve)


def _policy(args: argparse.Namespace) -> Policy:
    return Policy(budget_tokens=args.budget_tokens)


def _say(args: argparse.Namespace, facts: Mapping[str, Any], words: str = "", *, exit_code: int = 0) -> int:
    """The result: one JSON object on standard output with --json, else words there; returns `exit_code`.

    Raises:
        MachineRefused: standard output takes nothing more, such as a file on a full disk.
    """
    text = json.dumps(facts, ensure_ascii=False) if args.json else visible_lines(words)
    try:
        if text:
            print(text, flush=True)
    except BrokenPipeError:  # the reader of a pipe had enough, such as `| head`
        _close_to_readers(sys.stdout)
    except OSError as error:
        _close_to_readers(sys.stdout)
        raise MachineRefused(f"the result cannot be written to standard output: {error.strerror}") from error
    return exit_code


def _complain(text: str) -> None:
    """On standard error, without what a text from elsewhere may hold against a terminal."""
    print(visible_lines(text), file=sys.stderr)


def _close_to_readers(stream: TextIO) -> None:
    """Lead `stream` nowhere: what it could not write must not be tried again when the program ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _lines(facts: Mapping[str, Any]) -> str:
    """A fact a line; what is absent or empty as a dash."""
    shown = {key: ", ".join(map(str, value)) if isinstance(value, list) else value for key, value in facts.items()}
    return "\n".join(f"{key:<13}{'-' if value in (None, '') else value}" for key, value in shown.items())


def _terminated(number: int, _frame: FrameType | None) -> None:
    """Unwind as at Ctrl-C, once: a second signal must not cut the cleaning short."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(TERMINATED)


def _machine_refusal(error: OSError) -> MachineRefused | None:
    """A full disk or a missing permission in a user's words; None for what is a bug."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return MachineRefused(
            f"the disk is full{where}; nothing that was finished is lost. Free space and run the same command"
        )
    if error.errno is not None and error.filename:
        return MachineRefused(f"{error.strerror}{where}; correct that path or its permissions, or choose another")
    return None


if __name__ == "__main__":
    sys.exit(main())
