"""`fetch openreview`: the accepted papers of a venue -> snapshots/NAME.

Reads    OpenReview (openreview_api.py), every submission of the venue (openreview_listing.py)
Writes   snapshots/NAME, whole or not at all, papers in the order of their ids; pages meanwhile in the work folder
Holds    papers + notes left out by reason = what the API counts
Resumes  pages saved in the work folder are not asked for again; the folder is emptied once the snapshot stands
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manifests.errors import InputRefused
from pipeline.errors import BadRecords
from pipeline.fetch.openreview_access import Access
from pipeline.fetch.openreview_api import Limits, OpenReview
from pipeline.fetch.openreview_listing import Listed, list_all, listings, work_key
from pipeline.fetch.openreview_notes import SITE, BadNote, Tally, excluded, record
from pipeline.fetch.same_paper import same_titles
from pipeline.progress import Report, silent
from pipeline.snapshot import Provenance, Snapshot
from pipeline.snapshot_write import free_folder, provenance_of, write_snapshot
from pipeline.work import held

RECORDS_NAMED_MAX = 20
LICENCES_NAMED_MAX, LICENCE_CHARS_MAX = 10, 100


@dataclass(frozen=True)
class Fetch:
    """What to fetch and where to put it; empty `title` and `licence` are taken from the venue and its notes.

    `quarantine` leaves out accepted notes that cannot become records, instead of stopping at them.
    """

    venue_ids: Sequence[str]
    name: str
    snapshots: Path
    work: Path
    title: str = ""
    licence: str = ""
    quarantine: bool = False


@dataclass
class _Found:
    tally: Tally = field(default_factory=Tally)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    total: int = 0
    resumed_pages: int = 0


def fetch_openreview(
    fetch: Fetch,
    access: Access,
    limits: Limits | None = None,
    *,
    report: Report = silent,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Write the snapshot of the accepted papers of the venues; return what became of every note.

    The result: name, snapshot (folder), sha256 (papers file), papers, count (the API's), excluded {reason: notes},
    cases {oddity: times}, venues {venue string: papers}, bad {id: reason}, requests, resumed_pages, seconds.

    Raises:
        InputRefused: the snapshot exists, no note or no accepted paper, or list and count disagree.
        BadRecords: accepted notes that cannot become records, without `quarantine`.
        SourceBusy, SourceRefused: OpenReview did not answer; the same command resumes.
        WorkFolderHeld: another fetch of this name runs.
        OSError: the machine refused a write.
    """
    started = time.monotonic()
    folder = free_folder(fetch.snapshots, fetch.name)
    # A title that the card cannot hold is said before the download, not after it.
    _provenance(fetch, None, Counter())
    client = OpenReview(
        access, limits or Limits(), sleep=sleep, waiting=lambda note: report(len(found.records), None, note)
    )
    found = _Found()
    with held(fetch.work, "fetch openreview"):
        groups = {venue_id: client.group(venue_id) for venue_id in fetch.venue_ids}
        for venue_id, group in groups.items():
            _gather(client, venue_id, group, fetch.work, found, report)
        found.tally.cases["same_title_and_authors"] = same_titles(found.records.values())
        _check(fetch, found)
        snapshot = _write(fetch, folder, found, next(iter(groups.values())))
        for leftover in fetch.work.glob("pages-*"):
            shutil.rmtree(leftover)
    return _result(snapshot, found, client.requests, time.monotonic() - started)


def _gather(
    client: OpenReview,
    venue_id: str,
    group: Mapping[str, Any] | None,
    work: Path,
    found: _Found,
    report: Report,
) -> None:
    """Every note of one venue into `found`: a record, or one more of a reason."""
    for listing in listings(client, venue_id, group):
        listed = list_all(client, listing, work / f"pages-{work_key(client, listing)}", report)
        found.total += listed.total
        found.resumed_pages += listed.resumed_pages
        for note in _newest_of_each(listed, found):
            _judge(note, venue_id, found)


