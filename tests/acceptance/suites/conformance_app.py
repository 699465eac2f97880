"""The real server with the fixture tools that the conformance suite looks for by name. For that suite only.

python -m tests.acceptance.suites.conformance_app FLAGS OF python -m serve
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from mcp.types import Tool

from serve import __main__ as program
from serve import tools
from serve.arguments import ListPaperAreas
from serve.errors import ErrorCode, ToolFailure
from serve.tools import PaperTool

TEXT = "This is a simple text response for testing."
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@dataclass(frozen=True)
class FixtureTool(PaperTool):
    """A tool of the suite; `schema` replaces the one of its arguments."""

    schema: dict[str, Any] = field(default_factory=dict)

    def listing(self, corpus: str) -> Tool:
        listed = super().listing(corpus)
        return listed.model_copy(update={"input_schema": self.schema}) if self.schema else listed


async def simple(*_: Any) -> str:
    return TEXT


async def failing(*_: Any) -> str:
    raise ToolFailure(ErrorCode.INTERNAL, "This tool intentionally returns an error for testing")


def main() -> int:
    fixtures = [
        FixtureTool(name, name, "A fixture of the conformance suite.", ListPaperAreas, work, schema=schema)
        for name, work, schema in (
            ("test_simple_text", simple, {}),
            ("test_error_handling", failing, {}),
            ("test_logging_tool", simple, {}),
            ("test_streaming_elicitation", simple, {}),
            ("json_schema_2020_12_tool", simple, SCHEMA),
        )
    ]
    tools.TOOLS = (*tools.TOOLS, *fixtures)
    tools.TOOL.update({fixture.name: fixture for fixture in fixtures})
    return program.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
