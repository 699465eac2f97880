"""The real corpus behind the real program: windows, filters, determinism, load."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import sys
import time

import anyio
import httpx2
import pytest

from manifests.contract import read_manifest
from manifests.visible import visible
from tests.acceptance.served import arrives, body, call, facts_of, open_session, serving, shown_ids

pytestmark = [pytest.mark.anyio, pytest.mark.corpus, pytest.mark.slow]

QUERIES = (
    "graph neural networks for molecules",
    "reward hacking in RLHF",
    "bandits with delayed feedback",
    "tau2-bench",
    "Renyi differential privacy",
    "diffusion models for inverse problems",
    "large language model agents that use tools",
    "董方",
)
SOAK_S = 120
CLIENTS = 200


@pytest.fixture(scope="module")
def records(shared):
    """The source records by id: what a filter must agree with, read without the project's own code."""
    with gzip.open(shared / "snapshots" / "icml2026" / "papers.jsonl.gz", "rt", encoding="utf-8") as lines:
        return {record["id"]: record for record in map(json.loads, lines)}


@pytest.fixture(scope="module")
def manifest(corpus_build):
    return read_manifest(corpus_build.manifest)


async def test_the_first_line_and_the_listing_say_6341_papers(corpus_server):
    async with httpx2.AsyncClient(timeout=60) as http:
        text = await call(http, corpus_server.url, "search_papers", query=QUERIES[0])

    assert text.startswith("10 papers of 6,341 ICML 2026 papers, best first.")


@pytest.mark.parametrize("query", QUERIES[:3])
async def test_asking_again_brings_new_papers_until_the_window_is_used_up(corpus_server, query):
    async with httpx2.AsyncClient(timeout=60) as http:
        session_id = await open_session(http, corpus_server.url)
        seen: list[str] = []
        rounds = []
        for _ in range(12):
            text = await call(
                http, corpus_server.url, "search_papers", query=query, session_id=session_id, include_abstract=False
            )
            rounds.append(len(shown_ids(text)))
            seen += shown_ids(text)
        fresh = await call(http, corpus_server.url, "search_papers", query=query)

    assert rounds == [10] * 10 + [0, 0]
    assert len(seen) == len(set(seen)) == 100
    assert "everything in this window of 100 candidates was already returned" in text
    assert shown_ids(fresh) == seen[:10]


async def test_eight_parallel_searches_of_a_session_fifty_times_over_give_no_paper_twice(corpus_server):
    async with httpx2.AsyncClient(timeout=120) as http:
        for number in range(50):
            session_id = await open_session(http, corpus_server.url)
            texts = await asyncio.gather(
                *(
                    call(
                        http,
                        corpus_server.url,
                        "search_papers",
                        query=QUERIES[number % len(QUERIES)],
                        session_id=session_id,
                        top_k=5,
                        include_abstract=False,
                    )
                    for _ in range(8)
                )
            )
            found = [paper_id for text in texts for paper_id in shown_ids(text)]
            assert len(found) == len(set(found)) == 40
            await call(http, corpus_server.url, "close_search_session", session_id=session_id)
    assert "locked" not in corpus_server.log


def inside(record, area=None, paper_type=None, spotlight=False) -> bool:
    stored = record.get("primary_area") or "Unspecified"
    return (
        (area is None or stored == area or stored.startswith(area + "->"))
        and (paper_type is None or record["paper_type"] == paper_type)
        and (not spotlight or bool(record.get("spotlight")))
    )


async def test_every_hit_is_inside_its_filter_and_the_window_is_full(corpus_server, records, manifest):
    areas = sorted(manifest.catalogue.areas, key=manifest.catalogue.areas.get, reverse=True)
    exact = [
        areas[0],
        areas[-1],
        next(area for area in areas if "," in area),
        next(area for area in areas if "/" in area),
    ]
    filters = [{"area": "Applications"}, {"area": "Unspecified"}, *({"area": area} for area in exact)]
    filters += [{"paper_type": name} for name in manifest.catalogue.paper_types]
    filters += [{"spotlight": True}, {"area": "Applications", "spotlight": True}]
    async with httpx2.AsyncClient(timeout=60) as http:
        for query in QUERIES:
            for wanted in filters:
                named = {name: value for name, value in wanted.items() if name != "spotlight"}
                text = await call(
                    http,
                    corpus_server.url,
                    "search_papers",
                    query=query,
                    top_k=50,
                    search_depth=500,
                    include_abstract=False,
                    spotlight_only=wanted.get("spotlight", False),
                    **named,
                )
                total = sum(inside(record, **wanted) for record in records.values())
                found = shown_ids(text)
                assert all(inside(records[paper_id], **wanted) for paper_id in found), (query, wanted)
                assert len(found) == min(50, total), (query, wanted, total)


@pytest.mark.parametrize("area", ['a"b', "a\\", "O'Brien", 'x" or paper_id != "', "Applications->", "%", "_"])
async def test_an_area_that_is_none_is_an_error_with_names(corpus_server, area):
    async with httpx2.AsyncClient(timeout=60) as http:
        text = await call(http, corpus_server.url, "search_papers", query="a", area=area)

    assert text.startswith("error[unknown_area]: ")
    assert 'Nearest: "' in text


