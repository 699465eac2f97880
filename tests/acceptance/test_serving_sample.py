"""The sample index behind the real program: clients, sessions, restarts, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from manifests.contract import read_manifest
from manifests.files import file_sha256
from serve.filters import folded
from tests.acceptance.served import (
    HEADERS,
    QUERY,
    Served,
    arrives,
    body,
    call,
    command,
    open_session,
    serving,
    shown_ids,
)
from tests.programs import REPOSITORY, SAMPLE, Build, run_build

pytestmark = pytest.mark.anyio

GOLDEN = json.loads((REPOSITORY / "tests" / "golden" / "tools.json").read_text(encoding="utf-8"))
GREETING: list[dict[str, Any]] = [
    {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "0"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]


def comparable(tools):
    """The listing without the words that come from the manifest."""
    listed = [tool.model_dump(by_alias=True, exclude_none=True, mode="json") for tool in tools]
    return json.loads(json.dumps(listed).replace("150 Sample Conference 2026", "6,341 ICML 2026"))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_over_http_lists_the_golden_tools_and_searches(sample_server, mode):
    async with Client(sample_server.url, mode=mode) as client:
        tools = (await client.list_tools()).tools
        result = await client.call_tool("search_papers", {"query": QUERY, "top_k": 3})

    assert comparable(tools) == GOLDEN
    assert len(shown_ids(result.content[0].text)) == 3


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_over_stdio_lists_the_golden_tools_and_searches(sample_build, tmp_path, mode):
    program, *arguments = command(sample_build, tmp_path / "state.db", "--transport", "stdio")
    parameters = StdioServerParameters(command=program, args=arguments, cwd=REPOSITORY, env=dict(os.environ))
    with (tmp_path / "log").open("w") as log:
        async with Client(stdio_client(parameters, errlog=log), mode=mode) as client:
            tools = (await client.list_tools()).tools
            result = await client.call_tool("search_papers", {"query": QUERY, "top_k": 3})

    assert comparable(tools) == GOLDEN
    assert len(shown_ids(result.content[0].text)) == 3


def test_standard_output_of_stdio_holds_protocol_only_and_the_program_ends_with_its_input(sample_build, tmp_path):
    requests: list[dict[str, Any]] = [
        *GREETING,
        body("search_papers", {"query": QUERY}),
        body("get_papers", {"paper_ids": ["nope"]}),
    ]
    with subprocess.Popen(
        command(sample_build, tmp_path / "state.db", "--transport", "stdio", "--log-level", "debug"),
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        program.stdin.write("".join(json.dumps(request) + "\n" for request in requests))
        program.stdin.flush()
        answers = [json.loads(program.stdout.readline()) for _ in range(3)]
        program.stdin.close()
        rest = program.stdout.read()
        code = program.wait(60)

    assert {answer["id"] for answer in answers} == {0, requests[2]["id"], requests[3]["id"]}
    assert rest == ""
    assert code == 0


@contextmanager
def stdio_server(build: Build, state: Path) -> Iterator[subprocess.Popen[str]]:
    """A server on pipes that has greeted its client."""
    with subprocess.Popen(
        command(build, state, "--transport", "stdio"),
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write("".join(json.dumps(request) + "\n" for request in GREETING))
        program.stdin.flush()
        program.stdout.readline()
        yield program


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stdio_server_ends_on_a_signal_while_its_client_holds_the_pipe(sample_build, tmp_path, how):
    with stdio_server(sample_build, tmp_path / "state.db") as program:
        engines = psutil.Process(program.pid).children(recursive=True)
        program.send_signal(how)
        code = program.wait(30)

    assert code == 128 + how
    assert psutil.wait_procs(engines, timeout=10)[1] == []


def test_a_stdio_server_whose_engine_dies_says_so_and_stops(sample_build, tmp_path):
    with stdio_server(sample_build, tmp_path / "state.db") as program:
        for engine in psutil.Process(program.pid).children(recursive=True):
            engine.kill()
        program.stdin.write(json.dumps(body("search_papers", {"query": QUERY})) + "\n")
        program.stdin.flush()
        code = program.wait(60)

    assert code == 5


async def test_eight_parallel_searches_of_a_session_fifty_times_over_give_no_paper_twice(sample_server):
    async with httpx2.AsyncClient(timeout=60) as http:
        for _ in range(50):
            session_id = await open_session(http, sample_server.url)
            texts = await asyncio.gather(
                *(
                    call(http, sample_server.url, "search_papers", query=QUERY, session_id=session_id, top_k=5)
                    for _ in range(8)
                )
            )
            found = [paper_id for text in texts for paper_id in shown_ids(text)]
            await call(http, sample_server.url, "close_search_session", session_id=session_id)

            assert len(found) == len(set(found)) == 40, texts
    assert "locked" not in sample_server.log


async def test_the_same_query_gives_the_same_list_always_and_everywhere(
    sample_build, sample_server, tmp_path, tmp_path_factory
):
    async def lists(served: Served, times: int, **options) -> set[tuple[str, ...]]:
        async with httpx2.AsyncClient(timeout=60) as http:
            texts = [await call(http, served.url, "search_papers", query=QUERY, **options) for _ in range(times)]
        return {tuple(shown_ids(text)) for text in texts}

    (first,) = await lists(sample_server, 50, top_k=20)
    assert {first[:5]} == await lists(sample_server, 1, top_k=5)
    assert {first[:10]} == await lists(sample_server, 1)

    with serving(sample_build, tmp_path / "restarted") as restarted:
        assert {first} == await lists(restarted, 5, top_k=20)

    elsewhere = run_build(SAMPLE, tmp_path_factory.mktemp("elsewhere"), store=sample_build.store)
    assert elsewhere.manifest.read_bytes() == sample_build.manifest.read_bytes()
    with serving(elsewhere, tmp_path / "elsewhere") as rebuilt:
        assert {first} == await lists(rebuilt, 5, top_k=20)


async def test_killed_under_load_and_restarted_no_answered_paper_is_repeated(sample_build, tmp_path):
    answered: dict[str, list[str]] = {}
    with serving(sample_build, tmp_path, "--rate-limit", "0") as served:
        async with httpx2.AsyncClient(timeout=30) as http:
            sessions = [await open_session(http, served.url, label=f"s{number}") for number in range(6)]

            async def survey(session_id: str) -> None:
                for _ in range(100):
                    arguments = {"query": QUERY, "session_id": session_id, "top_k": 3}
                    try:
                        text = await call(http, served.url, "search_papers", **arguments)
                    except httpx2.HTTPError:
                        return
                    answered.setdefault(session_id, []).extend(shown_ids(text))

            async with anyio.create_task_group() as group:
                for session_id in sessions:
                    group.start_soon(survey, session_id)
                await arrives(lambda: sum(map(len, answered.values())) >= 60)
                served.stop(signal.SIGKILL)

    with serving(sample_build, tmp_path, "--rate-limit", "0") as restarted:
        async with httpx2.AsyncClient(timeout=30) as http:
            for session_id in sessions:
                text = await call(http, restarted.url, "search_papers", query=QUERY, session_id=session_id, top_k=50)
                assert not text.startswith("error"), text
                assert not set(shown_ids(text)) & set(answered[session_id])
                assert len(answered[session_id]) == len(set(answered[session_id]))


async def test_a_clean_stop_lets_the_calls_in_flight_end(sample_build, tmp_path):
    with serving(sample_build, tmp_path, "--rate-limit", "0") as served:
        async with httpx2.AsyncClient(timeout=30) as http:
            calls = [
                asyncio.create_task(call(http, served.url, "search_papers", query=f"{n} {QUERY}")) for n in range(8)
            ]
            await asyncio.sleep(0.2)
            code = await asyncio.to_thread(served.stop)
            texts = await asyncio.gather(*calls, return_exceptions=True)

    assert code == 0
    assert all(isinstance(text, str) and len(shown_ids(text)) == 10 for text in texts), texts


async def test_a_server_whose_engine_dies_says_so_and_ends_for_its_supervisor(sample_build, tmp_path):
    with serving(sample_build, tmp_path) as served:
        (engine,) = psutil.Process(served.program.pid).children()
        engine.kill()
        async with httpx2.AsyncClient(timeout=30) as http:
            text = await call(http, served.url, "search_papers", query=QUERY)
        code = await asyncio.to_thread(served.program.wait, 60)

    assert text.startswith("error[index_unavailable]")
    assert code == 5
    assert "the embedded Milvus engine has ended" in served.log


async def test_clients_that_leave_mid_call_cost_nothing(sample_build, tmp_path):
    with serving(sample_build, tmp_path, "--rate-limit", "0") as served:
        before = served.open_files()
        host, port = served.base.removeprefix("http://").split(":")
        content = json.dumps(body("search_papers", {"query": QUERY})).encode()
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
            f"accept: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        ).encode()
        for cut in (len(head) // 2, len(head) + 10, None):
            for _ in range(30):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write((head + content)[:cut])
                await writer.drain()
                writer.close()
        async with httpx2.AsyncClient(timeout=30) as http:
            text = await call(http, served.url, "search_papers", query=QUERY)
        await arrives(lambda: served.open_files() <= before + 3)

    assert len(shown_ids(text)) == 10
    assert "Traceback" not in served.log


async def test_serving_changes_no_published_file(sample_build, sample_server):
    def digests() -> dict[Path, str]:
        return {path: file_sha256(path) for path in sorted(sample_build.work.rglob("*")) if path.is_file()}

    before = digests()
    async with httpx2.AsyncClient(timeout=60) as http:
        await call(http, sample_server.url, "search_papers", query=QUERY)

    assert digests() == before


async def test_no_query_session_id_or_address_is_kept_anywhere(sample_build, tmp_path):
    marker = "xylophonequasar"
    with serving(sample_build, tmp_path, "--log-level", "debug", "--trusted-proxies", "127.0.0.1") as served:
        async with httpx2.AsyncClient(timeout=60, headers={"x-forwarded-for": "198.51.100.77"}) as http:
            session_id = await open_session(http, served.url)
            arguments = {"query": marker, "session_id": session_id, "area": marker}
            await call(http, served.url, "search_papers", **arguments)
            await call(http, served.url, "search_papers", **(arguments | {"area": None}))
            await call(http, served.url, "search_papers", query=marker, **{marker: 1})
            await http.post(served.url, content=f'{{"{marker}": ', headers={"host": f"{marker}.example"})
            page = (await http.get(f"{served.base}/metrics")).text
            ready = (await http.get(f"{served.base}/readyz")).text
        served.stop(signal.SIGKILL)

    kept = page + ready + "".join(path.read_bytes().decode("latin-1") for path in tmp_path.iterdir() if path.is_file())
    assert [secret for secret in (marker, session_id, "198.51.100.77") if secret in kept] == []


async def test_thousands_of_handshakes_that_nobody_closes_hold_nothing(sample_build, tmp_path):
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    with serving(sample_build, tmp_path) as served:
        async with httpx2.AsyncClient(timeout=60, headers=HEADERS) as http:

            async def handshakes(times: int) -> None:
                for number in range(times):
                    request = {"jsonrpc": "2.0", "id": number, "method": "initialize", "params": hello}
                    assert (await http.post(served.url, json=request)).status_code == 200
                    assert (await http.get(served.url)).status_code == 405

            await handshakes(200)
            memory, files = served.memory_mb(), served.open_files()
            await handshakes(1_000)
            grown = served.memory_mb() - memory

            assert served.open_files() <= files + 2
    assert grown < 20


async def test_a_second_server_shares_index_and_state(sample_build, tmp_path):
    with (
        serving(sample_build, tmp_path, "--rate-limit", "0") as one,
        serving(sample_build, tmp_path, "--rate-limit", "0") as two,
    ):
        async with httpx2.AsyncClient(timeout=60) as http:
            session_id = await open_session(http, one.url)
            texts = await asyncio.gather(
                *(
                    call(http, served.url, "search_papers", query=QUERY, session_id=session_id, top_k=4)
                    for served in (one, two) * 6
                )
            )

    found = [paper_id for text in texts for paper_id in shown_ids(text)]
    assert len(found) == len(set(found)) == 48


async def test_a_filter_loses_no_paper_however_few_match(sample_build, sample_server):
    areas = read_manifest(sample_build.manifest).catalogue.areas
    async with httpx2.AsyncClient(timeout=60) as http:
        for area in areas:
            papers = sum(count for other, count in areas.items() if folded(other) == folded(area))
            text = await call(http, sample_server.url, "search_papers", query="zyxw", area=area, top_k=50)
            assert len(shown_ids(text)) == min(papers, 50), (area, text)


async def test_the_rate_limit_of_a_running_server(sample_build, tmp_path):
    with serving(sample_build, tmp_path, "--rate-limit", "3") as served:
        async with httpx2.AsyncClient(timeout=60) as http:
            texts = [await call(http, served.url, "list_paper_areas") for _ in range(4)]

    assert [text.startswith("error[rate_limited]") for text in texts] == [False, False, False, True]
