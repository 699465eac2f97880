"""Run `python -m pipeline` and die at a chosen point, as `kill -9`, `kill`, Ctrl-C or a full disk would have it.

    python -m tests.dying MODULE:ATTRIBUTE[:NTH][:KIND] ARGUMENTS...

KIND is `kill` (default), `interrupt`, `terminate`, `disk-full` or `kill-before-rename[-N]`; it strikes when ATTRIBUTE
is called for the NTH time (default 1), the last one at the first (Nth) rename after that.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def strike(kind: str) -> None:
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        return
    if kind == "disk-full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if kind.startswith("kill-before-rename"):
        nth = int(kind.removeprefix("kill-before-rename").removeprefix("-") or 1)
        Path.replace = fatal(Path.replace, nth, "kill")  # type: ignore[method-assign]
        return
    os.kill(os.getpid(), signal.SIGKILL)


def fatal(original: Callable[..., Any], nth: int, kind: str) -> Callable[..., Any]:
    calls = 0

    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            strike(kind)
        return original(*args, **kwargs)

    return called


def arm(point: str) -> None:
    parts = point.split(":")
    where, attribute, nth, kind = [*parts, *["1", "kill"][len(parts) - 2 :]]
    owner: Any = importlib.import_module(where)
    *outer, name = attribute.split(".")
    for part in outer:
        owner = getattr(owner, part)
    setattr(owner, name, fatal(getattr(owner, name), int(nth), kind))


if __name__ == "__main__":
    arm(sys.argv[1])
    from pipeline.__main__ import main

    sys.exit(main(sys.argv[2:]))
