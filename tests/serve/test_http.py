"""HTTP: routes, guards, probes; in process, over the stand-in index."""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from manifests.errors import MilvusError
from serve.errors import UsageRefused
from serve.http import CancelOnDisconnect, bind, build_app
from serve.opening import Opened
from serve.settings import read_settings
from tests.serve.standin import shown_ids

pytestmark = pytest.mark.anyio

URL = "http://127.0.0.1:8000"
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "list_paper_areas", "arguments": {}},
}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@dataclass
class Site:
    """A client of the application, and the application."""

    http: httpx2.AsyncClient
    bench: Any
    addresses: list[str] = field(default_factory=list)

    async def post(self, path: str = "/mcp", **options: Any) -> httpx2.Response:
        options["headers"] = HEADERS | options.get("headers", {})
        options.setdefault("json", CALL)
        if "content" in options:
            del options["json"]
        return await self.http.post(path, **options)


@pytest.fixture
def site(make_bench, index):
    @asynccontextmanager
    async def opened_site(bearer=None, peer="203.0.113.5", rate_limit=0, **flags):
        bench = make_bench(rate_limit=rate_limit)
        settings = read_settings({"manifest": "m.json", "milvus_uri": "m.db"} | flags, {})
        manifest = SimpleNamespace(
            snapshot=index.manifest.snapshot,
            digest="d" * 64,
            collection=SimpleNamespace(name="papers_0"),
            corpus=index.manifest.corpus,
            embedding="local:x",
        )
        opened = Opened(manifest, bench.ranking, bench.service, bench.embedding, bench.desk, bench.metrics)
        app = build_app(opened, settings, bearer, "0.0.0")
        transport = httpx2.ASGITransport(app, client=(peer, 4711))
        async with app.router.lifespan_context(app), httpx2.AsyncClient(transport=transport, base_url=URL) as http:
            yield Site(http, bench)

    return opened_site


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_real_client_searches_over_http(site, mode):
    async with site() as served:
        transport = streamable_http_client(f"{URL}/mcp", http_client=served.http)
        async with Client(transport, mode=mode) as client:
            tools = await client.list_tools()
            result = await client.call_tool("search_papers", {"query": "graphs"})

    assert len(tools.tools) == 6
    assert len(shown_ids(result.content[0].text)) == 10


async def test_both_spellings_of_the_path_answer(site):
    async with site() as served:
        for path in ("/mcp", "/mcp/"):
            answer = await served.post(path)
            assert answer.status_code == 200
            assert answer.json()["result"]["content"][0]["text"].startswith("120 ICML 2026 papers")
            assert len(answer.headers["x-request-id"]) == 8


@pytest.mark.parametrize(("media_type", "status"), [("APPLICATION/JSON; Charset=UTF-8", 200), ("text/plain", 400)])
async def test_the_case_of_a_media_type_says_nothing(site, media_type, status):
    async with site() as served:
        assert (await served.post(headers={"content-type": media_type})).status_code == status


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT"])
async def test_other_methods_are_refused_and_hold_nothing_open(site, method):
    async with site() as served:
        assert (await served.http.request(method, "/mcp")).status_code == 405
    async with site() as served:
        assert (await served.http.get("/nothing")).status_code == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("[::1]:9", 200),
        ("mcp.example.org", 200),
        ("LOCALHOST:8023", 200),
        ("MCP.Example.org", 200),
        ("mcp.example.org:443", 200),
        ("evil.example", 421),
        ("mcp.example.org.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
async def test_only_named_hosts_are_answered(site, host, status):
    async with site(allowed_hosts="mcp.example.org") as served:
        assert (await served.post(headers={"host": host})).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://localhost:6274", 200), ("https://app.example.org", 200), ("https://evil.example", 403), ("null", 403)],
)
async def test_only_named_origins_are_answered(site, origin, status):
    async with site(allowed_origins="https://app.example.org") as served:
        answer = await served.post(headers={"origin": origin})
        preflight = await served.http.options(
            "/mcp", headers={"origin": origin, "access-control-request-method": "POST"}
        )

    assert answer.status_code == status
    assert (answer.headers.get("access-control-allow-origin") == origin) == (status == 200)
    assert (preflight.status_code == 200) == (status == 200)


async def test_a_body_over_the_limit_is_413_also_without_a_length(site):
    async def pieces():
        for _ in range(100):
            yield b" " * 100

    async with site(body_limit="4096") as served:
        assert (await served.post(content=b" " * 5_000)).status_code == 413
        assert (await served.post(content=pieces())).status_code == 413
        assert (await served.post()).status_code == 200


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b"[1]", b'"x"', b"\xff\xfe", b"[" * 5_000])
async def test_a_body_that_is_no_call_is_a_clean_400(site, content):
    async with site() as served:
        answer = await served.post(content=content)

    assert answer.status_code == 400
    assert "Traceback" not in answer.text


async def test_a_bearer_token_guards_all_but_the_probes(site):
    async with site(bearer="s3cret") as served:
        assert (await served.post()).status_code == 401
        assert (await served.post(headers={"authorization": "Bearer wrong"})).status_code == 401
        assert (await served.post(headers={"authorization": "Basic s3cret"})).status_code == 401
        assert (await served.post(headers={"authorization": "Bearer s3cret"})).status_code == 200
        assert (await served.post(headers={"authorization": "bearer s3cret"})).status_code == 200
        assert (await served.http.get("/metrics")).status_code == 401
        assert (await served.http.get("/healthz")).status_code == 200
        assert (await served.http.get("/readyz")).status_code == 200
        refused = await served.post()

    assert refused.headers["www-authenticate"] == "Bearer"


