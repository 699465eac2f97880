"""Every note of a venue, as many as the API counts, page by page into a work folder.

Reads    /groups and /notes of OpenReview (openreview_api.py), pages saved before in the work folder
Writes   WORK/pass-N/page-00001.json ... and total.json, each whole or not at all
Holds    the distinct ids are as many as the API counts after the last page; else the list is read again, and a
         difference that stays is an error that names the ids
Resumes  a saved page is not asked for again within `PAGES_KEEP_S`
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manifests.errors import InputRefused
from manifests.files import write_atomically
from pipeline.fetch.openreview_api import Api, OpenReview
from pipeline.progress import Report

PAGE_NOTES = 1_000
PASSES_MAX = 3
# Older pages would mix two states of the venue.
PAGES_KEEP_S = 24 * 3600
IDS_NAMED_MAX = 20


@dataclass(frozen=True)
class Listing:
    """One question to `/notes`: which API, and the filter."""

    api: Api
    query: Mapping[str, str]

    def __str__(self) -> str:
        return f"API {self.api} " + "&".join(f"{key}={value}" for key, value in self.query.items())


@dataclass(frozen=True)
class Listed:
    """The notes of one listing in the order of the API, repeats included; `total` is what the API counts."""

    notes: list[dict[str, Any]]
    total: int
    resumed_pages: int


@dataclass
class _Pass:
    """One reading of a whole listing, saved page by page in `folder`."""

    folder: Path
    by_offset: bool = False
    pages: list[dict[str, Any]] = field(default_factory=list)
    resumed: int = 0

    @property
    def notes(self) -> list[dict[str, Any]]:
        return [note for page in self.pages for note in page["notes"]]

    @property
    def finished(self) -> bool:
        return bool(self.pages) and not self.pages[-1]["notes"]

    def saved(self) -> None:
        """Take up the pages of an earlier run, as far as they are whole, in a row and young enough."""
        while page := _read(self.folder / f"page-{len(self.pages) + 1:05}.json"):
            if time.time() - page["asked_at"] > PAGES_KEEP_S:
                shutil.rmtree(self.folder)
                self.pages.clear()
                break
            self.pages.append(page)
        self.resumed = len(self.pages)

    def save(self, step: Mapping[str, str], notes: list[dict[str, Any]]) -> None:
        page = {"asked_at": time.time(), "step": dict(step), "notes": notes}
        self.pages.append(page)
        write_atomically(self.folder / f"page-{len(self.pages):05}.json", json.dumps(page).encode())


def listings(client: OpenReview, venue_id: str, group: Mapping[str, Any] | None) -> list[Listing]:
    """The listings that hold the venue's submissions, whatever became of them; the first kind with any note wins.

    A venue of API v2 has a group with a `domain`; the same host knows a venue of API v1 by a group without one.

    Raises:
        InputRefused: no kind of listing holds a note; names everything that was asked.
    """
    asked: list[Listing] = []
    for kind in _kinds(client, venue_id, group):
        asked += kind
        if any(client.count(listing.api, listing.query) for listing in kind):
            return kind
    raise InputRefused(
        f"OpenReview lists no note of {venue_id}; expected its submissions. Asked "
        + ", ".join(f"{client.base_url(listing.api)} {listing}" for listing in asked)
        + ". Check the venue id (it is case-sensitive), the base URL, and that the login may see the submissions"
    )


def list_all(client: OpenReview, listing: Listing, work: Path, report: Report) -> Listed:
    """Every note of the listing, as many as the API counts when the last page has come.

    Raises:
        InputRefused: after `PASSES_MAX` readings the list and the count still disagree; names the ids that differ.
    """
    passes: list[_Pass] = []
    total = 0
    for number in range(1, PASSES_MAX + 1):
        # The last reading goes another way: what the first two could not see may show in it.
        reading = _Pass(work / f"pass-{number}", by_offset=number == PASSES_MAX)
        _read_pass(client, listing, reading, report)
        total = _total(client, listing, reading)
        passes.append(reading)
        if _whole(passes, total):
            return Listed(reading.notes, total, sum(one.resumed for one in passes))
    raise InputRefused(_difference(listing, passes, total))


def work_key(client: OpenReview, listing: Listing) -> str:
    """Names the folder of a listing: another host, version or filter never takes up its pages."""
    return hashlib.sha256(f"{client.base_url(listing.api)} {listing}".encode()).hexdigest()[:12]


def _kinds(client: OpenReview, venue_id: str, group: Mapping[str, Any] | None) -> list[list[Listing]]:
    content = (group or {}).get("content") or {}
    invitation = content.get("submission_id") or {}
    submissions = invitation.get("value") if isinstance(invitation, dict) else None
    outcomes = ("", "/Submission", "/Rejected_Submission", "/Withdrawn_Submission", "/Desk_Rejected_Submission")
    v2 = [
        [Listing("v2", {"invitation": submissions or f"{venue_id}/-/Submission"})],
        [Listing("v2", {"content.venueid": venue_id + outcome}) for outcome in outcomes],
    ]
    v1 = [
        [
            Listing("v1", {"invitation": f"{venue_id}/-/{name}"})
            for name in (submission, "Withdrawn_Submission", "Desk_Rejected_Submission")
        ]
        for submission in ("Blind_Submission", "Submission")
    ]
    if client.access.v1 is None or (group and group.get("domain")):
        return v2
    # Without a group nothing tells the version; the outcomes come last, since v1 knows none of them by its venueid.
    return v1 if group else [v2[0], *v1, v2[1]]


def _read_pass(client: OpenReview, listing: Listing, reading: _Pass, report: Report) -> None:
    reading.saved()
    if reading.finished:
        return
    expected = client.count(listing.api, listing.query)
    # Twice what a full list takes: an API that goes round in circles is not followed for ever.
    pages_max = len(reading.pages) + 2 * (expected // PAGE_NOTES) + 10
    seen = {note["id"] for note in reading.notes}
    report(len(seen), expected, str(listing))
    while not reading.finished and len(reading.pages) < pages_max:
        step = _next_step(reading)
        notes = client.notes(listing.api, {**listing.query, "sort": "id", "limit": str(PAGE_NOTES), **step}).notes
        if notes and "after" in step and _repeats(reading, notes):
            # This host does not know `after`.
            step = {"offset": str(len(reading.notes))}
            notes = client.notes(listing.api, {**listing.query, "sort": "id", "limit": str(PAGE_NOTES), **step}).notes
        reading.save(step, [] if _repeats(reading, notes) else notes)
        seen.update(note["id"] for note in notes)
        report(len(seen), max(expected, len(seen)), str(listing))


def _next_step(reading: _Pass) -> dict[str, str]:
    """After the last id, so that a note inserted or removed meanwhile moves no other; by offset where it must be."""
    if not reading.pages:
        return {"offset": "0"} if reading.by_offset else {}
    if "offset" in reading.pages[-1]["step"]:
        return {"offset": str(len(reading.notes))}
    return {"after": reading.pages[-1]["notes"][-1]["id"]}


def _repeats(reading: _Pass, notes: list[dict[str, Any]]) -> bool:
    """Whether the page is one that came before: the host did not understand where to go on."""
    ids = [note["id"] for note in notes]
    known = [reading.pages[0], reading.pages[-1]] if reading.pages else []
    return any(ids == [note["id"] for note in page["notes"]] for page in known)


def _total(client: OpenReview, listing: Listing, reading: _Pass) -> int:
    """What the API counts once the last page has come; saved, so that a resumed run judges by the same number."""
    path = reading.folder / "total.json"
    saved = _read(path)
    if saved is None:
        saved = {"total": client.count(listing.api, listing.query)}
        write_atomically(path, json.dumps(saved).encode())
    return int(saved["total"])


def _whole(passes: list[_Pass], total: int) -> bool:
    """Whether the last pass holds what the API counts.

    As many rows as counted with an id twice is also what a skipped note looks like. It is believed only when two
    passes agree on every id: then the API itself lists and counts a note twice.
    """
    ids = [note["id"] for note in passes[-1].notes]
    if len(set(ids)) == total:
        return True
    before = sorted(note["id"] for note in passes[-2].notes) if len(passes) > 1 else None
    return len(ids) == total and sorted(ids) == before


def _difference(listing: Listing, passes: list[_Pass], total: int) -> str:
    last, before = ([note["id"] for note in one.notes] for one in (passes[-1], passes[-2]))
    twice = [paper_id for paper_id, times in Counter(last).items() if times > 1]
    named = [
        f"{what}: {_names(ids)}"
        for what, ids in (
            ("listed more than once", twice),
            ("only in the last reading", list(set(last) - set(before))),
            ("only in the reading before", list(set(before) - set(last))),
        )
        if ids
    ]
    return (
        f"OpenReview counts {total} notes for {listing} but lists {len(set(last))} distinct ids, "
        f"{len(passes)} times over ({', '.join(str(len({note['id'] for note in one.notes})) for one in passes)}). "
        + ("; ".join(named) or "The readings agree with one another, so the API hides notes that it counts")
        + f". Nothing was written; the pages are in {passes[-1].folder.parent}. Fetch again when the venue is quiet"
    )


def _names(ids: list[str]) -> str:
    more = f" and {len(ids) - IDS_NAMED_MAX} more" if len(ids) > IDS_NAMED_MAX else ""
    return ", ".join(sorted(ids)[:IDS_NAMED_MAX]) + more


def _read(path: Path) -> dict[str, Any] | None:
    """A saved page; None when there is none or a disk fault left something else in its place."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None
