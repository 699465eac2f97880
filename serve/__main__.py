"""`python -m serve`: flags and environment in, exit codes out. Nothing else of the program reads either.

Exit codes: 0 done, or a server that was told to stop (HTTP: SIGTERM; stdio: its input ends) · 2 usage · 4 the search
could not embed under --strict-hybrid · 5 Milvus · 6 manifest, index or state refused · 130 interrupted · 143 SIGTERM on
stdio, or before the server was ready.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from contextlib import ExitStack
from types import FrameType
from typing import Any

import anyio
from pydantic import ValidationError

from manifests.errors import ContractError, MilvusError
from serve import VERSION
from serve.errors import ErrorCode, ToolFailure
from serve.observe import set_up_logging
from serve.settings import SECRETS, SETTINGS, Settings, read_settings

log = logging.getLogger(__name__)

USAGE = 2
INTERRUPTED = 130
TERMINATED = 143
EXIT_CODE = {ErrorCode.EMBEDDING_UNAVAILABLE: 4, ErrorCode.INDEX_UNAVAILABLE: 5, ErrorCode.OVERLOADED: 5}


def main(arguments: list[str]) -> int:
    """The exit code of one run."""
    given = parser().parse_args(arguments)
    secrets = {name: os.environ[name] for name in SECRETS if os.environ.get(name)}
    signal.signal(signal.SIGTERM, _terminated)
    try:
        settings = read_settings(vars(given), os.environ)
        set_up_logging(settings.log_format, "warning" if given.command == "search" else settings.log_level)
        if given.command == "search":
            return _search(given, settings, secrets)
        return _serve_stdio(settings, secrets) if settings.transport == "stdio" else _serve_http(settings, secrets)
    except ContractError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _serve_http(settings: Settings, secrets: dict[str, str]) -> int:
    from serve.http import bind, build_app, serve_http
    from serve.opening import opened

    lost = IndexLost()
    with bind(settings.host, settings.port) as listener, opened(settings, secrets, lost) as ready:
        app = build_app(ready, settings, secrets.get("SERVE_BEARER_TOKEN"), VERSION)
        # The web server ends by itself on these, then raises them again: by then there is nothing left to stop.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        serve_http(app, settings, listener)
    return lost.exit_code


def _serve_stdio(settings: Settings, secrets: dict[str, str]) -> int:
    from serve.stdio import quiet_stdout, serve_stdio

    lost = IndexLost()
    with ExitStack() as stack:
        with quiet_stdout():
            from serve.opening import opened

            ready = stack.enter_context(opened(settings, secrets, lost))
        anyio.run(serve_stdio, ready, VERSION, stack.close, lambda number: lost.exit_code or 128 + number)
    return 0


class IndexLost:
    """Ends the program when its embedded engine has ended: whoever starts it again has the index checked again."""

    exit_code = 0

    def __call__(self) -> None:
        """Stop in order, as on SIGTERM."""
        if not self.exit_code:
            self.exit_code = MilvusError.exit_code
            log.error("the embedded Milvus engine has ended; stopping, start the server again")
            os.kill(os.getpid(), signal.SIGTERM)


def _search(given: argparse.Namespace, settings: Settings, secrets: dict[str, str]) -> int:
    from serve.arguments import SearchPapers, described
    from serve.opening import opened
    from serve.search import SearchRequest

    asked = {name: getattr(given, name) for name in SearchPapers.model_fields if name in given}
    try:
        checked = SearchPapers.model_validate({**asked, "include_abstract": not given.no_abstract})
    except ValidationError as error:
        sys.stderr.write(f"{described(error, SearchPapers)}\n")
        return USAGE
    request = SearchRequest(**checked.model_dump())
    with opened(settings, secrets) as ready:
        try:
            deadline = time.monotonic() + settings.call_deadline
            answer = anyio.run(ready.service.search, request, deadline)
        except ToolFailure as failure:
            sys.stderr.write(f"{failure}\n")
            return EXIT_CODE.get(failure.code, USAGE)
    # A terminal that cannot show a letter shows a question mark.
    sys.stdout.buffer.write(f"{answer}\n".encode(sys.stdout.encoding, "replace"))
    return 0


def parser() -> argparse.ArgumentParser:
    """The whole command line; docs/commands.md is generated from it."""
    top = argparse.ArgumentParser(
        prog="python -m serve",
        description="Serve six MCP tools over one verified index, or search it once.",
        epilog=f"Secrets come from the environment only: {', '.join(SECRETS)}.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=VERSION)
    _add_settings(top)
    top.set_defaults(command="serve")
    commands = top.add_subparsers(metavar="COMMAND", required=False)
    search = commands.add_parser(
        "search", help="one search from the terminal, in the tool's own text", allow_abbrev=False
    )
    search.set_defaults(command="search")
    _add_settings(search)
    search.add_argument("query", metavar="QUERY", help="what to search for, in words or a sentence")
    search.add_argument("--top-k", type=int, metavar="N", help="papers to show (default 10)")
    search.add_argument("--search-depth", type=int, metavar="N", help="candidates to check (default 100)")
    search.add_argument("--area", help="area or parent of areas, any case")
    search.add_argument("--paper-type", help="such as regular or position")
    search.add_argument("--spotlight", dest="spotlight_only", action="store_true", help="spotlight papers only")
    search.add_argument("--min-score", type=float, metavar="S", help="least score, 0 to 1")
    search.add_argument("--no-abstract", action="store_true", help="no abstract previews")
    return top


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """One flag a setting. Their values are checked by `read_settings`, alike for flags and environment."""
    for setting in SETTINGS:
        standing = "" if setting.default in (None, False, ()) else f" (default {setting.default})"
        takes: dict[str, Any] = {"metavar": setting.kind.upper()}
        if setting.kind == "switch":
            takes = {"action": "store_const", "const": "true"}
        # Absent rather than None: a flag before `search` is not undone by its absence after it.
        parser.add_argument(
            setting.flag,
            dest=setting.name,
            default=argparse.SUPPRESS,
            help=f"{setting.help}{standing} [{setting.variable}]",
            **takes,
        )


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(TERMINATED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
