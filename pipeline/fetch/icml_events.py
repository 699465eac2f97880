"""The lists of icml.cc: of events, where a poster and the talk about it each have a number and a page of their own.

What is known of such lists is here. Which of their events are one paper is judged by same_paper.py.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.fetch.decisions import ORAL, SPOTLIGHT

Kind = Literal["poster", "talk"]

# The column that no other list has: the page of the event, such as /virtual/2026/oral/70000.
PAGE = "virtualsite_url"
# Our key -> their columns.
KNOWN: dict[str, tuple[str, ...]] = {"event": ("type", "eventtype", "event_type"), "event_url": (PAGE,)}

_POSTER = re.compile(r"poster", re.IGNORECASE)
_NO_PAPER = re.compile(r"\bsession\b", re.IGNORECASE)
_KIND_IN_PAGE = re.compile(r"/([A-Za-z-]+)/\d+/?$")


@dataclass(frozen=True)
class Event:
    """What the list says of a row: a poster or a talk; whether it gives papers an id beside the event's."""

    kind: Kind
    has_id: bool


def misleads(ours: str, names: Container[str]) -> bool:
    """Whether a column that goes by a name of our key `ours` is something else in a list of these columns.

    Events have numbers, which are no ids: an oral has another than its poster. Only events have a kind.
    """
    return ours == ("id" if PAGE in names else "event")


def is_talk(kind: Any, page: Any) -> bool:
    """Whether an event is no poster, by its kind or else by its page; False for what is no event."""
    said = kind or page
    return bool(said) and not _POSTER.search(str(said))


def kind_said(kind: str | None, page: str | None) -> str:
    """The kind of an event, else what its page says, else nothing."""
    told = _KIND_IN_PAGE.search(page or "")
    return kind or (told[1] if told else "")


def presents_paper(kind: str) -> bool:
    """As "Poster" and "Virtual presentation / top 25% paper" do; "Doctoral Consortium" and "Oral Session" do not."""
    presented = any(pattern.search(kind) for pattern in (_POSTER, ORAL, SPOTLIGHT))
    return presented and not _NO_PAPER.search(kind)
