"""The six tools through a real in-memory client, in both protocol eras."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from manifests.texts import query_text
from serve.tools import TOOLS, Caller, build_server
from tests.serve.standin import shown_ids

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent.parent / "golden" / "tools.json"

# (name, type, required, default, constraints, description), the public table.
NULLABLE_TOP_K = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 50}, {"type": "null"}], "default": None}
NULLABLE_STRING = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
TABLE = {
    "open_search_session": (
        "Open Search Session",
        "Start a search session and return its ID. Pass that ID to later search calls to leave out papers already returned in the session.",
        [],
        {
            "label": {
                "type": "string",
                "default": "",
                "maxLength": 120,
                "description": "Optional topic label for the session.",
            },
            "default_top_k": NULLABLE_TOP_K
            | {"description": "Default number of results returned per round for this session."},
        },
    ),
    "search_papers": (
        "Search Papers",
        "Search 6,341 ICML 2026 papers. With `session_id`, leave out papers already returned in that session.",
        ["query"],
        {
            "query": {
                "type": "string",
                "minLength": 1,
                "maxLength": 2000,
                "description": "Natural-language research topic or method.",
            },
            "session_id": NULLABLE_STRING
            | {"description": "Search session ID used to leave out previously returned papers."},
            "top_k": NULLABLE_TOP_K | {"description": "Maximum number of new papers to return."},
            "search_depth": {
                "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
                "default": None,
                "description": "Number of ranked candidates to check before session deduplication.",
            },
            "area": NULLABLE_STRING | {"description": "Research area filter."},
            "paper_type": NULLABLE_STRING | {"description": "Paper type filter."},
            "spotlight_only": {"type": "boolean", "default": False, "description": "Return only spotlight papers."},
            "min_score": {
                "anyOf": [{"type": "number", "minimum": 0.0, "maximum": 1.0}, {"type": "null"}],
                "default": None,
                "description": "Minimum normalized hybrid-ranking score.",
            },
            "include_abstract": {
                "type": "boolean",
                "default": True,
                "description": "Include abstract previews in the result.",
            },
        },
    ),
    "close_search_session": (
        "Close Search Session",
        "Close a search session and return a short summary.",
        ["session_id"],
        {"session_id": {"type": "string", "minLength": 1, "description": "Search session ID to close."}},
    ),
    "search_session_status": (
        "Search Session Status",
        "Show progress for one search session.",
        ["session_id"],
        {
            "session_id": {"type": "string", "minLength": 1, "description": "Search session ID to inspect."},
            "include_papers": {
                "type": "boolean",
                "default": False,
                "description": "Include a bounded list of paper titles.",
            },
        },
    ),
    "get_papers": (
        "Get Papers",
        "Fetch papers by OpenReview ID. With `session_id`, record found papers as returned in that session.",
        ["paper_ids"],
        {
            "paper_ids": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": 50,
                "description": "OpenReview paper IDs.",
            },
            "session_id": NULLABLE_STRING
            | {"description": "Search session in which found papers are recorded as returned."},
        },
    ),
    "list_paper_areas": (
        "List Paper Areas",
        "List available `area` and `paper_type` values with corpus counts.",
        [],
        {},
    ),
}


@pytest.fixture(params=["legacy", "auto"])
async def client(request, bench):
    server = build_server(bench.desk, "6,341 ICML 2026 papers", "0.0.0", lambda _: Caller(None, "00000000"))
    async with Client(server, mode=request.param) as connected:
        yield connected


async def listing(client):
    found = await client.list_tools()
    return [tool.model_dump(by_alias=True, exclude_none=True, mode="json") for tool in found.tools]


async def test_the_listing_equals_the_public_table(client):
    found = await client.list_tools()

    assert [tool.name for tool in found.tools] == list(TABLE)
    for tool in found.tools:
        title, begins, required, properties = TABLE[tool.name]
        assert tool.title == title
        assert tool.description.startswith(begins)
        assert tool.input_schema.get("required", []) == required
        assert tool.input_schema["properties"] == properties
        assert tool.input_schema["additionalProperties"] is False
        assert tool.input_schema["type"] == "object"
        assert set(tool.input_schema) <= {"type", "properties", "required", "additionalProperties"}
        assert tool.annotations.read_only_hint
        assert not tool.annotations.destructive_hint
        assert tool.output_schema is None


async def test_the_listing_is_the_golden_one_and_small(client):
    text = json.dumps(await listing(client), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")

    assert text == GOLDEN.read_text(encoding="utf-8")
    assert len(json.dumps(json.loads(text), separators=(",", ":"))) < 8_000


async def test_only_tools_are_advertised(client):
    capabilities = client.server_capabilities.model_dump(exclude_none=True)

    assert "tools" in capabilities
    assert not {"prompts", "resources", "completions"} & capabilities.keys()


WRONG = [
    ("search_papers", {}, "query is required"),
    ("search_papers", {"query": ""}, "query must not be empty"),
    ("search_papers", {"query": "  \n"}, "query is blank"),
    ("search_papers", {"query": "\u200b\u202e\u3164"}, "query is blank"),
    ("search_papers", {"query": "x" * 2001}, "query must have at most 2000 characters"),
    ("search_papers", {"query": 7}, "query must be a string"),
    ("search_papers", {"query": None}, "query must be a string"),
    ("search_papers", {"query": "a", "top_k": 51}, "top_k must be at most 50"),
    ("search_papers", {"query": "a", "top_k": 0}, "top_k must be at least 1"),
    ("search_papers", {"query": "a", "top_k": True}, "top_k must be an integer, not a boolean"),
    ("search_papers", {"query": "a", "top_k": 7.5}, "top_k must be an integer"),
    ("search_papers", {"query": "a", "top_k": "seven"}, "top_k must be an integer"),
    ("search_papers", {"query": "a", "top_k": [7]}, "top_k must be an integer"),
    ("search_papers", {"query": "a", "search_depth": 0}, "search_depth must be at least 1"),
    ("search_papers", {"query": "a", "search_depth": False}, "search_depth must be an integer, not a boolean"),
    ("search_papers", {"query": "a", "min_score": 1.01}, "min_score must be at most 1"),
    ("search_papers", {"query": "a", "min_score": -0.1}, "min_score must be at least 0"),
    ("search_papers", {"query": "a", "min_score": True}, "min_score must be a number, not a boolean"),
    ("search_papers", {"query": "a", "min_score": "nan"}, "min_score must be a finite number"),
    ("search_papers", {"query": "a", "min_score": "high"}, "min_score must be a number"),
    ("search_papers", {"query": "a", "spotlight_only": 1}, "spotlight_only must be true or false"),
    ("search_papers", {"query": "a", "spotlight_only": "yes"}, "spotlight_only must be true or false"),
    ("search_papers", {"query": "a", "spotlight_only": None}, "spotlight_only must be true or false"),
    ("search_papers", {"query": "a", "session_id": "null"}, "session_id must be an id from open_search_session"),
    ("search_papers", {"query": "a", "session_id": " None "}, "session_id must be an id from open_search_session"),
    ("search_papers", {"query": "a", "session_id": ""}, "session_id must be an id from open_search_session"),
    ("search_papers", {"query": "a", "session_id": 5}, "session_id must be a string"),
    ("search_papers", {"query": "a", "area": ["x"]}, "area must be a string"),
    ("search_papers", {"q": "a"}, '"q" is not an argument of this tool'),
    ("search_papers", {"query": "a", "topk": 3}, "did you mean top_k?"),
    ("search_papers", {"query": "a", "limit": 3}, "it takes query, session_id, top_k"),
    ("search_papers", {"query": "a", "\x1b[2J\u202e": 3}, '"[2J" is not an argument'),
    ("get_papers", {"paper_ids": "abc"}, "paper_ids must be a list of strings"),
    ("get_papers", {"paper_ids": []}, "paper_ids must hold at least 1 ids"),
    ("get_papers", {"paper_ids": ["a"] * 51}, "paper_ids must hold at most 50 ids"),
    ("get_papers", {"paper_ids": ["a", " "]}, "paper_ids holds a blank id at position 1"),
    ("get_papers", {"paper_ids": ["%20%20"]}, "paper_ids holds a blank id at position 0"),
    ("get_papers", {"paper_ids": ["null"]}, "paper_ids holds a blank id at position 0"),
    ("get_papers", {"paper_ids": ["a", 3]}, "paper_ids[1] must be a string"),
    ("get_papers", {"ids": ["a"]}, "paper_ids is required"),
    ("open_search_session", {"label": "x" * 121}, "label must have at most 120 characters"),
    ("open_search_session", {"label": None}, "label must be a string"),
    ("open_search_session", {"default_top_k": 51}, "default_top_k must be at most 50"),
    ("close_search_session", {"session_id": "undefined"}, "session_id must be an id from open_search_session. "),
    ("search_session_status", {"session_id": "null"}, "session_id must be an id from open_search_session. "),
    ("get_papers", {"paper_ids": ["a"], "session_id": "null"}, "to go without a session, leave it out or pass JSON"),
    ("search_session_status", {"session_id": "x", "include_papers": "maybe"}, "include_papers must be true or false"),
    ("list_paper_areas", {"area": "x"}, '"area" is not an argument: this tool takes none'),
]


@pytest.mark.parametrize(("tool", "arguments", "says"), WRONG)
async def test_a_wrong_argument_is_an_error_that_says_what_is_valid(client, tool, arguments, says):
    result = await client.call_tool(tool, arguments)

    (content,) = result.content
    assert result.is_error
    assert content.text.startswith("error[invalid_argument]: ")
    assert says in content.text
    assert "pydantic" not in content.text
    assert content.text.isprintable()


async def test_of_thousands_of_unknown_arguments_only_those_told_are_looked_into(client, monkeypatch):
    looked_into = []

    def close_matches(name, known, n):
        looked_into.append(name)
        return known[:n]

    monkeypatch.setattr("difflib.get_close_matches", close_matches)

    result = await client.call_tool(
        "search_papers", {"query": "a"} | {f"unknown{number}": 1 for number in range(3_000)}
    )

    assert result.content[0].text.count("is not an argument of this tool") == len(looked_into) == 5


@pytest.mark.parametrize("top_k", [7, 7.0, "7", " 7 "])
async def test_seven_is_seven(client, top_k):
    result = await client.call_tool("search_papers", {"query": "a", "top_k": top_k})

    assert len(shown_ids(result.content[0].text)) == 7


@pytest.mark.parametrize(
    "query", ["123", "[1]", "true", "2401.12345", '{"a": 1}', "NOT abused AND (", 'a"b', "C++", "null"]
)
async def test_text_that_looks_like_something_else_stays_text(client, bench, query):
    result = await client.call_tool("search_papers", {"query": query})

    assert not result.is_error
    assert bench.index.asked[-1][1] == query_text(query)


async def test_null_means_unset_for_every_nullable(client):
    nulls = dict.fromkeys(("session_id", "top_k", "search_depth", "area", "paper_type", "min_score"))
    plain = await client.call_tool("search_papers", {"query": "a"})

    assert (await client.call_tool("search_papers", {"query": "a"} | nulls)).content == plain.content


async def test_booleans_as_words_are_understood(client):
    text = (await client.call_tool("search_papers", {"query": "a", "spotlight_only": "True"})).content[0].text

    assert "spotlight only" in text


async def test_an_unknown_tool_is_a_protocol_error(client):
    with pytest.raises(MCPError, match="Unknown tool"):
        await client.call_tool("search_paper\u202es", {})


async def test_the_whole_life_of_a_session(client):
    opened = (await client.call_tool("open_search_session", {"label": "x", "default_top_k": 3})).content[0].text
    session_id = opened.splitlines()[0].removeprefix("session_id: ")
    rounds = [
        (await client.call_tool("search_papers", {"query": "a", "session_id": session_id})).content[0].text
        for _ in range(2)
    ]
    closed = await client.call_tool("close_search_session", {"session_id": session_id})

    assert [shown_ids(text) for text in rounds] == [
        ["paper000", "paper001", "paper002"],
        ["paper003", "paper004", "paper005"],
    ]
    assert not closed.is_error


def test_every_description_is_complete_and_short():
    for tool in TOOLS:
        assert 100 < len(tool.description) < 900
        assert all(field.description for field in tool.arguments.model_fields.values())
