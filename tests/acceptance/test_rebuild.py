"""A conference list changes: what a rebuild costs, what goes on answering beside it, and the way back.

Commands and options are those of docs/operations.md, with folders of the test in place of `builds/NAME`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import numpy as np
import polars as pl
import pytest
from anyio.to_thread import run_sync
from mcp import Client

from bench.emulated_quota import Quota
from bench.emulator import Emulator, emulator
from manifests.contract import read_manifest
from manifests.gate import open_index
from pipeline.embedding_store import EmbeddingStore
from serve.search import INDEX_CHANGED
from tests.acceptance.served import Served, arrives, command, serving, shown_ids
from tests.pipeline.snapshots import lines, write_files
from tests.programs import REPOSITORY, SAMPLE, Build, run_build, run_pipeline

pytestmark = pytest.mark.anyio

KEY = "sk-emulated"
VAST = Quota(1_000_000, 1_000_000_000)
QUERIES = ["learning with few labels", "graphs and molecules", "regret of bandits", "language models that reason"]
REMOVED, REVISED, ADDED = 10, 60, 10
# The local model shares the machine with the rebuild: no answer by words alone while it is slow.
PATIENT = ("--rate-limit", "0", "--query-deadline", "60")


# --- the real corpus: what changed is what is bought


@pytest.mark.corpus
def test_diff_says_what_changed_between_the_real_snapshots(shared):
    done = run_pipeline("diff", *real_snapshots(shared), "--json")

    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [len(found[kind]) for kind in ("added", "removed", "changed")] == [213, 8, 242]
    assert Counter(field for fields in found["changed"].values() for field in fields) == {
        "abstract": 197,
        "authors": 148,
        "title": 38,
    }
    assert sum(bool({"title", "abstract"} & set(fields)) for fields in found["changed"].values()) == 204


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.timeout(2_400)
def test_a_rebuild_of_the_real_corpus_buys_what_changed_and_equals_a_build_from_nothing(shared, tmp_path):
    older, newer = real_snapshots(shared)
    with emulator(VAST, api_key=KEY) as service:
        first = by_dashscope(service, older, tmp_path / "rebuilt")
        bought, known = len(service.entries), set(texts_of(first))
        rebuilt = by_dashscope(service, newer, tmp_path / "rebuilt")
        second = service.entries[bought:]
    with emulator(VAST, api_key=KEY) as service:
        fresh = by_dashscope(service, newer, tmp_path / "fresh")
        full = service.entries

    texts = texts_of(rebuilt)
    lacked = set(texts) - known
    assert 0 < len(lacked) <= 213 + 204
    assert Counter(text for entry in second for text in entry.texts) == dict.fromkeys(lacked, 1)
    assert {entry.status for entry in second} == {200}
    assert (rebuilt.result["embedded"], rebuilt.result["reused"]) == (len(lacked), len(texts) - len(lacked))
    assert fresh.result["embedded"] == len(set(texts))
    share_max = len(lacked) / len(set(texts)) + 0.05
    assert len(second) <= share_max * len(full)
    assert sum(entry.tokens for entry in second) <= share_max * sum(entry.tokens for entry in full)
    assert rebuilt.manifest.read_bytes() == fresh.manifest.read_bytes()
    assert rebuilt.result["digest"] == fresh.result["digest"] != first.result["digest"]
    assert np.array_equal(vectors_of(rebuilt), vectors_of(fresh))
    assert_finds_by_vector(rebuilt, lacked)


def real_snapshots(shared: Path) -> tuple[Path, Path]:
    return shared / "snapshots" / "icml2026", shared / "snapshots" / "icml2026-later"


def by_dashscope(service: Emulator, snapshot: Path, folder: Path) -> Build:
    """A build through the real SDK; 64 dimensions, because it is not the vectors' size that is tried."""
    options = ("--provider", "dashscope", "--dimension", "64")
    quotas = ("--requests-per-minute", str(VAST.requests), "--tokens-per-minute", str(VAST.tokens))
    environment = {"DASHSCOPE_API_KEY": KEY, "DASHSCOPE_HTTP_BASE_URL": service.base_url}
    return run_build(snapshot, folder, *options, *quotas, **environment)


