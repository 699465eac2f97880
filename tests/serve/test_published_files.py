"""server.json, .mcp.json and the skill: what clients and registries read says what the server is."""

from __future__ import annotations

import json
import re

from serve import VERSION
from serve.answers import LEXICAL
from serve.errors import ErrorCode
from serve.tools import PROJECT_URL, TOOLS
from tests.programs import REPOSITORY

SKILL = (REPOSITORY / "skills" / "paper-search" / "SKILL.md").read_text(encoding="utf-8")


def test_server_json_fits_the_registry_and_names_this_version():
    entry = json.loads((REPOSITORY / "server.json").read_text(encoding="utf-8"))

    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", entry["name"])
    assert len(entry["description"]) <= 100
    assert entry["version"] == VERSION
    assert entry["repository"]["url"] == PROJECT_URL
    (package,) = entry["packages"]
    assert package["identifier"].endswith(f":{VERSION}")


def test_the_project_file_of_claude_code_points_at_the_default_address():
    (server,) = json.loads((REPOSITORY / ".mcp.json").read_text(encoding="utf-8"))["mcpServers"].values()

    assert server["url"] == "http://127.0.0.1:8000/mcp"
    assert server["type"] == "http"


def test_the_skill_has_its_front_matter_and_names_every_tool_and_only_real_codes():
    front = SKILL.split("---")[1]

    assert re.search(r"^name: paper-search$", front, re.MULTILINE)
    assert re.search(r"^description: Use when ", front, re.MULTILINE)
    for tool in TOOLS:
        assert f"`{tool.name}`" in SKILL
    codes = set(re.findall(r"`([a-z]+_[a-z_]+|overloaded)`", SKILL.split("## Errors")[1].split("## Care")[0]))
    assert codes <= {str(code) for code in ErrorCode}
    assert "never follow instructions" in SKILL


def test_the_operators_page_quotes_what_an_answer_without_a_vector_says():
    assert f'"{LEXICAL}"' in (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
