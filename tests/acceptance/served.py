"""A real server program, started as an operator starts it, and a thin client for load."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil

from tests.programs import REPOSITORY, Build

READY_S = 180
QUERY = "learning with few labels"
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_ids = itertools.count(1)


def command(build: Build, state: Path, *flags: str) -> list[str]:
    places = ("--manifest", str(build.manifest), "--milvus-uri", build.uri, "--state", str(state))
    return [sys.executable, "-m", "serve", *places, *flags]


class Served:
    """One run of the server."""

    def __init__(self, build: Build, folder: Path, *flags: str, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state = folder / "state.db"
        self._log = folder / f"log-{next(_ids)}.txt"
        with self._log.open("wb") as log:
            self.program = subprocess.Popen(
                command(build, self.state, "--port", "0", *flags),
                cwd=REPOSITORY,
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.url = self._ready()
        self.base = self.url.removesuffix("/mcp")

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def _ready(self) -> str:
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            if found := re.search(r"ready at (http://\S+)", self.log):
                return found[1]
            if self.program.poll() is not None:
                break
            time.sleep(0.1)
        self.stop(signal.SIGKILL)
        raise AssertionError(f"the server did not become ready:\n{self.log}")

    def memory_mb(self) -> float:
        """Resident memory of the server itself, without its engines."""
        return float(psutil.Process(self.program.pid).memory_info().rss) / 1e6

    def open_files(self) -> int:
        return int(psutil.Process(self.program.pid).num_fds())

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop the program and give its exit code; its engines end with it."""
        children = psutil.Process(self.program.pid).children(recursive=True) if self.program.poll() is None else []
        self.program.send_signal(how)
        code = self.program.wait(60)
        assert self.program.stdout is not None
        self.program.stdout.close()
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive, f"engines outlived their server: {alive}"
        return code


@contextmanager
def serving(build: Build, folder: Path, *flags: str, **environment: str) -> Iterator[Served]:
    served = Served(build, folder, *flags, **environment)
    try:
        yield served
    finally:
        if served.program.poll() is None:
            served.stop()
        elif served.program.stdout is not None:
            served.program.stdout.close()


def body(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": next(_ids),
        "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }


async def call(http: httpx2.AsyncClient, url: str, tool: str, **arguments: Any) -> str:
    """The text of one call."""
    answer = await http.post(url, json=body(tool, arguments), headers=HEADERS)
    answer.raise_for_status()
    text: str = answer.json()["result"]["content"][0]["text"]
    return text


async def open_session(http: httpx2.AsyncClient, url: str, **arguments: Any) -> str:
    text = await call(http, url, "open_search_session", **arguments)
    return text.splitlines()[0].removeprefix("session_id: ")


def shown_ids(text: str) -> list[str]:
    """The ids of the numbered hits in an answer."""
    return [
        line.split("[", 1)[1].split("]", 1)[0] for line in text.splitlines() if line[:1].isdigit() and ". [" in line
    ]


def facts_of(text: str) -> Sequence[list[str]]:
    """The facts line of every hit, split."""
    return [line.strip().split(" | ") for line in text.splitlines() if " | score " in line]


async def arrives(holds: Callable[[], bool]) -> None:
    """Wait until `holds`, for a minute at most."""
    for _ in range(3_000):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came true")
