"""The arguments of the six tools: one model each, and what a caller is told about a wrong one.

Parameter names, types, defaults, bounds and descriptions are the product's public contract.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from manifests.visible import visible
from serve.text import shortened

PROBLEMS_SHOWN = 5
NAME_CHARS_MAX = 40
# Spellings of "no value" that models write in place of leaving an argument out.
NO_VALUE = frozenset({"null", "none", "undefined", "nil"})
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_OURS = "argument"
_SENTENCES = {
    "missing": "is required",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must hold at least {min_length} ids",
    "too_long": "must hold at most {max_length} ids",
    "list_type": 'must be a list of strings such as ["id1", "id2"]',
    "string_type": "must be a string",
    "string_unicode": "holds characters that are not valid Unicode",
    "finite_number": "must be a finite number such as 0.5",
    "float_parsing": "must be a number such as 0.5",
    "float_type": "must be a number such as 0.5",
    "int_type": "must be an integer such as 10",
    "bool_type": "must be true or false",
}


def _wrong(sentence: str) -> PydanticCustomError:
    return PydanticCustomError(_OURS, sentence)


def _integer(value: Any) -> Any:
    """`7`, `7.0` and `"7"` are the integer 7; `true` and `7.5` are not integers."""
    if isinstance(value, bool):
        raise _wrong("must be an integer, not a boolean")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    if value is not None and not isinstance(value, int):
        raise _wrong("must be an integer such as 10")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise _wrong("must be a number, not a boolean")
    return value


def _boolean(value: Any) -> Any:
    if isinstance(value, str) and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise _wrong("must be true or false")
    return value


def _session_id(value: str, without: str = "") -> str:
    if not visible(value) or value.strip().lower() in NO_VALUE:
        raise _wrong(f"must be an id from open_search_session{without}")
    return value.strip()


def _optional_session_id(value: str | None) -> str | None:
    return None if value is None else _session_id(value, "; to go without a session, leave it out or pass JSON null")


def _query(value: str) -> str:
    if not visible(value):
        raise _wrong("is blank; give a topic, a question or a title")
    return value


def _paper_ids(value: list[str]) -> list[str]:
    for position, name in enumerate(value):
        if not visible(unquote(name)) or name.strip().lower() in NO_VALUE:
            raise _wrong(f"holds a blank id at position {position}; give ids as shown in search_papers")
    return value


Query = Annotated[str, AfterValidator(_query)]
SessionId = Annotated[str, AfterValidator(_session_id)]
OptionalSessionId = Annotated[str | None, AfterValidator(_optional_session_id)]
Boolean = Annotated[bool, BeforeValidator(_boolean)]
PaperIds = Annotated[list[str], AfterValidator(_paper_ids)]
TopK = Annotated[int, Field(ge=1, le=50)]


class Arguments(BaseModel):
    """Arguments of a tool: unknown names and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class OpenSearchSession(Arguments):
    """Arguments of `open_search_session`."""

    label: str = Field("", max_length=120, description="Optional topic label for the session.")
    default_top_k: Annotated[TopK | None, BeforeValidator(_integer)] = Field(
        None, description="Default number of results returned per round for this session."
    )


class SearchPapers(Arguments):
    """Arguments of `search_papers`."""

    query: Query = Field(min_length=1, max_length=2000, description="Natural-language research topic or method.")
    session_id: OptionalSessionId = Field(
        None, description="Search session ID used to leave out previously returned papers."
    )
    top_k: Annotated[TopK | None, BeforeValidator(_integer)] = Field(
        None, description="Maximum number of new papers to return."
    )
    search_depth: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_integer)] = Field(
        None, description="Number of ranked candidates to check before session deduplication."
    )
    area: str | None = Field(None, description="Research area filter.")
    paper_type: str | None = Field(None, description="Paper type filter.")
    spotlight_only: Boolean = Field(False, description="Return only spotlight papers.")
    min_score: Annotated[Annotated[float, Field(ge=0.0, le=1.0)] | None, BeforeValidator(_number)] = Field(
        None, description="Minimum normalized hybrid-ranking score."
    )
    include_abstract: Boolean = Field(True, description="Include abstract previews in the result.")


class CloseSearchSession(Arguments):
    """Arguments of `close_search_session`."""

    session_id: SessionId = Field(min_length=1, description="Search session ID to close.")


class SearchSessionStatus(Arguments):
    """Arguments of `search_session_status`."""

    session_id: SessionId = Field(min_length=1, description="Search session ID to inspect.")
    include_papers: Boolean = Field(False, description="Include a bounded list of paper titles.")


class GetPapers(Arguments):
    """Arguments of `get_papers`."""

    paper_ids: PaperIds = Field(min_length=1, max_length=50, description="OpenReview paper IDs.")
    session_id: OptionalSessionId = Field(
        None, description="Search session in which found papers are recorded as returned."
    )


class ListPaperAreas(Arguments):
    """`list_paper_areas` takes no arguments."""


def input_schema(arguments: type[Arguments]) -> dict[str, Any]:
    """JSON schema of a tool's arguments, without the titles and docstrings of our classes."""
    schema = arguments.model_json_schema()
    schema.pop("description", None)
    schema.pop("title", None)
    schema.setdefault("properties", {})
    for parameter in schema["properties"].values():
        parameter.pop("title", None)
    return schema


def described(error: ValidationError, arguments: type[Arguments]) -> str:
    """What is wrong with the arguments and what is valid, never showing the rejected values."""
    known = list(arguments.model_fields)
    shown = error.errors(include_url=False, include_input=False)[:PROBLEMS_SHOWN]
    problems = dict.fromkeys(_problem(problem, known) for problem in shown)
    return "; ".join(problems) + ". Correct this and call again."


def _problem(problem: Any, known: list[str]) -> str:
    where = problem["loc"]
    name = str(where[0]) if where else "arguments"
    kind = problem["type"]
    if kind == "extra_forbidden":
        return _unknown_name(name, known)
    if len(where) > 1 and isinstance(where[1], int):
        name = f"{name}[{where[1]}]"
    if kind == _OURS:
        return f"{name} {problem['msg']}"
    return name + " " + _SENTENCES.get(kind, "is not valid").format(**problem.get("ctx", {}))


def _unknown_name(name: str, known: list[str]) -> str:
    shown = shortened(visible(name), NAME_CHARS_MAX)
    if not known:
        return f'"{shown}" is not an argument: this tool takes none'
    close = difflib.get_close_matches(shown, known, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f'"{shown}" is not an argument of this tool{meant}; it takes {", ".join(known)}'