async def test_the_catalogue_counts_agree_with_the_source(corpus_server, records):
    async with httpx2.AsyncClient(timeout=60) as http:
        text = await call(http, corpus_server.url, "list_paper_areas")

    applications = sum(inside(record, area="Applications") for record in records.values())
    assert f"Applications {applications:,}" in text
    for area in {record.get("primary_area") or "Unspecified" for record in records.values()}:
        count = sum((record.get("primary_area") or "Unspecified") == area for record in records.values())
        assert f"\n{area}: {count:,}" in text


async def test_the_same_query_fifty_times_and_after_a_restart_is_one_list(corpus_build, corpus_server, tmp_path):
    async def lists(url: str, query: str, times: int, top_k: int) -> set[tuple[str, ...]]:
        async with httpx2.AsyncClient(timeout=120) as http:
            texts = await asyncio.gather(
                *(
                    call(http, url, "search_papers", query=query, top_k=top_k, include_abstract=False)
                    for _ in range(times)
                )
            )
        return {tuple(shown_ids(text)) for text in texts}

    before = {}
    for query in QUERIES:
        (before[query],) = await lists(corpus_server.url, query, 50, 20)
        assert {before[query][:5]} == await lists(corpus_server.url, query, 1, 5)
        assert {before[query][:10]} == await lists(corpus_server.url, query, 1, 10)
    with serving(corpus_build, tmp_path, "--rate-limit", "0") as restarted:
        for query in QUERIES:
            assert {before[query]} == await lists(restarted.url, query, 2, 20)


async def test_get_papers_shows_what_the_source_says(corpus_server, records):
    chosen = random.Random(7).sample(sorted(records), 5)
    async with httpx2.AsyncClient(timeout=60) as http:
        text = await call(http, corpus_server.url, "get_papers", paper_ids=[*chosen, "nope", chosen[0]])

    assert shown_ids(text) == chosen
    for paper_id in chosen:
        assert visible(records[paper_id]["title"]) in text
        assert visible(records[paper_id]["authors"][0]) in text
    assert text.endswith("nope")


async def test_a_paper_is_found_by_its_title(corpus_server, records):
    chosen = random.Random(11).sample(sorted(records), 40)
    ranks = {}
    async with httpx2.AsyncClient(timeout=60) as http:
        for paper_id in chosen:
            query = records[paper_id]["title"]
            text = await call(http, corpus_server.url, "search_papers", query=query, top_k=50, include_abstract=False)
            ranks[paper_id] = shown_ids(text).index(paper_id) + 1 if paper_id in shown_ids(text) else 51

    assert sum(rank == 1 for rank in ranks.values()) >= 34, ranks
    assert max(ranks.values()) <= 50, ranks


async def test_facts_lines_are_complete(corpus_server):
    async with httpx2.AsyncClient(timeout=60) as http:
        text = await call(http, corpus_server.url, "search_papers", query=QUERIES[0], top_k=50)

    assert len(text) <= 20_000
    scores = [float(fact.removeprefix("score ")) for facts in facts_of(text) for fact in facts if "score " in fact]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert len(scores) == 50


@pytest.mark.timeout(900)
async def test_two_hundred_clients_are_answered_or_told_overloaded_while_others_leave(corpus_build, tmp_path):
    took: list[float] = []
    outcomes = {"answered": 0, "overloaded": 0}
    with serving(corpus_build, tmp_path, "--rate-limit", "0", "--queue", "64") as served:
        async with httpx2.AsyncClient(timeout=60, limits=httpx2.Limits(max_connections=300)) as http:
            await call(http, served.url, "search_papers", query=QUERIES[0])
            memory, files = served.memory_mb(), served.open_files()
            until = time.monotonic() + SOAK_S

            async def client(number: int) -> None:
                chosen = random.Random(number)
                while time.monotonic() < until:
                    query = f"{chosen.choice(QUERIES)} {chosen.randrange(40)}"
                    started = time.monotonic()
                    text = await call(http, served.url, "search_papers", query=query, include_abstract=False)
                    took.append(time.monotonic() - started)
                    outcomes["overloaded" if text.startswith("error[overloaded]") else "answered"] += 1
                    assert text.startswith(("10 papers", "error[overloaded]")), text
                    await asyncio.sleep(chosen.random())

            async def leaver(number: int) -> None:
                content = json.dumps(body("search_papers", {"query": f"{QUERIES[1]} {number}"})).encode()
                host, port = served.base.removeprefix("http://").split(":")
                head = (
                    f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
                    f"accept: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
                ).encode()
                while time.monotonic() < until:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection(host, int(port))
                        writer.write(head + content)
                        await asyncio.sleep(random.Random(number).random() / 4)
                        writer.close()
                    await asyncio.sleep(0.5)

            async with anyio.create_task_group() as group:
                for number in range(CLIENTS):
                    group.start_soon(client, number)
                for number in range(10):
                    group.start_soon(leaver, number)
        await arrives(lambda: served.open_files() <= files + 20)
        grown = served.memory_mb() - memory
        async with httpx2.AsyncClient(timeout=60) as http:
            page = (await http.get(f"{served.base}/metrics")).text
        assert "Traceback" not in served.log

    sys.stderr.write(
        f"{outcomes} p50 {sorted(took)[len(took) // 2]:.2f} s, longest {max(took):.2f} s, grown {grown:.0f} MB\n"
    )
    assert outcomes["answered"] > 100
    assert max(took) < 31
    assert grown < 100
    assert "serve_searches_admitted 0.0" in page
