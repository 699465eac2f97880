"""`python -m pipeline`: flags, environment and exit codes; the only place of this program that reads them."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from manifests.errors import ContractError, Difference, InputRefused
from pipeline.arguments import parser
from pipeline.errors import MachineRefused

REPOSITORY = Path(__file__).resolve().parent.parent
USAGE, INTERRUPTED = 2, 130


class UsageError(ContractError):
    """Flags or environment that do not fit together."""

    exit_code = USAGE


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    args = parser(version()).parse_args(arguments)
    try:
        return COMMANDS[args.command](args, os.environ)
    except ContractError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        refused = _machine_refusal(error)
        if refused is None:
            raise
        print(f"error: {refused}", file=sys.stderr)
        return refused.exit_code
    except KeyboardInterrupt:
        print("\ninterrupted; what was finished is kept, the same command goes on from there", file=sys.stderr)
        return INTERRUPTED


def version() -> str:
    """The version in pyproject.toml: the repository is an application, nothing is installed."""
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def _machine_refusal(error: OSError) -> MachineRefused | None:
    """A full disk or a missing permission in a user's words; None for what is a bug."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return MachineRefused(
            f"the disk is full{where}; nothing that was finished is lost. Free space and run the same command"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return MachineRefused(f"{error.strerror}{where}; choose a folder that may be written")
    return None
