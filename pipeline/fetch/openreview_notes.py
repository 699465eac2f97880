"""What one OpenReview note is: an accepted paper as a snapshot record, or the reason why it is none.

Every case a note can be in has one rule here, and `Tally` counts how often it was met; nothing is dropped or
mended unseen. API v2 wraps each value (`content.title.value`), v1 does not; both are read the same way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.fetch.decisions import ORAL, POSITION, SPOTLIGHT, refusal
from pipeline.records import faults_of

SITE = "https://openreview.net"
WRAPS_MAX = 5

# The end of a v2 `venueid`, or of a v1 invitation, and what became of the submission.
OUTCOMES = (
    (re.compile(r"Withdrawn\w*"), "withdrawn"),
    (re.compile(r"Desk_Reject\w*"), "desk_rejected"),
    (re.compile(r"Reject\w*"), "rejected"),
    (re.compile(r"(?:\w+_)?Submission\d*"), "submitted"),
)


class BadNote(ValueError):
    """An accepted note that cannot become a record: which field, what was found."""


@dataclass
class Tally:
    """How often each case was met: notes left out by reason, oddities of kept papers, venue strings, licences."""

    excluded: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    venues: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Count what `other` counted too."""
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine.update(theirs)


def excluded(note: Mapping[str, Any], venue_id: str) -> str | None:
    """Why the note is no accepted paper of `venue_id`; None when it is one.

    The `venueid` speaks first, but API v1 puts the bare venue on rejected papers too, so the `venue` string has to
    agree. The invitation never decides that something was accepted, only what was withdrawn or desk-rejected.
    """
    if note.get("ddate"):
        return "deleted"
    if note.get("forum") not in {None, note["id"]}:
        return "not_a_submission"
    venueid, venue = _text(note, "venueid"), _text(note, "venue")
    if note.get("invitation") and (outcome := _outcome(note["invitation"])) in {"withdrawn", "desk_rejected"}:
        return outcome
    if venueid and (reason := _elsewhere(venueid, venue_id)):
        return reason
    if venue and (reason := refusal(venue, venue_id)):
        return reason
    return None if venueid or venue else "no_decision"


def record(note: Mapping[str, Any], tally: Tally) -> dict[str, Any]:
    """The snapshot record of an accepted note; counts in `tally` what was odd about it.

    Raises:
        BadNote: no title, a value of a type that no rule covers, or a record that `load` would refuse.
    """
    odd = Tally()
    paper = _record(note, odd)
    if faults := faults_of(paper):
        raise BadNote(faults)
    tally.add(odd)
    return paper


def plain(value: Any) -> Any:
    """A value out of its wrapping: `{"value": {"value": x}}` is x, `{"value": null}` is None."""
    for _ in range(WRAPS_MAX):
        if not (isinstance(value, dict) and "value" in value):
            break
        value = value["value"]
    return value


def _record(note: Mapping[str, Any], tally: Tally) -> dict[str, Any]:
    _count_wraps(note, tally)
    venue = _text(note, "venue") or ""
    tally.venues[venue or "(none)"] += 1
    tally.licences[str(note.get("license") or "none stated")] += 1
    title, abstract = _text(note, "title"), plain(_content(note).get("abstract"))
    if not title:
        raise BadNote("no title; expected a text")
    if _text(note, "abstract") is None:
        tally.cases["missing_abstract"] += 1
    return {
        "id": note["id"],
        "title": title,
        "abstract": abstract or "",
        "authors": _authors(note, tally),
        "keywords": _keywords(note, tally),
        "primary_area": _area(note, tally),
        "paper_type": "position" if POSITION.search(f"{venue} {_text(note, 'venueid')}") else "regular",
        "spotlight": bool(SPOTLIGHT.search(venue)),
        "oral": bool(ORAL.search(venue)),
        "forum_url": f"{SITE}/forum?id={note['id']}",
        "pdf_url": _pdf_url(note, tally),
    }


