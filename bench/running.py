"""The programs that are measured: the server and each peer, with their time, processor time and memory."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from bench.corpora import Laid
from serve.answers import LEXICAL

READY_WITHIN_S = 600.0
STOP_WITHIN_S = 60.0
IDLE_MAX_S = 5.0
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


class Program(ABC):
    """A program under measurement; `ready_s` is the time from its start to its first readiness."""

    ready_s: float
    _child: subprocess.Popen[Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.terminate()
        try:
            self._child.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    @abstractmethod
    def ask_number(self, number: int, queries: Sequence[str]) -> float:
        """Milliseconds that query `number` took."""

    def cpu_s(self) -> float:
        """Processor seconds spent so far by the program and its children."""
        return sum(sum(each.cpu_times()[:2]) for each in self._tree())

    def memory_mb(self) -> float:
        """Proportional set size of the program and its children."""
        return float(sum(each.memory_full_info().pss for each in self._tree())) / 1e6

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self._child.pid)
        return [root, *root.children(recursive=True)]


class Server(Program):
    """`python -m serve` on `laid`, over HTTP."""

    def __init__(self, laid: Laid, engines: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = {
            "manifest": laid.manifest,
            "milvus-uri": laid.work / "milvus.db",
            "state": laid.folder / "state.db",
            "port": self.port,
            "engines": engines,
            "concurrency": 2 * engines,
            "rate-limit": 0,
            "log-level": "error",
        }
        flags = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in options.items())
        started = time.perf_counter()
        self._child = subprocess.Popen([sys.executable, "-m", "serve", *flags], stdout=subprocess.DEVNULL)
        self._wait_ready(started + READY_WITHIN_S)
        self.ready_s = time.perf_counter() - started
        self._client = Client(self.port)

    def _wait_ready(self, deadline: float) -> None:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10):
                    return
            except (urllib.error.URLError, OSError):
                if self._child.poll() is not None or time.perf_counter() > deadline:
                    raise
                time.sleep(0.02)

    def ask_number(self, number: int, queries: Sequence[str]) -> float:
        """See `Program`."""
        return self.ask(queries[number])

    def ask(self, query: str) -> float:
        """Milliseconds of one search over a kept connection."""
        started = time.perf_counter()
        self._client.search(query)
        return 1000 * (time.perf_counter() - started)


class Client:
    """One MCP client's connection, in bare JSON-RPC: what is measured is the server."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._numbers = itertools.count(1)
        self._used = time.monotonic()

    def search(self, query: str) -> str:
        """The text of the answer; RuntimeError when it is an error, or a ranking by words alone."""
        call = {
            "jsonrpc": "2.0",
            "id": next(self._numbers),
            "method": "tools/call",
            "params": {"name": "search_papers", "arguments": {"query": query}},
        }
        if time.monotonic() - self._used > IDLE_MAX_S:
            self._connection.close()  # the server ends idle connections; the next request opens another
        self._used = time.monotonic()
        self._connection.request("POST", "/mcp", json.dumps(call), HEADERS)
        answer = json.loads(self._connection.getresponse().read())
        if "error" in answer or answer["result"].get("isError"):
            raise RuntimeError(json.dumps(answer)[:500])
        text: str = answer["result"]["content"][0]["text"]
        if LEXICAL in text.splitlines()[0]:
            raise RuntimeError(text.splitlines()[0])
        return text

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class PeerProgram(Program):
    """`python -m bench.peers NAME FOLDER`."""

    def __init__(self, name: str, folder: Path) -> None:
        started = time.perf_counter()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "bench.peers", name, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"GRPC_VERBOSITY": "NONE"},
        )
        word = self._read().split()
        if word[0] != "ready":
            raise RuntimeError(f"{name} said {word}")
        self.ready_s = time.perf_counter() - started

    def ask_number(self, number: int, queries: Sequence[str]) -> float:  # noqa: ARG002 -- it has its own copy
        """See `Program`."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{number}\n")
        self._child.stdin.flush()
        return float(self._read().split()[0])

    def _read(self) -> str:
        assert self._child.stdout is not None
        line: str = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"a peer ended with exit code {self._child.wait()}")
        return line


def throughput(port: int, queries: Sequence[str], clients: int, seconds: float) -> tuple[float, float, int]:
    """Answers a second, p50 in ms, and errors of `clients` loops at once for `seconds`."""
    deadline = time.perf_counter() + seconds
    taken: list[float] = []
    errors = itertools.count()

    def loop(first: int) -> None:
        client = Client(port)
        for number in itertools.count(first):
            started = time.perf_counter()
            if started > deadline:
                break
            try:
                client.search(queries[number % len(queries)])
            except (RuntimeError, OSError, http.client.HTTPException):
                next(errors)
                client.close()
            else:
                taken.append(1000 * (time.perf_counter() - started))
        client.close()

    started = time.perf_counter()
    threads = [threading.Thread(target=loop, args=(17 * number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(taken) / (time.perf_counter() - started), statistics.median(taken or [0.0]), next(errors)
