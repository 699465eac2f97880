"""docs/commands.md: the recipes of the Justfile and every argument of both programs, from their parsers."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pipeline.arguments
import serve.__main__
from docs.markdown import markdown_table, paragraphs, sentence

ROOT = Path(__file__).resolve().parent.parent


def commands_page(note: str) -> str:
    """The recipes, then both programs, subcommand by subcommand."""
    parts = ["# Commands", note, "## Recipes", markdown_table(("Recipe", "Does"), recipes())]
    for top in (pipeline.arguments.parser("VERSION"), serve.__main__.parser()):
        parts += [f"## `{top.prog}`", sentence(top.description)]
        if top.epilog:
            parts.append(sentence(top.epilog))
        if top.prog.endswith("serve"):
            parts.append("Takes every setting of [configuration.md](configuration.md) as a flag, with `search` too.")
        parts += parser_parts(top)
    return paragraphs(parts)


def recipes() -> list[tuple[str, str]]:
    """Public recipes of the Justfile with their parameters, in the order of the file."""
    just = Path(sys.executable).with_name("just")
    program = str(just) if just.exists() else shutil.which("just") or "just"
    command = [program, "--justfile", str(ROOT / "Justfile"), "--dump", "--dump-format", "json"]
    dump = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    source = (ROOT / "Justfile").read_text(encoding="utf-8")
    public = [recipe for recipe in dump["recipes"].values() if not recipe["private"]]
    public.sort(key=lambda recipe: source.index(f"\n{recipe['name']}"))
    return [
        (f"`{' '.join(['just', recipe['name'], *map(shown, recipe['parameters'])])}`", recipe["doc"] or "—")
        for recipe in public
    ]


def shown(parameter: dict[str, Any]) -> str:
    """`NAME`, `[name=default]` or `[name...]`."""
    if parameter["kind"] == "star":
        return f"[{parameter['name']}...]"
    default = parameter["default"]
    return (
        parameter["name"].upper() if default is None else f"[{parameter['name']}={json.dumps(default).strip(chr(34))}]"
    )


def parser_parts(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The options of `parser`, then its subcommands, each under its own heading."""
    rows = [row for action in parser._actions if (row := action_row(action))]
    if rows:
        yield markdown_table(("Argument", "Default", "Meaning"), rows)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield f"### `{below.prog}`"
                if below.description:
                    yield sentence(below.description)
                yield from parser_parts(below)


def action_row(action: argparse.Action) -> tuple[str, str, str] | None:
    """One argument; None for what every parser has, and for subcommands."""
    if action.dest in {"help", "version"} or isinstance(action, argparse._SubParsersAction):
        return None
    if action.help and action.help.endswith("]") and "[SERVE_" in action.help:  # a setting: configuration.md has them
        return None
    name = action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest.upper())
    if action.option_strings and action.nargs != 0:
        name += " " + str(action.metavar or ("|".join(map(str, action.choices)) if action.choices else "VALUE"))
    default = "—" if action.default in (None, False, "", [], argparse.SUPPRESS) else f"`{action.default}`"
    if action.required and action.option_strings:
        default = "required"
    return (f"`{name}`", default, action.help or "—")