def _content(note: Mapping[str, Any]) -> Mapping[str, Any]:
    content = note.get("content")
    return content if isinstance(content, dict) else {}


def _text(note: Mapping[str, Any], key: str) -> str | None:
    """The text of a content field as it is; None where it is absent, null or blank."""
    value = plain(_content(note).get(key))
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, str):
        raise BadNote(f"{key} {str(value)[:80]!r}; expected a text")
    return value


def _outcome(path: str) -> str | None:
    last = path.rsplit("/", 1)[-1]
    return next((outcome for pattern, outcome in OUTCOMES if pattern.fullmatch(last)), None)


def _elsewhere(venueid: str, venue_id: str) -> str | None:
    """Why a note with this `venueid` is no accepted paper of the venue; None when it is one."""
    if venueid == venue_id:
        return None
    if outcome := _outcome(venueid):
        return outcome
    # ICML.cc/2026/Position_Paper_Track is a track of the conference that ICML.cc/2026/Conference names.
    year = venue_id.rsplit("/", 1)[0]
    return None if re.fullmatch(rf"{re.escape(year)}/\w+_Track", venueid) else "other_venue"


def _count_wraps(note: Mapping[str, Any], tally: Tally) -> None:
    for value in _content(note).values():
        inner = value["value"] if isinstance(value, dict) and "value" in value else value
        if isinstance(inner, dict) and "value" in inner:
            tally.cases["nested_value"] += 1
        if plain(value) is None:
            tally.cases["null_value"] += 1


def _authors(note: Mapping[str, Any], tally: Tally) -> list[str]:
    """Names in order. Newer notes give an object a name; some old ones one text, which is not split by guess."""
    value = plain(_content(note).get("authors"))
    if isinstance(value, str):
        tally.cases["authors_in_one_text"] += 1
        value = [value]
    names = [
        entry.get("fullname") or entry.get("name") if isinstance(entry, dict) else entry
        for entry in map(plain, _entries("authors", value))
    ]
    return _texts("authors", names, tally)


def _keywords(note: Mapping[str, Any], tally: Tally) -> list[str]:
    value = plain(_content(note).get("keywords"))
    if isinstance(value, str):
        tally.cases["keywords_in_one_text"] += 1
        value = [part.strip() for part in re.split("[;,]", value)]
    return _texts("keywords", [plain(entry) for entry in _entries("keywords", value)], tally)


def _entries(key: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadNote(f"{key} {str(value)[:80]!r}; expected a list of texts")
    return value


def _texts(key: str, entries: list[Any], tally: Tally) -> list[str]:
    texts = [entry for entry in entries if not (entry is None or (isinstance(entry, str) and not entry.strip()))]
    if strange := next((entry for entry in texts if not isinstance(entry, str)), None):
        raise BadNote(f"{key} hold {str(strange)[:80]!r}; expected texts")
    tally.cases[f"blank_{key}_entry"] += len(entries) - len(texts)
    if not texts:
        tally.cases[f"no_{key}"] += 1
    return texts


def _area(note: Mapping[str, Any], tally: Tally) -> str | None:
    value = plain(_content(note).get("primary_area"))
    if isinstance(value, list):
        tally.cases["several_areas_first_taken"] += len(value) > 1
        value = plain(value[0]) if value else None
    if value is None or (isinstance(value, str) and not value.strip()):
        tally.cases["no_area"] += 1
        return None
    if not isinstance(value, str):
        raise BadNote(f"primary_area {str(value)[:80]!r}; expected a text")
    return value


def _pdf_url(note: Mapping[str, Any], tally: Tally) -> str | None:
    path = _text(note, "pdf")
    if path is None:
        return None
    if path.startswith("/pdf"):
        return SITE + path
    if re.match(r"https?://\S+\Z", path):
        return path
    tally.cases["pdf_is_no_url"] += 1
    return None
