"""Builds and a server on one DashScope account, through the real SDK, against the emulated service.

Where a minute is scaled, ledger and emulator share the shorter one; the emulator counts every request at an instant
of its own choosing between arrival and answer.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from bench.emulated_quota import Quota
from bench.emulator import UNSEEMLY, Emulator, Fault, emulator, refusal
from bench.running import Client
from manifests.contract import read_manifest
from tests.pipeline.snapshots import lines, record, write_files
from tests.programs import REPOSITORY, SAMPLE, Build, run_build, run_pipeline

KEY = "sk-3f9c2d81a7e64b05secret"
ROOMY = ("--requests-per-minute", "100000", "--tokens-per-minute", "100000000")
WINDOW_S, IN_FLIGHT_S = 4.0, 2.0


def environment(service: Emulator) -> dict[str, str]:
    return {"DASHSCOPE_API_KEY": KEY, "DASHSCOPE_HTTP_BASE_URL": service.base_url}


def embed_options(folder: Path, ledger: Path | None = None) -> list[str]:
    options = ["--work", folder / "work", "--store", folder / "store", "--ledger", ledger or folder / "ledger.db"]
    return [*map(str, options), "--provider", "dashscope", "--json"]


def loaded(snapshot: Path, folder: Path) -> Path:
    done = run_pipeline("load", snapshot, "--work", folder / "work")
    assert done.returncode == 0, done.stderr
    return folder


def embed(service: Emulator, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_pipeline("embed", *embed_options(folder), *(options or ROOMY), **environment(service))


def scaled(service: Emulator, *arguments: str) -> subprocess.Popen[str]:
    """A program whose ledger has the emulator's short minute."""
    command = [sys.executable, "-m", "tests.scaled", str(WINDOW_S), str(IN_FLIGHT_S), *arguments]
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=os.environ | environment(service),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def quota_options(quota: Quota) -> list[str]:
    return ["--requests-per-minute", str(quota.requests), "--tokens-per-minute", str(quota.tokens)]


def assert_never_above(service: Emulator) -> None:
    report = service.report()
    assert service.refused == 0
    assert report["peak"]["requests"] <= service.quota.requests
    assert report["peak"]["tokens"] <= service.quota.tokens


def papers(folder: Path, count: int) -> Path:
    words = [
        "graph",
        "kernel",
        "bandit",
        "regret",
        "diffusion",
        "protein",
        "vision",
        "speech",
        "token",
        "memory",
        "policy",
        "causal",
    ]
    draw = random.Random(4)
    records = [
        record(f"p{number}", title=f"Paper {number}", abstract=" ".join(draw.choices(words, k=60)))
        for number in range(count)
    ]
    return write_files(folder, lines(*records), count)


@pytest.fixture(scope="session")
def sample_loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's papers.parquet, made once."""
    return loaded(SAMPLE, tmp_path_factory.mktemp("loaded"))