def texts_of(build: Build) -> list[str]:
    """The sha256 of each paper's embed text."""
    return pl.read_parquet(build.work / "papers.parquet", columns=["text_sha256"])["text_sha256"].to_list()


def vectors_of(build: Build) -> np.ndarray:
    with EmbeddingStore(build.store, read_manifest(build.manifest).embedding, create=False) as store:
        return store.vectors(texts_of(build))


def assert_finds_by_vector(build: Build, texts: set[str]) -> None:
    """The collection holds these texts' own vectors, not those of an earlier version of the paper."""
    papers = pl.read_parquet(build.work / "papers.parquet", columns=["paper_id", "text_sha256"])
    chosen = papers.filter(pl.col("text_sha256").is_in(list(texts))).sort("paper_id").gather_every(20)
    manifest = read_manifest(build.manifest)
    with EmbeddingStore(build.store, manifest.embedding, create=False) as store:
        vectors = store.vectors(chosen["text_sha256"].to_list())
    index = open_index(manifest, build.uri, query_spec=manifest.embedding)
    try:
        nearest = [index.dense(vector, where="", depth=1, timeout_s=60.0)[0] for vector in vectors]
    finally:
        index.close()
    assert nearest == chosen["paper_id"].to_list()


# --- a running server: a rebuild beside it, the restart, the way back


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_rebuild_beside_a_server_under_load_fails_and_mixes_no_answer(sample_build, tmp_path):
    build = copied(sample_build, tmp_path)
    older_digest = build.result["digest"]
    with serving(build, tmp_path / "served", *PATIENT) as served:
        load = Load(served.url, await answers(served))
        async with Client(served.url) as client:
            session_id = await open_session(client)
            before = shown_ids(await search(client, QUERIES[0], session_id=session_id))
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(load.search, number)
            group.start_soon(load.watch, served)
            await arrives(lambda: load.answered >= 10)
            started = load.answered
            rebuilt = await run_sync(partial(run_build, revised(tmp_path), tmp_path, store=build.store))
            beside = load.answered - started
            await arrives(lambda: load.answered >= started + beside + 10)
            load.ended = True

        assert build.manifest.read_bytes() == rebuilt.manifest.read_bytes()
        assert read_manifest(build.manifest).digest == rebuilt.result["digest"] != older_digest
        assert (build.work / "milvus.db").readlink().name == f"{read_manifest(build.manifest).collection.name}.db"
        assert beside >= 20
        assert (load.failed, load.mixed) == ([], [])
        assert load.digests == {older_digest}
        assert "Traceback" not in served.log

    with serving(build, tmp_path / "served", *PATIENT) as restarted:
        ready = await readiness(restarted)
        async with Client(restarted.url) as client:
            told, *later = [await search(client, QUERIES[0], session_id=session_id) for _ in range(3)]
            new = await search(client, QUERIES[0], session_id=await open_session(client))

    assert (ready["ready"], ready["manifest"]["digest"]) == (True, rebuilt.result["digest"])
    assert INDEX_CHANGED in told
    assert not any(INDEX_CHANGED in text for text in (*later, new))
    returned = [paper_id for text in (told, *later) for paper_id in shown_ids(text)]
    assert len(returned) == 30
    assert not set(before) & set(returned)
    assert "Revised: " in new


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_way_back_is_the_older_manifest_until_prune(sample_build, sample_server, tmp_path):
    build = copied(sample_build, tmp_path)
    older = Build(build.work, tmp_path / "older.json", build.store, build.result)
    shutil.copyfile(build.manifest, older.manifest)
    newer = run_build(revised(tmp_path), tmp_path, store=build.store)
    expected = await answers(sample_server)

    with serving(older, tmp_path / "older", *PATIENT) as back:
        assert (await readiness(back))["manifest"]["digest"] == older.result["digest"]
        assert await answers(back) == expected
        pruned = run_pipeline("prune", "--work", build.work, "--manifest", newer.manifest, "--json")
        assert await answers(back) == expected
    gone = serve_once(older, tmp_path / "gone.db")
    with serving(newer, tmp_path / "newer", *PATIENT) as forth:
        digest = (await readiness(forth))["manifest"]["digest"]
        present = await answers(forth)

    name = read_manifest(older.manifest).collection.name
    assert json.loads(pruned.stdout)["removed"] == [f"{name}.db"]
    assert gone.returncode == 6
    assert name in gone.stderr
    assert digest == newer.result["digest"]
    assert all(present[query] != expected[query] for query in QUERIES)


