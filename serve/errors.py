"""Errors of the serving program: what ends the start, and what a model may read.

ContractError
├── UsageRefused     2  a flag or environment variable cannot be used
└── StateRefused     6  the state database is not ours, of another schema, or of another hash key
ToolFailure             one failed call; its text is `error[code]: sentence. What to do.`
└── StateFailed         the state database failed during a call
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from manifests.errors import ContractError


class UsageRefused(ContractError):
    """A flag or environment variable cannot be used; says which, and what it may be."""

    exit_code = 2


class StateRefused(ContractError):
    """The state database cannot be used: foreign, another schema version, another hash key."""

    exit_code = 6


class ErrorCode(StrEnum):
    """The stable codes of a failed call; `meaning` says when, `advice` what the caller can do."""

    meaning: str
    advice: str

    def __new__(cls, code: str, meaning: str, advice: str) -> Self:
        """A code that is its own text and carries its two sentences (documentation is generated from them)."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.advice = advice
        return member

    INVALID_ARGUMENT = (
        "invalid_argument",
        "An argument is missing, unknown, of the wrong type or outside its bounds.",
        "Correct the named argument; the text says what is valid.",
    )
    UNKNOWN_AREA = (
        "unknown_area",
        "No paper has this research area.",
        "Use one of the nearest names in the text, or list_paper_areas.",
    )
    UNKNOWN_PAPER_TYPE = (
        "unknown_paper_type",
        "No paper has this type.",
        "Use one of the types in the text.",
    )
    SESSION_NOT_FOUND = (
        "session_not_found",
        "This server knows no session of this id, or has forgotten it.",
        "Open a session with open_search_session, or leave session_id out.",
    )
    SESSION_CLOSED = (
        "session_closed",
        "The session was closed.",
        "Open a new one with open_search_session.",
    )
    SESSION_EXPIRED = (
        "session_expired",
        "The session was idle for longer than its time to live.",
        "Open a new one with open_search_session.",
    )
    SESSION_LIMIT = (
        "session_limit",
        "A limit of sessions is reached: open sessions, rounds, or papers returned in one session.",
        "The text says which limit; close the session and open a new one, or retry later.",
    )
    RATE_LIMITED = (
        "rate_limited",
        "This client made too many calls within a minute.",
        "Wait the seconds that the text names, then retry.",
    )
    EMBEDDING_UNAVAILABLE = (
        "embedding_unavailable",
        "The query could not be embedded and the server was told not to answer by words alone.",
        "Retry later.",
    )
    INDEX_UNAVAILABLE = (
        "index_unavailable",
        "The search engine failed or did not answer in time.",
        "Retry in a few seconds.",
    )
    OVERLOADED = (
        "overloaded",
        "Too many calls are waiting, or the call did not end within its deadline.",
        "Retry in a few seconds, one call at a time.",
    )
    RESPONSE_TOO_LARGE = (
        "response_too_large",
        "Not even one paper fits into the output limit of this server.",
        "Ask for less; the operator can raise the output limit.",
    )
    INTERNAL = (
        "internal",
        "The server failed in a way nobody foresaw, or its state database failed.",
        "Retry later; tell the operator if it stays.",
    )


class ToolFailure(Exception):
    """One failed call: `code` is stable, `sentence` says what was found and what to do."""

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(f"error[{code}]: {sentence}")
        self.code = code


class StateFailed(ToolFailure):
    """The state database failed: full disk, lost file, a lock held too long by another process."""

    def __init__(self, cause: str) -> None:
        super().__init__(ErrorCode.INTERNAL, f"The server's state database failed. {ErrorCode.INTERNAL.advice}")
        self.cause = cause