@pytest.fixture
def folder(sample_loaded: Path, tmp_path: Path) -> Path:
    """A copy of it, with no vector yet."""
    shutil.copytree(sample_loaded, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(scope="session")
def dashscope_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The sample, built once with `text-embedding-v4`. Read it, never change it."""
    with emulator(api_key=KEY) as service:
        return run_build(
            SAMPLE, tmp_path_factory.mktemp("dashscope"), "--provider", "dashscope", *ROOMY, **environment(service)
        )


def test_the_sample_is_built_and_the_key_is_nowhere(dashscope_build):
    manifest = read_manifest(dashscope_build.manifest)
    folder = dashscope_build.manifest.parent
    stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink())

    assert str(manifest.embedding) == "dashscope:text-embedding-v4#dim=1024&type=document"
    assert dashscope_build.result["embedded"] + dashscope_build.result["reused"] == 150
    assert KEY.encode() not in stored
    assert KEY not in json.dumps(dashscope_build.result)


REFUSALS = [
    ("arrears", refusal(400, "Arrearage", "slow down, try again"), "Arrearage"),
    ("key", refusal(401, "InvalidApiKey", f"bad key {KEY}"), "InvalidApiKey"),
    ("day-long-wait", refusal(429, "Throttling.RateQuota", Retry_After="86400"), "429"),
]


@pytest.mark.parametrize(("fault", "named"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_a_refusal_stops_with_4_keeps_what_was_bought_and_the_same_command_goes_on(folder, fault, named):
    with emulator(api_key=KEY) as service:
        service.will(*[Fault()] * 5, fault)
        started = time.monotonic()
        stopped = embed(service, folder)
        spent_s = time.monotonic() - started
        resumed_ledger = folder / "ledger-of-tomorrow.db"
        resumed = run_pipeline("embed", *embed_options(folder, resumed_ledger), *ROOMY, **environment(service))

        assert stopped.returncode == 4
        assert named in stopped.stderr
        assert KEY not in stopped.stderr
        assert spent_s < 120
        assert resumed.returncode == 0, resumed.stderr
        assert len(service.bought()) == 148
        assert set(service.bought().values()) == {1}


def test_a_spent_budget_stops_with_4_before_it_is_exceeded(folder):
    with emulator(api_key=KEY) as service:
        stopped = embed(service, folder, *ROOMY, "--budget-tokens", "5000")

        assert stopped.returncode == 4
        assert 1_000 < service.report()["tokens"] <= 5_000


def test_a_text_refused_by_inspection_is_named_by_paper_and_costs_no_other(tmp_path):
    records = [record(f"p{number}", abstract=f"About topic {number}") for number in range(30)]
    records[17]["abstract"] += f" {UNSEEMLY}"
    folder = loaded(write_files(tmp_path / "snapshot", lines(*records), 30), tmp_path)
    with emulator(api_key=KEY) as service:
        stopped = embed(service, folder)

        assert stopped.returncode == 4
        assert "p17 (" in stopped.stderr
        assert len(service.bought()) == 29
        assert set(service.bought().values()) == {1}


def test_busy_answers_are_tried_again_and_every_text_is_bought_once(folder):
    with emulator(api_key=KEY) as service:
        service.will(
            Fault(drop="before"), refusal(500, "InternalError"), Fault(502, b"<html>"), refusal(429, "Throttling")
        )
        done = embed(service, folder)

        assert done.returncode == 0, done.stderr
        assert len(service.bought()) == 148
        assert set(service.bought().values()) == {1}


@pytest.mark.slow
def test_two_builds_at_once_stay_under_the_limits_together(tmp_path):
    quota = Quota(60, 12_000, WINDOW_S)
    snapshot = papers(tmp_path / "snapshot", 250)
    folders = [loaded(snapshot, tmp_path / name) for name in ("one", "two")]
    with emulator(quota, api_key=KEY, latency_s=0.1) as service:
        builds = [
            scaled(service, "pipeline", "embed", *embed_options(folder, tmp_path / "ledger.db"), *quota_options(quota))
            for folder in folders
        ]
        ended = [build.communicate(timeout=200) for build in builds]

        assert [build.returncode for build in builds] == [0, 0], ended
        assert set(service.bought().values()) == {2}
        assert_never_above(service)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_lose_nothing_buy_little_twice_and_change_nothing(tmp_path):
    quota, draw = Quota(60, 12_000, WINDOW_S), random.Random(9)
    snapshot = papers(tmp_path / "snapshot", 600)
    with emulator(api_key=KEY) as service:
        undisturbed = run_build(snapshot, tmp_path / "calm", "--provider", "dashscope", *ROOMY, **environment(service))
    folder = loaded(snapshot, tmp_path / "killed")
    with emulator(quota, api_key=KEY, latency_s=0.1) as service:
        for _ in range(20):
            seen = len(service.entries)
            program = scaled(service, "pipeline", "embed", *embed_options(folder), *quota_options(quota))
            wait_for_requests(service, seen + 1, program)
            time.sleep(draw.uniform(0.0, 0.8))
            program.send_signal(signal.SIGKILL)
            program.communicate()
        last = scaled(service, "pipeline", "embed", *embed_options(folder), *quota_options(quota))
        told = last.communicate(timeout=300)
        assert last.returncode == 0, told

        assert len(service.bought()) == 600
        assert service.report()["texts_bought_again"] <= 20 * in_flight_texts(quota)
        assert_never_above(service)
        rebuilt = run_build(
            snapshot, folder, "--provider", "dashscope", *ROOMY, store=folder / "store", **environment(service)
        )

    assert rebuilt.result["embedded"] == 0
    assert rebuilt.result["digest"] == undisturbed.result["digest"]
    assert rebuilt.manifest.read_bytes() == undisturbed.manifest.read_bytes()


def wait_for_requests(service: Emulator, count: int, program: subprocess.Popen[str]) -> None:
    """Until the service has seen so many, or the program has ended because nothing was left."""
    deadline = time.monotonic() + 60
    while len(service.entries) < count and program.poll() is None:
        assert time.monotonic() < deadline, "no request in a minute"
        time.sleep(0.02)


def in_flight_texts(quota: Quota) -> int:
    """Texts in flight at a kill: as many batches as are sent at once, and as many that wait to be stored."""
    from manifests.embedding.dashscope import _batch_tokens, _concurrency
    from manifests.ledger import Limits

    limits = Limits(quota.requests, quota.tokens)
    return 2 * 10 * _concurrency(limits, 10, _batch_tokens(limits))


@contextmanager
def serving(service: Emulator, build: Build, folder: Path, *options: str) -> Iterator[str]:
    """`python -m serve` on a free port; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = scaled(
        service,
        *("serve", "--port", str(port), "--manifest", str(build.manifest), "--milvus-uri", build.uri),
        *("--state", str(folder / "serve.db"), "--rate-limit", "0", "--dashscope-url", service.base_url),
        *("--ledger", str(folder / "ledger.db"), *options),
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while program.poll() is None:
            assert time.monotonic() < deadline, "the server did not get ready"
            try:
                if requests.get(f"{address}/readyz", timeout=5).status_code == 200:
                    break
            except requests.ConnectionError:
                time.sleep(0.1)
        assert program.poll() is None, program.communicate()
        yield address
    finally:
        program.terminate()
        out, err = program.communicate(timeout=60)
        (folder / "serve.log").write_text(out + err)


def search(address: str, query: str) -> tuple[str, float]:
    """The tool's text, and the seconds it took."""
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "search_papers", "arguments": {"query": query}},
    }
    headers = {"accept": "application/json, text/event-stream"}
    started = time.monotonic()
    answer = requests.post(f"{address}/mcp", json=call, headers=headers, timeout=60)
    return answer.json()["result"]["content"][0]["text"], time.monotonic() - started


