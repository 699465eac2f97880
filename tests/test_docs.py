"""The documentation is true: generated pages are fresh, every command in a page is known, outputs are as shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import docs.generate
import pipeline.arguments
import serve.__main__
from serve.settings import SECRETS, SETTINGS
from tests.programs import REPOSITORY, Build

JUST = Path(sys.executable).with_name("just")
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "snapshots/*.md", "skills/**/*.md")
    for page in REPOSITORY.glob(pattern)
    if page.name != "CHANGELOG.md"
)
PARSERS = {"pipeline": pipeline.arguments.parser("VERSION"), "serve": serve.__main__.parser()}
VARIABLES = {setting.variable for setting in SETTINGS} | set(SECRETS)
# What `.ci/run` executes as it stands in the README.
FIRST_COMMAND = "python3 -m pip install rust-just && just build-index"
BOOTSTRAP = {
    "python3 -m pip install rust-just",
    "python3 -m venv .venv",
    ".venv/bin/pip install rust-just",
}
# Programs of others: only our part of such a line is checked.
FOREIGN = {"claude", "codex", "code", "cursor", "gemini", "npx", "git", "cd", "chown", "apt-get"}
ROUTES = {"/mcp", "/healthz", "/readyz", "/metrics"}


GENERATED = docs.generate.pages()


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_a_generated_page_is_fresh(name: str) -> None:
    found = (REPOSITORY / "docs" / name).read_text(encoding="utf-8")

    assert found == GENERATED[name], f"docs/{name} is stale: run `just docs`"


def test_a_deleted_page_comes_back_byte_for_byte(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "docs.generate", tmp_path], cwd=REPOSITORY, check=True)

    assert {page.name: page.read_bytes() for page in tmp_path.iterdir()} == {
        name: (REPOSITORY / "docs" / name).read_bytes() for name in GENERATED
    }


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_every_row_of_a_table_has_the_cells_of_its_header(name: str) -> None:
    tables = re.findall(r"(?:^\|.*\|\n)+", GENERATED[name], re.MULTILINE)

    for table in tables:
        header, *rows = [re.split(r"(?<!\\)\|", line) for line in table.splitlines()]
        assert [row for row in rows if len(row) != len(header)] == []


def test_every_argument_has_a_meaning_and_no_default_that_is_empty() -> None:
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in GENERATED["commands.md"].splitlines()
        if line.startswith("| `")
    ]

    assert [row for row in rows if row[-1] == "—" or row[1] in {"``", "`[]`"}] == []


# --- every command is known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_block_of_a_page_says_what_it_is(page: Path) -> None:
    fences = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)

    assert set(fences[::2]) <= {"sh", "text", "json", "toml", "mermaid", "yaml", "python"}
    assert set(fences[1::2]) <= {""}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    """Single commands of the `sh` blocks: continued lines joined, `&&` divided, comments left out."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [part.strip() for line in lines for part in line.split("&&")]


def unknown(command: str) -> str | None:
    """Why `command` is not known to be right; None when it is."""
    if command in BOOTSTRAP:
        return None
    words = shlex.split(re.split(r" >>? ", command)[0].removesuffix("&"))
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        if (problem := unknown_variable(words.pop(0))) is not None:
            return problem
    if not words:
        return None
    rules: dict[str, Callable[[list[str]], str | None]] = {
        "export": lambda arguments: next(filter(None, map(unknown_variable, arguments)), None),
        ".venv/bin/python": unknown_program,
        "just": unknown_recipe,
        ".venv/bin/just": unknown_recipe,
        "docker": unknown_docker,
        "curl": lambda arguments: unknown_address(next((word for word in arguments if word.startswith("http")), "")),
    } | dict.fromkeys(FOREIGN, unknown_part)
    rule = rules.get(words[0])
    return rule(words[1:]) if rule else "no rule of tests/test_docs.py knows this command"


def unknown_variable(assignment: str) -> str | None:
    name = assignment.partition("=")[0]
    known = name in VARIABLES or name in {"INDEX", "PATH"} or name.startswith(("DASHSCOPE_", "OPENREVIEW_"))
    return None if known else f"{name} is no variable of ours"


def unknown_program(arguments: list[str]) -> str | None:
    match arguments:
        case ["-m", ("pipeline" | "serve") as program, *rest]:
            return unparsed(program, rest)
    return ".venv/bin/python runs only our two programs in a page"


def unparsed(program: str, arguments: list[str]) -> str | None:
    try:
        PARSERS[program].parse_args(arguments)
    except SystemExit as left:
        if left.code not in {0, None}:
            return f"python -m {program} does not take {arguments}"
    return None