async def test_readyz_tells_what_is_served_and_503_while_the_index_fails(site):
    async with site() as served:
        facts = (await served.http.get("/readyz")).json()
        works = served.bench.index.answer

        def fail(depth):
            raise MilvusError("gone")

        served.bench.index.answer = fail
        await served.post(json=CALL | {"params": {"name": "search_papers", "arguments": {"query": "a"}}})
        failing = await served.http.get("/readyz")
        served.bench.index.answer = works
        again = await served.http.get("/readyz")

    assert facts == {
        "ready": True,
        "index": "answers",
        "manifest": {"name": "standin", "digest": "d" * 64},
        "collection": "papers_0",
        "papers": 120,
        "embedding": "local:x",
        "provider": {"provider": "standin"},
        "version": "0.0.0",
    }
    assert (failing.status_code, failing.json()["ready"]) == (503, False)
    assert again.status_code == 200


async def test_readyz_reads_the_ledger_off_the_event_loop(site, monkeypatch):
    asked_in = []

    def state():
        asked_in.append(threading.get_ident())
        return {}

    async with site() as served:
        monkeypatch.setattr(served.bench.embedding, "state", state)
        await served.http.get("/readyz")

    assert asked_in
    assert threading.get_ident() not in asked_in


async def test_metrics_count_calls_by_tool_and_outcome_and_nothing_a_client_wrote(site):
    async with site() as served:
        await served.post()
        bad = {"name": "search_papers", "arguments": {"query": "topsecret", "nope": "topsecret"}}
        await served.post(json=CALL | {"params": bad})
        await served.post(json=CALL | {"params": {"name": "topsecret", "arguments": {}}})
        await served.http.get("/topsecret")
        await served.http.get("/mcp")
        page = (await served.http.get("/metrics")).text

    assert 'serve_calls_total{outcome="ok",tool="list_paper_areas"} 1.0' in page
    assert 'serve_calls_total{outcome="invalid_argument",tool="search_papers"} 1.0' in page
    assert re.findall(r"^serve_http_refusals_total.*", page, re.MULTILINE) == [
        'serve_http_refusals_total{status="405"} 1.0'
    ]
    assert "topsecret" not in page


async def test_the_rate_limit_counts_the_address_and_the_proxys_report_only_when_trusted(site):
    async def outcomes(**flags):
        async with site(peer="10.1.1.1", rate_limit=1, **flags) as served:
            texts = [
                (await served.post(headers={"x-forwarded-for": address})).json()["result"]["content"][0]["text"]
                for address in ("198.51.100.1", "198.51.100.2")
            ]
        return [text.startswith("error[rate_limited]") for text in texts]

    assert await outcomes(trusted_proxies="10.0.0.0/8") == [False, False]


async def test_an_untrusted_report_of_another_address_changes_nothing(site):
    async with site(peer="10.1.1.1", rate_limit=1) as served:
        texts = [
            (await served.post(headers={"x-forwarded-for": address})).json()["result"]["content"][0]["text"]
            for address in ("198.51.100.1", "198.51.100.2")
        ]

    assert [text.startswith("error[rate_limited]") for text in texts] == [False, True]


async def test_the_log_line_of_a_call_names_no_query_and_no_address(site, caplog):
    caplog.set_level("DEBUG")
    async with site(peer="203.0.113.77") as served:
        await served.post(json=CALL | {"params": {"name": "search_papers", "arguments": {"query": "topsecret"}}})

    (record,) = [record for record in caplog.records if record.name == "serve.calls"]
    assert record.facts["tool"] == "search_papers"
    assert record.facts["outcome"] == "ok"
    assert {"ms", "embed_ms", "milvus_ms", "request"} <= record.facts.keys()
    ours = [json.dumps(vars(record), default=str) for record in caplog.records if record.name.startswith("serve")]
    assert "topsecret" not in "".join(ours)
    assert "203.0.113.77" not in "".join(ours)


async def test_a_client_that_leaves_cancels_the_work():
    entered, cancelled = anyio.Event(), anyio.Event()

    async def app(scope, receive, send):
        assert (await receive())["type"] == "http.request"
        entered.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await entered.wait()
        return {"type": "http.disconnect"}

    with anyio.fail_after(5):
        await CancelOnDisconnect(app, 60)({"type": "http"}, receive, None)
    assert cancelled.is_set()


async def test_a_body_that_never_ends_is_given_up():
    sent = []

    async def app(scope, receive, send):
        while (await receive())["more_body"]:
            pass

    first = [{"type": "http.request", "body": b"a", "more_body": True}]

    async def receive():
        if first:
            return first.pop()
        return await anyio.sleep_forever()

    async def send(message):
        sent.append(message)

    with anyio.fail_after(5):
        await CancelOnDisconnect(app, 0.05)({"type": "http"}, receive, send)
    assert sent[0]["status"] == 408


async def test_a_port_in_use_is_refused_by_name():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageRefused, match=r"cannot listen on 127\.0\.0\.1 port"):
            bind("127.0.0.1", taken.getsockname()[1])