def test_a_server_refuses_an_index_of_another_model_of_the_same_dimension(tmp_path, dashscope_build):
    """The manifest of the v3 index, resealed, in front of the v4 collection."""
    built = read_manifest(dashscope_build.manifest)
    old = built.model_copy(update={"embedding": built.embedding.model_copy(update={"model": "text-embedding-v3"})})
    old = old.model_copy(update={"digest": old.computed_digest})
    (tmp_path / "old.json").write_text(old.text())
    with emulator(api_key=KEY) as service:
        program = scaled(
            service,
            *("serve", "--port", "0", "--manifest", str(tmp_path / "old.json"), "--milvus-uri", dashscope_build.uri),
            *("--state", str(tmp_path / "serve.db"), "--ledger", str(tmp_path / "ledger.db"), *ROOMY),
        )
        try:
            told = program.communicate(timeout=200)[1]
        finally:
            program.kill()
            program.wait()

        assert program.returncode == 6, told
        assert "text-embedding-v" in told or "papers_" in told
        assert service.entries == []


def test_a_benchmark_takes_no_ranking_by_words_alone_for_a_search(tmp_path, dashscope_build):
    with (
        emulator(api_key=KEY) as service,
        serving(service, dashscope_build, tmp_path, *ROOMY) as address,
        closing(Client(int(address.rpartition(":")[2]))) as client,
    ):
        client.search("graph learning before")
        service.always(refusal(400, "Arrearage"))

        with pytest.raises(RuntimeError, match="words alone"):
            client.search("graph learning after")