def unknown_recipe(arguments: list[str]) -> str | None:
    """A dry run names the recipe's commands without running them; those of ours are parsed again."""
    done = subprocess.run([JUST, "--dry-run", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr
    said = re.sub(r'"\$(?:@|{@:(\d+)})"', lambda options: shlex.join(arguments[int(options[1] or 1) :]), done.stderr)
    ours = [line for line in said.splitlines() if re.match(r"\.venv/bin/python -m (pipeline|serve) ", line)]
    return next(filter(None, map(unknown, ours)), None)


def test_an_option_of_a_recipe_reaches_its_program_as_one_word() -> None:
    instead = ["--no-deps", "--set", "python", r"printf '%s\n'"]
    arguments = ["search", "it's graphs", "sample", "--area", "Applications->Health / Medicine"]
    done = subprocess.run([JUST, *instead, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-4:] == [*arguments[3:], "--", arguments[1]]


def hardening() -> list[str]:
    """The options with which scripts/image_check.sh runs the image, as written there."""
    script = (REPOSITORY / "scripts" / "image_check.sh").read_text(encoding="utf-8")
    tmpfs = re.search(r"--tmpfs (/tmp:\S+)", script)
    assert tmpfs
    return [
        "--read-only",
        tmpfs[0],
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--memory 2g",
        "--pids-limit 256",
    ]


def unknown_docker(arguments: list[str]) -> str | None:
    text = " ".join(arguments)
    match arguments:
        case ["build", *options]:
            wanted = all(
                option in {"-t", "--build-arg", "."} or re.match(r"icml-paper-search|INDEX=", option)
                for option in options
            )
            return None if wanted else "docker build with an option that is not documented in the Dockerfile"
        case ["run", *_]:
            missing = [option for option in hardening() if option not in text]
            return f"docker run without {missing}, which scripts/image_check.sh proves" if missing else None
        case ["compose", "up", "-d", service]:
            return None if f"\n  {service}:\n" in (REPOSITORY / "compose.yaml").read_text(encoding="utf-8") else service
    return "no rule knows this docker command"


def unknown_address(url: str) -> str | None:
    found = re.fullmatch(r"http://127\.0\.0\.1:8000(/\w+)", url)
    return None if found and found[1] in ROUTES else f"{url} is no address of the server"


def unknown_part(words: list[str]) -> str | None:
    """Within another program's line: our URLs, and what follows `-m pipeline` or `-m serve`."""
    for at, word in enumerate(words):
        if word.startswith("http://127.0.0.1") and unknown_address(word):
            return unknown_address(word)
        if word == "-m" and words[at + 1] in PARSERS:
            return unparsed(words[at + 1], words[at + 2 :])
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_command_of_a_page_is_known(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems = {command: problem for command in commands(page) if (problem := unknown(command)) is not None}

    assert problems == {}, capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "just biuld-index",
        "just search",
        ".venv/bin/python -m pipeline build",
        ".venv/bin/python -m serve --manifest m.json --milvus-uri m.db --prot 1",
        "python -m pipeline build snapshots/sample",
        "docker run -d icml-paper-search:sample",
        "curl -s http://127.0.0.1:8000/readyzz",
        "export SERVE_PROT=1",
        "claude mcp add papers -- python -m serve --prot 1",
        "make",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    assert unknown(command) is not None


def test_the_first_command_is_what_ci_runs() -> None:
    assert FIRST_COMMAND in (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert FIRST_COMMAND.split(" && ")[1] in (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))

    assert [target for target in targets if not (page.parent / target).exists()] == []


# --- files that repeat the settings


@pytest.mark.parametrize(
    "name", ["Dockerfile", "compose.yaml", "docs/operations.md", "docs/sessions.md", "SECURITY.md"]
)
def test_every_variable_that_is_named_exists(name: str) -> None:
    named = set(re.findall(r"\bSERVE_[A-Z_]+\b", (REPOSITORY / name).read_text(encoding="utf-8")))

    assert named - VARIABLES == set()


def test_compose_runs_the_server_as_the_image_check_does() -> None:
    compose = (REPOSITORY / "compose.yaml").read_text(encoding="utf-8")
    wanted = {
        "--read-only": "read_only: true",
        "--cap-drop ALL": 'cap_drop: ["ALL"]',
        "--security-opt no-new-privileges": '"no-new-privileges:true"',
        "--memory 2g": "mem_limit: ${MEMORY:-2g}",
        "--pids-limit 256": "pids_limit: 256",
    }

    for option in hardening():
        text = wanted.get(option, option.removeprefix("--tmpfs "))
        assert text in compose


# --- against the programs


def test_the_first_search_of_the_readme_answers_as_shown(sample_build: Build, tmp_path: Path) -> None:
    readme = REPOSITORY / "README.md"
    shown = blocks(readme, "text")[-1]
    command = next(shlex.split(line) for line in commands(readme) if line.startswith("just search"))
    _, _, query, _, *options = command

    done = subprocess.run(
        [sys.executable, "-m", "serve", "search", query, *serving(sample_build, tmp_path), *options],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout == shown


def serving(build: Build, folder: Path) -> list[str]:
    return ["--manifest", str(build.manifest), "--milvus-uri", build.uri, "--state", str(folder / "serve.db")]


@contextmanager
def server(build: Build, folder: Path) -> Iterator[tuple[str, Path]]:
    """A running server on a free port: its address, and the file its log goes to."""
    log = folder / "serve.log"
    with log.open("w") as stream:
        program = subprocess.Popen(
            [sys.executable, "-m", "serve", *serving(build, folder), "--port", "0", "--log-format", "json"],
            cwd=REPOSITORY, stderr=stream, env=os.environ,
        )  # fmt: skip
    try:
        yield address(program, log), log
    finally:
        program.terminate()
        program.wait(timeout=30)


def address(program: subprocess.Popen[bytes], log: Path) -> str:
    """As the server announces it; waits at most two minutes for it."""
    for _ in range(1_200):
        if found := re.search(r"ready at (http://[^/\"]+)/mcp", log.read_text(encoding="utf-8")):
            return found[1]
        try:
            program.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(log.read_text(encoding="utf-8"))


def test_the_server_answers_what_the_operations_page_lists(sample_build: Build, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    call = {"name": "search_papers", "arguments": {"query": "monsoon"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}

    with server(sample_build, tmp_path) as (base, log):
        for route in sorted(ROUTES - {"/mcp"}):
            assert urllib.request.urlopen(base + route, timeout=30).status == 200
        urllib.request.urlopen(urllib.request.Request(base + "/mcp", body, headers), timeout=60).read()
        metrics = urllib.request.urlopen(base + "/metrics", timeout=30).read().decode()
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]

    logged = next(line for line in lines if line["logger"] == "serve.calls")
    assert logged.keys() == json.loads(blocks(REPOSITORY / "docs" / "operations.md", "json")[0]).keys()
    assert metric_names(metrics) == documented_metrics(page)


def metric_names(text: str) -> set[str]:
    return {name for name in re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE) if not name.endswith("_created")}


def documented_metrics(page: str) -> set[str]:
    """Names in the first column of the metrics table."""
    table = re.search(r"^\| metric .*?(?=^$)", page, re.DOTALL | re.MULTILINE)
    assert table
    return {name for row in table[0].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}


# --- workflows and compose


@pytest.mark.parametrize("name", [".github/workflows/ci.yml", ".github/workflows/release.yml", "compose.yaml"])
def test_a_yaml_file_can_be_read(name: str) -> None:
    assert isinstance(yaml.safe_load((REPOSITORY / name).read_text(encoding="utf-8")), dict)


def test_the_workflow_calls_the_recipes_of_ci() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    workflow = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    recipes = set(re.findall(r"^ *(?:- run: .*)?\bjust ([a-z-]+)", script, re.MULTILINE)) - {"image-check"}

    assert recipes == {"check", "docs", "build-index", "validate", "test"}
    assert {recipe for recipe in recipes if f"just {recipe}" not in workflow} == set()
    assert "-m scripts.published --rebuilt" in script
    assert "-m scripts.published --rebuilt" in workflow


def test_the_job_that_checks_what_is_published_has_the_whole_history() -> None:
    checking = [job["steps"] for job in parsed("ci.yml")["jobs"].values() if {"run": "just check"} in job["steps"]]

    depths = [
        step.get("with", {}).get("fetch-depth") for steps in checking for step in steps if "checkout" in str(step)
    ]
    assert depths == [0]


def test_a_release_passes_all_of_ci_before_anything_is_pushed() -> None:
    jobs = parsed("release.yml")["jobs"]
    writing = [name for name, job in jobs.items() if "write" in job.get("permissions", {}).values()]

    assert "workflow_call" in parsed("ci.yml")[True]  # YAML 1.1 reads the key `on` so
    assert jobs.pop("ci") == {"uses": "./.github/workflows/ci.yml"}
    assert {name: job["needs"] for name, job in jobs.items()} == {"image": "ci"}
    assert writing == ["image"]
    assert parsed("release.yml")["permissions"] == {"contents": "read"}


def test_every_action_is_pinned_by_commit_with_its_release_beside_it() -> None:
    used: dict[str, set[str]] = {}
    for path in (REPOSITORY / ".github" / "workflows").iterdir():
        for action, _, pin in re.findall(r"uses: ([^@\s]+)(@(.*))?$", path.read_text(encoding="utf-8"), re.MULTILINE):
            used.setdefault(action, set()).add(pin)

    assert used.pop("./.github/workflows/ci.yml") == {""}
    for action, pins in used.items():
        assert len(pins) == 1, action
        assert re.fullmatch(r"[0-9a-f]{40} # v\d+\.\d+\.\d+", pins.pop()), action


def parsed(name: str) -> Any:
    return yaml.safe_load((REPOSITORY / ".github" / "workflows" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_every_recipe_of_a_workflow_exists(name: str) -> None:
    text = (REPOSITORY / ".github" / "workflows" / name).read_text(encoding="utf-8")
    called = [part.strip() for line in re.findall(r"run: (.*just .*)", text) for part in line.split("&&")]

    assert {line: problem for line in called if (problem := unknown(line)) is not None} == {}
