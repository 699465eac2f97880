"""Build and serve the sample through the real DashScope SDK against the emulated service; no key, no network.

    python -m bench.demo_dashscope [--port 8000] [--once]

Everything goes to builds/demo-dashscope. With --once it ends after one search; else it serves until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import requests

from bench.emulated_quota import Quota
from bench.emulator import Emulator, emulator

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER = REPOSITORY / "builds" / "demo-dashscope"
QUOTA = Quota(600, 300_000)
QUERY = "graph neural networks under distribution shift"
READY_WITHIN_S = 120.0


def main() -> int:
    """Emulator, build, server, one search, report."""
    parser = argparse.ArgumentParser(prog="python -m bench.demo_dashscope", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8_000, help="of the MCP server")
    parser.add_argument("--once", action="store_true", help="end after one search")
    flags = parser.parse_args()
    with emulator(QUOTA, latency_s=0.1) as service:
        print(f"emulated DashScope at {service.base_url}: {QUOTA.requests} requests, {QUOTA.tokens:,} tokens a minute")
        built = _run(service, "pipeline", "build", "snapshots/sample", "--provider", "dashscope", *_places())
        if built.wait():
            return built.returncode
        print("\nsame command again: no text is bought twice", flush=True)
        if (
            again := _run(service, "pipeline", "build", "snapshots/sample", "--provider", "dashscope", *_places())
        ).wait():
            return again.returncode
        served = _serve(service, flags.port, once=flags.once)
        report = service.report()
        print(json.dumps({name: report[name] for name in ("requests", "tokens", "peak", "texts_bought_again")}))
        return served


def _serve(service: Emulator, port: int, *, once: bool) -> int:
    server = _run(
        service,
        *("serve", "--port", str(port), "--manifest", str(FOLDER / "manifest.json")),
        *("--milvus-uri", str(FOLDER / "milvus.db"), "--state", str(FOLDER / "serve.db")),
        *("--ledger", str(FOLDER / "ledger.db"), "--dashscope-url", service.base_url, *_quota()),
    )
    try:
        address = f"http://127.0.0.1:{port}"
        if not _ready(server, address):
            print("the server did not get ready", file=sys.stderr)
            return server.poll() or 1
        print(f"\n{QUERY!r}, answered by {address}/mcp:\n{_search(address)}\n", flush=True)
        if not once:
            print("serving until Ctrl-C", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                return server.wait()
        return 0
    finally:
        server.terminate()
        server.wait()


def _run(service: Emulator, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {
        "DASHSCOPE_API_KEY": "sk-emulated-account",
        "DASHSCOPE_HTTP_BASE_URL": service.base_url,
        "PYTHONPATH": str(REPOSITORY),
    }
    return subprocess.Popen([sys.executable, "-m", program, *arguments], cwd=REPOSITORY, env=os.environ | environment)


def _places() -> list[str]:
    places = {"--work": FOLDER, "--manifest": FOLDER / "manifest.json", "--store": FOLDER / "vectors"}
    return [*(str(part) for pair in places.items() for part in pair), "--ledger", str(FOLDER / "ledger.db"), *_quota()]


def _quota() -> list[str]:
    return ["--requests-per-minute", str(QUOTA.requests), "--tokens-per-minute", str(QUOTA.tokens)]


def _ready(server: subprocess.Popen[bytes], address: str) -> bool:
    """Whether the server answers before it ends; it must within `READY_WITHIN_S`."""
    deadline = time.monotonic() + READY_WITHIN_S
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            if requests.get(f"{address}/readyz", timeout=5).ok:
                return True
        time.sleep(0.2)
    return False


def _search(address: str) -> str:
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "search_papers", "arguments": {"query": QUERY, "top_k": 3}},
    }
    headers = {"accept": "application/json, text/event-stream"}
    answer = requests.post(f"{address}/mcp", json=call, headers=headers, timeout=60)
    return str(answer.json()["result"]["content"][0]["text"])


if __name__ == "__main__":
    sys.exit(main())