@pytest.mark.slow
def test_a_build_beside_a_server_stays_under_the_limits_and_leaves_room_for_queries(tmp_path, dashscope_build):
    quota = Quota(60, 12_000, WINDOW_S)
    folder = loaded(papers(tmp_path / "snapshot", 400), tmp_path)
    with (
        emulator(quota, api_key=KEY, latency_s=0.1) as service,
        serving(service, dashscope_build, tmp_path, *quota_options(quota)) as address,
    ):
        options = [*embed_options(folder), *quota_options(quota), "--query-reserve", "0.2"]
        build = scaled(service, "pipeline", "embed", *options)
        wait_for_requests(service, 3, build)
        answers: list[dict[str, Any]] = []
        while build.poll() is None:
            answers.append(search(address, f"graph learning {len(answers)}")[0])
            time.sleep(0.5)
        told = build.communicate()
        state = requests.get(f"{address}/readyz", timeout=5).json()["provider"]

        assert build.returncode == 0, told
        assert_never_above(service)
        assert len(answers) >= 5
        assert state["queries"]["embedded"] >= 0.8 * len(answers)


@pytest.mark.slow
def test_a_server_whose_provider_hangs_answers_by_words_and_says_why_until_it_is_back(tmp_path, dashscope_build):
    with (
        emulator(api_key=KEY) as service,
        serving(service, dashscope_build, tmp_path, *ROOMY, "--query-deadline", "1.5") as address,
    ):
        before, _ = search(address, "graph learning before")
        service.always(Fault(delay_s=60.0))
        first, first_s = search(address, "zebrafish whisperings first")
        later = [search(address, f"zebrafish whisperings {number}") for number in range(5)]
        page = requests.get(f"{address}/metrics", timeout=5).text
        ready = requests.get(f"{address}/readyz", timeout=5)
        service.always(None)
        time.sleep(3.0)
        after, _ = search(address, "graph learning after")

    log = (tmp_path / "serve.log").read_text()
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "timeout" in first.splitlines()[0]
    assert first_s < 6
    assert all("circuit_open" in text.splitlines()[0] for text, _ in later)
    assert min(spent_s for _, spent_s in later) < 1.0
    assert not any(reason in text.splitlines()[0] for text in (before, after) for reason in ("timeout", "circuit"))
    assert (ready.status_code, ready.json()["provider"]["circuit"]) == (200, "open")
    for secret in (KEY, "zebrafish", "whisperings"):
        assert secret not in log + page + ready.text
        assert secret.encode() not in stored


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.timeout(900)
def test_three_real_minutes_of_the_real_corpus_use_98_percent_and_never_more(tmp_path, shared):
    """Unscaled: 600 requests and 300,000 tokens a minute, an answer takes 0.2 s, no reserve."""
    folder = loaded(shared / "snapshots" / "icml2026", tmp_path)
    quota = Quota(600, 300_000)
    with emulator(quota, api_key=KEY, latency_s=0.2) as service:
        stopped = embed(service, folder, *quota_options(quota), "--budget-tokens", "960000")
        minutes = service.meter.minutes()

        assert stopped.returncode == 4
        assert len(minutes) >= 3
        assert_never_above(service)
        used = [max(count / quota.requests, tokens / quota.tokens) for count, tokens in minutes]
        assert sum(used) / len(used) >= 0.98, used


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.timeout(900)
def test_the_whole_real_corpus_in_scaled_minutes_is_never_above(tmp_path, shared):
    folder = loaded(shared / "snapshots" / "icml2026", tmp_path)
    quota = Quota(600, 300_000, 20.0)
    with emulator(quota, api_key=KEY, latency_s=0.1) as service:
        command = [sys.executable, "-m", "tests.scaled", "20", "45", "pipeline", "embed", *embed_options(folder)]
        done = subprocess.run(
            [*command, *quota_options(quota)],
            cwd=REPOSITORY,
            env=os.environ | environment(service),
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )

        assert done.returncode == 0, done.stderr
        assert set(service.bought().values()) == {1}
        assert_never_above(service)