def _newest_of_each(listed: Listed, found: _Found) -> list[dict[str, Any]]:
    """One note for each id: of a note listed twice, the one changed last, where it was listed first.

    A repeat that the API counts is left out as `duplicate`; one that it does not count is only a case.
    """
    newest: dict[str, dict[str, Any]] = {}
    for note in listed.notes:
        known = newest.setdefault(note["id"], note)
        if (note.get("tmdate") or 0) > (known.get("tmdate") or 0):
            newest[note["id"]] = note
    if repeats := len(listed.notes) - len(newest):
        counted = listed.total == len(listed.notes)
        (found.tally.excluded if counted else found.tally.cases)["duplicate"] += repeats
    return list(newest.values())


def _judge(note: dict[str, Any], venue_id: str, found: _Found) -> None:
    try:
        reason = excluded(note, venue_id)
        if reason is None and note["id"] in found.records:
            reason = "duplicate"
        if reason is None:
            found.records[note["id"]] = record(note, found.tally)
    except BadNote as fault:
        reason = "bad_record"
        found.bad[note["id"]] = str(fault)
    if reason:
        found.tally.excluded[reason] += 1


def _check(fetch: Fetch, found: _Found) -> None:
    accounted = len(found.records) + found.tally.excluded.total()
    if accounted != found.total:
        raise InputRefused(
            f"{accounted} notes are accounted for ({_counts(found)}), but OpenReview counts {found.total}; "
            "nothing was written"
        )
    if found.bad and not fetch.quarantine:
        lines = [f"\n  - {note_id}: {fault}" for note_id, fault in list(found.bad.items())[:RECORDS_NAMED_MAX]]
        raise BadRecords(
            f"{len(found.bad)} accepted note(s) cannot become records; fetch with --quarantine to leave them out:"
            + "".join(lines)
        )
    if not found.records:
        venues = ", ".join(fetch.venue_ids)
        raise InputRefused(
            f"none of the {found.total} notes of {venues} is an accepted paper ({_counts(found)}); expected at least "
            "one. Decisions may not be public yet, or the venue id names another track"
        )


def _write(fetch: Fetch, folder: Path, found: _Found, group: Mapping[str, Any] | None) -> Snapshot:
    facts = _provenance(fetch, group, found.tally.licences)
    # By id and not as listed: the same papers give the same file however the pages came.
    return write_snapshot(folder, facts, (found.records[key] for key in sorted(found.records, key=str.encode)))


def _provenance(fetch: Fetch, group: Mapping[str, Any] | None, licences: Counter[str]) -> Provenance:
    return provenance_of(
        name=fetch.name,
        title=fetch.title or _title(fetch.venue_ids[0], group),
        source="openreview",
        url=f"{SITE}/group?id={fetch.venue_ids[0]}",
        retrieved_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        licence=fetch.licence or _licence(licences),
    )


def _title(venue_id: str, group: Mapping[str, Any] | None) -> str:
    content = (group or {}).get("content") or {}
    value = (content.get("subtitle") or {}).get("value") if isinstance(content.get("subtitle"), dict) else None
    if isinstance(value, str) and value.strip() and value.isprintable():
        return value.strip()
    short = re.match(r"(\w+)\.cc/(\d{4})/", venue_id)
    return " ".join(short.groups()) if short else venue_id


def _licence(licences: Counter[str]) -> str:
    """The licences that the notes state, the most frequent first."""
    return "as stated per paper: " + ", ".join(
        f"{' '.join(licence.split())[:LICENCE_CHARS_MAX]} ({papers})"
        for licence, papers in licences.most_common(LICENCES_NAMED_MAX)
    )


def _counts(found: _Found) -> str:
    reasons = ", ".join(f"{reason} {notes}" for reason, notes in sorted(found.tally.excluded.items()))
    return f"papers {len(found.records)}" + (f", {reasons}" if reasons else "")


def _result(snapshot: Snapshot, found: _Found, requests: int, seconds: float) -> dict[str, Any]:
    tally = found.tally
    return {
        "name": snapshot.card.name,
        "snapshot": str(snapshot.folder),
        "sha256": snapshot.sha256,
        "papers": snapshot.card.papers,
        "count": found.total,
        "excluded": dict(sorted(tally.excluded.items())),
        "cases": {case: times for case, times in sorted(tally.cases.items()) if times},
        "venues": dict(tally.venues.most_common()),
        "bad": found.bad,
        "requests": requests,
        "resumed_pages": found.resumed_pages,
        "seconds": round(seconds, 3),
    }