def copied(build: Build, folder: Path) -> Build:
    """The published sample in a folder of its own, with the store: `run_build(..., folder)` rebuilds it in place."""
    copy = Build(folder / "work", folder / "manifest.json", folder / "store", build.result)
    shutil.copytree(build.work, copy.work, symlinks=True)
    shutil.copytree(build.store, copy.store)
    shutil.copyfile(build.manifest, copy.manifest)
    return copy


def revised(folder: Path) -> Path:
    """The sample some months later: 10 papers gone, 60 retitled, 10 new."""
    records = [json.loads(line) for line in (SAMPLE / "papers.jsonl").read_bytes().splitlines()]
    kept, added = records[REMOVED:], [dict(each) for each in records[-ADDED:]]
    for each in kept[:REVISED]:
        each["title"] = f"Revised: {each['title']}"
    for number, each in enumerate(added):
        each |= {"id": f"added-{number}", "title": f"Continued: {each['title']}", "forum_url": None, "pdf_url": None}
    card = json.loads((SAMPLE / "snapshot.json").read_text(encoding="utf-8"))
    facts = {key: value for key, value in card.items() if key not in {"papers", "files"}}
    papers = [*kept, *added]
    return write_files(folder / "revised", lines(*papers), len(papers), **facts)


class Load:
    """Clients that search one after the other until `ended`, and what they met.

    Attributes:
        expected: the answer to each query before anything changed; a different one is `mixed`.
        digests: every digest that /readyz showed.
    """

    def __init__(self, url: str, expected: dict[str, str]) -> None:
        self.ended = False
        self.answered = 0
        self.failed: list[str] = []
        self.mixed: list[str] = []
        self.digests: set[str] = set()
        self._url, self._expected = url, expected

    async def search(self, number: int) -> None:
        """One client."""
        async with Client(self._url) as client:
            while not self.ended:
                query = QUERIES[(self.answered + number) % len(QUERIES)]
                result = await client.call_tool("search_papers", {"query": query, "top_k": 20})
                text = result.content[0].text
                self.answered += 1
                if result.is_error:
                    self.failed.append(text)
                elif text != self._expected[query]:
                    self.mixed.append(text)

    async def watch(self, served: Served) -> None:
        """One operator."""
        while not self.ended:
            self.digests.add((await readiness(served))["manifest"]["digest"])
            await anyio.sleep(0.2)


async def answers(served: Served) -> dict[str, str]:
    """The answer to each of the queries, through a client of the SDK."""
    async with Client(served.url) as client:
        return {query: await search(client, query, top_k=20) for query in QUERIES}


async def search(client: Client, query: str, **arguments: Any) -> str:
    result = await client.call_tool("search_papers", {"query": query} | arguments)
    assert not result.is_error, result.content[0].text
    return result.content[0].text


async def open_session(client: Client) -> str:
    result = await client.call_tool("open_search_session", {})
    return result.content[0].text.splitlines()[0].removeprefix("session_id: ")


async def readiness(served: Served) -> dict[str, Any]:
    async with httpx2.AsyncClient(timeout=60) as http:
        answer = await http.get(f"{served.base}/readyz")
    facts: dict[str, Any] = answer.raise_for_status().json()
    return facts


def serve_once(build: Build, state: Path) -> subprocess.CompletedProcess[str]:
    """A server that is expected to refuse."""
    return subprocess.run(
        command(build, state, "--port", "0"), cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
