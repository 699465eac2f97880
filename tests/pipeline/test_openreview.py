from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manifests.errors import InputRefused
from pipeline.errors import BadRecords, SourceBusy, SourceRefused, WorkFolderHeld
from pipeline.fetch.openreview import Fetch, fetch_openreview
from pipeline.fetch.openreview_access import access_from
from pipeline.fetch.openreview_api import Limits, OpenReview
from pipeline.fetch.openreview_notes import Tally, excluded, record
from pipeline.snapshot import open_snapshot
from tests.pipeline.openreview_loopback import (
    PASSWORD,
    TOKEN,
    USERNAME,
    VENUE,
    Loopback,
    note_id,
    running,
    v1_group,
    v1_note,
    v2_group,
    v2_note,
)

REPO = Path(__file__).parents[2]
QUICK = Limits(requests_per_minute=1_000_000, attempts=4, wait_s_max=60)
V1_VENUE = "NeurIPS.cc/2022/Conference"


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    with running(Loopback()) as server:
        server.groups[VENUE] = v2_group()
        yield server


def fetched(loopback: Loopback, tmp_path: Path, *venues: str, login: bool = False, **options: Any) -> dict[str, Any]:
    limits = options.pop("limits", QUICK)
    waits = options.pop("waits", [])
    report = options.pop("report", lambda *_: None)
    fetch = Fetch(venues or (VENUE,), "icml2026", tmp_path / "snapshots", tmp_path / "work", **options)
    access = access_from(loopback.environment(login=login))
    return fetch_openreview(fetch, access, limits, report=report, sleep=waits.append)


def records(tmp_path: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for _, line in open_snapshot(tmp_path / "snapshots" / "icml2026").lines()]
    return {record["id"]: record for record in lines}


def accounted(result: dict[str, Any]) -> int:
    return int(result["papers"] + sum(result["excluded"].values()))


def whole_venue() -> list[dict[str, Any]]:
    """2,001 notes with everything a venue has shown."""
    track = "ICML.cc/2026/Position_Paper_Track"
    odd = [
        v2_note(1, venue="ICML 2026 spotlight"),
        v2_note(2, venue="ICML 2026 oral"),
        v2_note(3, venue="ICML 2026 spotlight, oral"),
        v2_note(4, venue="ICML 2025 spotlightposter"),
        v2_note(5, venue="ICML 2026 Position Paper Track oral", venueid=track),
        v2_note(6, venue="ICML 2026 Position Paper Track regular"),
        v2_note(7, title="Position: not a position paper at all"),
        v2_note(8, abstract=...),
        v2_note(9, abstract=None),
        v2_note(10, abstract="  \n"),
        v2_note(11, keywords=None, primary_area=None, pdf=None),
        v2_note(12, title={"value": "Twice wrapped"}, authors={"value": [{"value": "Ada 12"}]}),
        v2_note(13, authors=[{"username": "~Ada_1", "fullname": "Ada 13"}, None, ""]),
        v2_note(14, venue="Submitted to ICML 2026"),
        v2_note(15, venue="Submitted to ICML 2026", venueid=f"{VENUE}/Submission"),
        v2_note(16, venue="Submitted to ICML 2026", venueid=f"{VENUE}/Rejected_Submission"),
        v2_note(17, venue="ICML 2026 Conference Withdrawn Submission", venueid=f"{VENUE}/Withdrawn_Submission"),
        v2_note(18, venue="ICML 2026 Desk Rejected Submission", venueid=f"{VENUE}/Desk_Rejected_Submission"),
        v2_note(19, venue=..., venueid=...),
        v2_note(20, venue="ICML 2026 Workshop AI4X", venueid="ICML.cc/2026/Workshop/AI4X"),
    ]
    return odd + [v2_note(number) for number in range(21, 2_002)]


WHOLE_EXCLUDED = {
    "desk_rejected": 1,
    "no_decision": 1,
    "other_venue": 1,
    "rejected": 1,
    "submitted": 2,
    "withdrawn": 1,
}


def test_every_note_of_a_real_shaped_venue_becomes_a_paper_or_is_counted_by_its_reason(
    loopback: Loopback, tmp_path: Path
) -> None:
    loopback.notes["v2"] = whole_venue()

    result = fetched(loopback, tmp_path)

    assert result["excluded"] == WHOLE_EXCLUDED
    assert result["count"] == 2_001 == accounted(result)
    assert result["papers"] == len(records(tmp_path)) == 1_994
    assert result["venues"]["ICML 2026 regular"] == 1_988
    assert loopback.pages == 4
    assert not list((tmp_path / "work").glob("pages-*"))


def test_venue_strings_decide_spotlight_oral_and_position(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = whole_venue()

    fetched(loopback, tmp_path)

    papers = records(tmp_path)
    flags = {
        number: (paper["paper_type"], paper["spotlight"], paper["oral"])
        for number in range(1, 8)
        for paper in [papers[note_id(number)]]
    }
    assert flags == {
        1: ("regular", True, False),
        2: ("regular", False, True),
        3: ("regular", True, True),
        4: ("regular", True, False),
        5: ("position", False, True),
        6: ("position", False, False),
        7: ("regular", False, False),
    }


@pytest.mark.parametrize(
    ("venue", "venueid", "paper_type"),
    [
        ("ICML 2026 Position Oral", VENUE, "position"),
        ("ICML 2026 position spotlight poster", VENUE, "position"),
        ("ICML 2026 oral (Position)", VENUE, "position"),
        ("ICML 2026 Position", VENUE, "position"),
        ("ICML 2026 poster", "ICML.cc/2026/Position_Track", "position"),
        ("ICML 2026 Composition oral", VENUE, "regular"),
        ("ICML 2026 Positional oral", VENUE, "regular"),
    ],
)
def test_a_position_paper_is_told_by_the_word_in_its_venue_or_its_track(
    venue: str, venueid: str, paper_type: str
) -> None:
    assert record(v2_note(1, venue=venue, venueid=venueid), Tally())["paper_type"] == paper_type


def test_missing_null_and_doubly_nested_values_follow_one_rule_each_and_are_counted(
    loopback: Loopback, tmp_path: Path
) -> None:
    loopback.notes["v2"] = whole_venue()

    result = fetched(loopback, tmp_path)

    papers = records(tmp_path)
    assert [papers[note_id(number)]["abstract"] for number in (8, 9, 10)] == ["", "", "  \n"]
    assert papers[note_id(12)]["title"] == "Twice wrapped"
    assert papers[note_id(12)]["authors"] == ["Ada 12"]
    assert papers[note_id(13)]["authors"] == ["Ada 13"]
    assert papers[note_id(11)] == {
        "id": note_id(11),
        "title": "Paper 11 on the Rényi gap",
        "abstract": "We study gap 11 & its $\\ell_\\infty$ friends.",
        "authors": ["Ada 11", "Fang DONG(董方)"],
        "keywords": [],
        "primary_area": None,
        "paper_type": "regular",
        "spotlight": False,
        "oral": False,
        "forum_url": f"https://openreview.net/forum?id={note_id(11)}",
        "pdf_url": None,
    }
    assert papers[note_id(21)]["pdf_url"] == f"https://openreview.net/pdf/{21:040x}.pdf"
    assert result["cases"] == {
        "blank_authors_entry": 2,
        "missing_abstract": 3,
        "nested_value": 2,
        "no_area": 1,
        "no_keywords": 1,
        "null_value": 4,
    }


def test_the_card_names_the_venue_its_page_and_the_licences(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(1), v2_note(2), v2_note(3) | {"license": None}]

    fetched(loopback, tmp_path)

    card = open_snapshot(tmp_path / "snapshots" / "icml2026").card
    assert card.title == "ICML 2026"
    assert card.url == f"https://openreview.net/group?id={VENUE}"
    assert card.licence == "as stated per paper: CC BY 4.0 (2), none stated (1)"


@pytest.mark.parametrize("inserted", ["0000000000", "zzzzzzzzzz"])
def test_a_note_inserted_between_pages_is_in_the_snapshot_once(
    loopback: Loopback, tmp_path: Path, inserted: str
) -> None:
    loopback.notes["v2"] = [v2_note(number) for number in range(2_001)]
    late = v2_note(9_999) | {"id": inserted, "forum": inserted}

    def insert(pages: int) -> None:
        if pages == 1:
            loopback.notes["v2"].append(late)

    loopback.before_page = insert

    result = fetched(loopback, tmp_path)

    assert result["papers"] == result["count"] == 2_002
    assert inserted in records(tmp_path)


def test_a_note_removed_between_pages_is_not_in_the_snapshot(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(number) for number in range(1_500)]
    first = min(loopback.notes["v2"], key=lambda note: note["id"])
    loopback.before_page = lambda pages: loopback.notes["v2"].remove(first) if pages == 1 else None

    result = fetched(loopback, tmp_path)

    assert result["papers"] == result["count"] == 1_499
    assert first["id"] not in records(tmp_path)


@pytest.mark.parametrize(
    ("counted_extra", "excluded", "cases"), [(0, {"duplicate": 1}, {}), (-1, {}, {"duplicate": 1})]
)
def test_a_note_listed_twice_is_one_paper_and_one_counted_duplicate(
    loopback: Loopback, tmp_path: Path, counted_extra: int, excluded: dict[str, int], cases: dict[str, int]
) -> None:
    loopback.notes["v2"] = [v2_note(number) for number in range(10)]
    newer = v2_note(4, title="The revised title") | {"tmdate": 1_999_052_070_527}
    loopback.notes["v2"].append(newer)
    loopback.counted_extra = counted_extra

    result = fetched(loopback, tmp_path)

    assert result["papers"] == 10
    assert result["excluded"] == excluded
    assert result["cases"] == cases
    assert accounted(result) == result["count"]
    assert records(tmp_path)[note_id(4)]["title"] == "The revised title"


def test_a_host_that_does_not_know_after_is_read_by_offset(loopback: Loopback, tmp_path: Path) -> None:
    loopback.knows_after = False
    loopback.notes["v2"] = [v2_note(number) for number in range(2_001)]

    result = fetched(loopback, tmp_path)

    assert result["papers"] == 2_001


def test_an_insert_that_makes_an_offset_skip_a_note_is_noticed_though_the_rows_add_up(
    loopback: Loopback, tmp_path: Path
) -> None:
    """The insert moves every note by one: page two repeats the last of page one and as many rows come as are counted."""
    loopback.knows_after = False
    loopback.notes["v2"] = [v2_note(number) for number in range(1_500)]
    late = v2_note(9_999) | {"id": "0000000000", "forum": "0000000000"}
    # Page one, the page that shows that `after` is unknown, then the first page by offset.
    loopback.before_page = lambda pages: loopback.notes["v2"].append(late) if pages == 2 else None

    result = fetched(loopback, tmp_path)

    assert result["papers"] == result["count"] == 1_501
    assert late["id"] in records(tmp_path)


def test_a_host_that_repeats_its_first_page_for_ever_is_an_error(loopback: Loopback, tmp_path: Path) -> None:
    loopback.knows_after = loopback.knows_offset = False
    loopback.notes["v2"] = [v2_note(number) for number in range(1_001)]

    with pytest.raises(InputRefused, match=r"counts 1001 notes .* but lists 1000 distinct ids"):
        fetched(loopback, tmp_path)

    assert not (tmp_path / "snapshots").exists()


def test_a_count_that_stays_different_stops_and_names_the_ids(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(number) for number in range(5)]
    loopback.counted_extra = 1
    flickering = loopback.notes["v2"][2]

    def flicker(pages: int) -> None:
        # Gone in the second of three readings (two pages each: the notes, then the empty one).
        loopback.notes["v2"] = [note for note in loopback.notes["v2"] if note is not flickering or pages // 2 != 1]
        if pages // 2 == 2:
            loopback.notes["v2"].append(flickering)

    loopback.before_page = flicker

    with pytest.raises(InputRefused, match=f"only in the last reading: {flickering['id']}"):
        fetched(loopback, tmp_path)

    assert not (tmp_path / "snapshots").exists()


def test_zero_notes_is_an_error_that_says_what_was_asked(loopback: Loopback, tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match=f"lists no note of {VENUE}.*invitation={VENUE}/-/Submission") as error:
        fetched(loopback, tmp_path)

    assert error.value.exit_code == 3


def test_zero_accepted_papers_is_an_error_with_the_counts(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(number, venue="Submitted to ICML 2026") for number in range(3)]

    with pytest.raises(InputRefused, match=r"none of the 3 notes .*papers 0, submitted 3"):
        fetched(loopback, tmp_path)

    assert not (tmp_path / "snapshots").exists()


def test_a_venue_without_its_invitation_is_listed_by_the_outcomes_of_its_submissions(
    loopback: Loopback, tmp_path: Path
) -> None:
    loopback.notes["v2"] = [
        v2_note(number, venueid=VENUE + outcome) | {"invitations": ["ICML.cc/2026/Conference/-/Edit"]}
        for number, outcome in enumerate(["", "", "/Rejected_Submission", "/Withdrawn_Submission"])
    ]

    result = fetched(loopback, tmp_path)

    assert result["papers"] == 2
    assert result["excluded"] == {"rejected": 1, "withdrawn": 1}
    assert result["count"] == 4


def test_two_tracks_become_one_snapshot(loopback: Loopback, tmp_path: Path) -> None:
    track = "ICML.cc/2026/Position_Paper_Track"
    loopback.groups[track] = v2_group(track)
    position = v2_note(2, venue="ICML 2026 Position Paper Track spotlight", venueid=track)
    loopback.notes["v2"] = [v2_note(1), position | {"invitations": [f"{track}/-/Submission"]}]

    result = fetched(loopback, tmp_path, VENUE, track)

    assert result["papers"] == result["count"] == 2
    assert records(tmp_path)[note_id(2)]["paper_type"] == "position"


def test_a_venue_of_api_v1_is_read_from_its_own_host_with_bare_values(loopback: Loopback, tmp_path: Path) -> None:
    loopback.groups[V1_VENUE] = v1_group(V1_VENUE)
    loopback.notes["v1"] = [v1_note(number) for number in range(1_200)]
    loopback.notes["v1"] += [
        v1_note(1_200, venue="NeurIPS 2022 Submitted"),
        v1_note(1_201, venue="Submitted to NeurIPS 2022"),
        v1_note(1_202, venue=..., venueid=...) | {"invitation": f"{V1_VENUE}/-/Withdrawn_Submission"},
        v1_note(1_203, venue="", venueid="") | {"invitation": f"{V1_VENUE}/-/Desk_Rejected_Submission"},
        v1_note(1_204, abstract=None),
        v1_note(1_205, venue="NeurIPS 2022 notable top 5%"),
    ]

    result = fetched(loopback, tmp_path, V1_VENUE)

    assert result["excluded"] == {"desk_rejected": 1, "submitted": 2, "withdrawn": 1}
    assert result["count"] == 1_206 == accounted(result)
    papers = records(tmp_path)
    assert papers[note_id(7)]["authors"] == ["Emmy 7"]
    assert papers[note_id(1_204)]["abstract"] == ""
    assert papers[note_id(1_205)]["oral"]
    assert {path for path, _ in loopback.requests if path.endswith("/notes")} == {"/v1/notes"}


def test_a_venue_without_a_group_is_looked_for_in_both_versions(loopback: Loopback, tmp_path: Path) -> None:
    withdrawn = v1_note(2, venue=..., venueid=...) | {"invitation": f"{V1_VENUE}/-/Withdrawn_Submission"}
    loopback.notes["v1"] = [v1_note(1), withdrawn]

    result = fetched(loopback, tmp_path, V1_VENUE)

    assert result["papers"] == 1
    assert result["excluded"] == {"withdrawn": 1}


def test_one_host_for_both_versions_gives_notes_of_either_shape(loopback: Loopback, tmp_path: Path) -> None:
    mixed = v1_note(1, venue="ICML 2026 oral", venueid=VENUE) | {"invitations": [f"{VENUE}/-/Submission"]}
    loopback.notes["v2"] = [mixed, v2_note(2)]

    result = fetched(loopback, tmp_path)

    assert result["papers"] == 2
    assert records(tmp_path)[note_id(1)]["oral"]


def test_without_a_base_url_of_v1_the_public_host_is_not_asked(loopback: Loopback, tmp_path: Path) -> None:
    loopback.groups[V1_VENUE] = v1_group(V1_VENUE)
    access = access_from({"OPENREVIEW_API_BASEURL_V2": f"{loopback.url}/v2"})
    fetch = Fetch([V1_VENUE], "old", tmp_path / "snapshots", tmp_path / "work")

    with pytest.raises(InputRefused, match="lists no note"):
        fetch_openreview(fetch, access, QUICK)


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        (v2_note(1), None),
        (v2_note(1, venueid=...), None),
        (v2_note(1, venue=...), None),
        (v2_note(1, venue=None, venueid=None), "no_decision"),
        (v2_note(1) | {"ddate": 1_700_000_000_000}, "deleted"),
        (v2_note(1) | {"forum": "another000"}, "not_a_submission"),
        (v2_note(1, venueid=f"{VENUE}/Submission13536"), "submitted"),
        (v2_note(1, venueid=f"{VENUE}/Desk_Rejected_Paper"), "desk_rejected"),
        (v2_note(1, venueid="TMLR"), "other_venue"),
        (v2_note(1, venue="Retracted by Authors"), "rejected"),
        (v2_note(1, venue="ICML 2026 Conference Desk-Rejected"), "desk_rejected"),
    ],
)
def test_what_became_of_a_note_is_decided_by_its_venueid_then_by_its_venue(
    note: dict[str, Any], reason: str | None
) -> None:
    assert excluded(note, VENUE) == reason


def test_an_accepted_note_without_a_title_stops_and_is_named(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(1), v2_note(2, title=None), v2_note(3, authors="7; 8", keywords={"a": 1})]

    with pytest.raises(BadRecords, match=rf"(?s)2 accepted.*{note_id(2)}: no title.*{note_id(3)}: keywords"):
        fetched(loopback, tmp_path)

    assert not (tmp_path / "snapshots").exists()


def test_quarantine_leaves_bad_notes_out_and_counts_them(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(1), v2_note(2, title=None)]

    result = fetched(loopback, tmp_path, quarantine=True)

    assert result["excluded"] == {"bad_record": 1}
    assert list(result["bad"]) == [note_id(2)]
    assert accounted(result) == result["count"] == 2


def test_an_existing_snapshot_is_refused_before_anything_is_asked(loopback: Loopback, tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "icml2026").mkdir(parents=True)

    with pytest.raises(InputRefused, match="never changed"):
        fetched(loopback, tmp_path)

    assert not loopback.requests


def test_the_same_papers_give_the_same_file_however_the_pages_came(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(number) for number in range(1_100)]
    first = fetched(loopback, tmp_path / "one")
    loopback.knows_after = False
    loopback.notes["v2"].reverse()

    second = fetched(loopback, tmp_path / "two")

    assert first["sha256"] == second["sha256"]


FETCH_IN_A_CHILD = """
import os, sys
from pathlib import Path
from pipeline.fetch.openreview import Fetch, fetch_openreview
from pipeline.fetch.openreview_access import access_from
from pipeline.fetch.openreview_api import Limits, OpenReview

root = Path(sys.argv[1])
fetch = Fetch(["ICML.cc/2026/Conference"], "icml2026", root / "snapshots", root / "work")
fetch_openreview(fetch, access_from(os.environ), Limits(requests_per_minute=1_000_000))
"""


def test_killed_between_pages_the_next_run_takes_up_the_saved_ones(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = whole_venue()
    reached, released = threading.Event(), threading.Event()

    def stall(pages: int) -> None:
        if pages == 2:
            reached.set()
            released.wait(60)

    loopback.before_page = stall
    command = [sys.executable, "-c", FETCH_IN_A_CHILD, str(tmp_path)]
    child = subprocess.Popen(command, cwd=REPO, env={**os.environ, **loopback.environment()})
    assert reached.wait(60)
    child.kill()
    assert child.wait(60) == -9
    released.set()
    loopback.before_page = lambda pages: None
    loopback.requests.clear()

    result = fetched(loopback, tmp_path)

    assert result["resumed_pages"] == 2
    assert result["excluded"] == WHOLE_EXCLUDED
    assert accounted(result) == result["count"] == 2_001
    asked = [query for path, query in loopback.requests if path == "/v2/notes" and query["limit"] == "1000"]
    assert ["after" in query for query in asked] == [True, True]


def test_pages_older_than_a_day_are_asked_for_again(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(number) for number in range(1_500)]
    loopback.faults = [None, (403, {}, {"name": "ForbiddenError", "message": "no"})]
    with pytest.raises(SourceRefused):
        fetched(loopback, tmp_path)
    (saved,) = (tmp_path / "work").glob("pages-*/pass-1/page-*.json")
    page = json.loads(saved.read_text())
    saved.write_text(json.dumps(page | {"asked_at": page["asked_at"] - 25 * 3600}))

    result = fetched(loopback, tmp_path)

    assert result["resumed_pages"] == 0
    assert result["papers"] == 1_500


def test_a_damaged_page_is_asked_for_again(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(number) for number in range(1_500)]
    loopback.faults = [None, (403, {}, {"name": "ForbiddenError", "message": "no"})]
    with pytest.raises(SourceRefused):
        fetched(loopback, tmp_path)
    (saved,) = (tmp_path / "work").glob("pages-*/pass-1/page-*.json")
    saved.write_bytes(saved.read_bytes()[:1000])

    assert fetched(loopback, tmp_path)["papers"] == 1_500


def test_a_busy_server_is_waited_for_as_long_as_it_asks(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(1)]
    busy = {"name": "RateLimitError", "message": "Too many requests"}
    loopback.faults = [(429, {"Retry-After": "7"}, busy), (429, {"Retry-After": "soon", "ratelimit-reset": "11"}, busy)]
    waits: list[float] = []
    notes: list[str] = []

    result = fetched(loopback, tmp_path, waits=waits, report=lambda done, total, note: notes.append(note))

    assert [wait for wait in waits if wait > 1] == [7, 11]
    assert any("waiting 7 s" in note and "RateLimitError" in note for note in notes)
    assert result["papers"] == 1


def test_a_wait_of_a_day_stops_at_once_and_the_saved_pages_stay(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(number) for number in range(1_001)]
    loopback.faults = [None, (429, {"Retry-After": "86400"}, {"name": "RateLimitError"})]
    waits: list[float] = []

    asked = r"HTTP 429 RateLimitError; it asks to wait 24 h .*the same command goes on"
    with pytest.raises(SourceBusy, match=asked) as error:
        fetched(loopback, tmp_path, waits=waits)

    assert error.value.exit_code == 4
    assert error.value.retry_after_s == 86_400
    assert not [wait for wait in waits if wait > 1]
    assert fetched(loopback, tmp_path)["resumed_pages"] == 1


@pytest.mark.parametrize("fault", ["cut", "truncated", (500, {}, {"message": "oops"}), (502, {}, b"<html>bad gateway")])
def test_passing_faults_are_retried(loopback: Loopback, tmp_path: Path, fault: Any) -> None:
    loopback.notes["v2"] = [v2_note(number) for number in range(1_001)]
    loopback.faults = [fault, fault, None, fault]

    assert fetched(loopback, tmp_path)["papers"] == 1_001


def test_a_server_that_stays_broken_is_asked_a_bounded_number_of_times(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(1)]
    loopback.faults = ["truncated"] * 100

    with pytest.raises(SourceBusy, match=r"not whole JSON.*; tried 4 times.*the same command goes on"):
        fetched(loopback, tmp_path)

    assert len(loopback.faults) == 100 - QUICK.attempts


@pytest.mark.parametrize(("asked", "said"), [("301", "5 min 1 s"), ("5400", "1 h 30 min"), ("90000", "25 h")])
def test_a_wait_that_is_too_long_is_said_in_hours_minutes_and_seconds(
    loopback: Loopback, tmp_path: Path, asked: str, said: str
) -> None:
    loopback.notes["v2"] = [v2_note(1)]
    loopback.faults = [(429, {"Retry-After": asked}, b"\x1bslow\n")]

    with pytest.raises(SourceBusy, match=f"HTTP 429 slow; it asks to wait {said} "):
        fetched(loopback, tmp_path)


def test_no_server_at_all_ends_with_what_failed(loopback: Loopback, tmp_path: Path) -> None:
    access = access_from({"OPENREVIEW_BASEURL": "http://127.0.0.1:9"})
    fetch = Fetch([VENUE], "icml2026", tmp_path / "snapshots", tmp_path / "work")

    with pytest.raises(SourceBusy, match=r"127.0.0.1:9"):
        fetch_openreview(fetch, access, QUICK, sleep=lambda _: None)


def test_requests_are_spaced(loopback: Loopback) -> None:
    waits: list[float] = []
    access = access_from(loopback.environment())
    client = OpenReview(access, Limits(requests_per_minute=30), sleep=waits.append, clock=lambda: 0.0)

    for _ in range(3):
        client.group(VENUE)

    # The clock stands still, so every request waits for all before it.
    assert waits == [2.0, 4.0]


def test_a_login_is_sent_once_and_opens_what_is_closed_to_others(loopback: Loopback, tmp_path: Path) -> None:
    loopback.login_required = True
    loopback.notes["v2"] = [v2_note(1)]

    assert fetched(loopback, tmp_path, login=True)["papers"] == 1
    assert loopback.logins == 1


def test_without_a_login_the_challenge_says_which_variables_to_set(loopback: Loopback, tmp_path: Path) -> None:
    loopback.login_required = True

    with pytest.raises(SourceRefused, match=r"403 ChallengeRequiredError.*set OPENREVIEW_USERNAME") as error:
        fetched(loopback, tmp_path)

    assert error.value.exit_code == 4


def test_a_browser_check_instead_of_notes_is_no_empty_list(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(1)]
    loopback.faults = [(200, {"Content-Type": "text/html"}, b"<!doctype html><title>Verifying your browser</title>")]

    with pytest.raises(SourceRefused, match=r"checks the browser.*OPENREVIEW_USERNAME"):
        fetched(loopback, tmp_path)


def test_a_wrong_login_is_refused_without_repeating_it_or_saying_it(loopback: Loopback, tmp_path: Path) -> None:
    environment = loopback.environment() | {"OPENREVIEW_USERNAME": USERNAME, "OPENREVIEW_PASSWORD": "wrong secret"}
    fetch = Fetch([VENUE], "icml2026", tmp_path / "snapshots", tmp_path / "work")
    access = access_from(environment)

    with pytest.raises(SourceRefused, match=r"refused the login.*InvalidLogin") as error:
        fetch_openreview(fetch, access, QUICK)

    assert loopback.logins == 1
    assert "wrong secret" not in str(error.value) + repr(access)


def test_an_expired_token_is_renewed(loopback: Loopback, tmp_path: Path) -> None:
    loopback.login_required = True
    loopback.notes["v2"] = [v2_note(number) for number in range(1_001)]

    loopback.faults = [None, (401, {}, {"name": "TokenExpiredError", "message": "Token has expired"})]

    assert fetched(loopback, tmp_path, login=True)["papers"] == 1_001
    assert loopback.logins == 2


def test_a_login_never_reaches_the_work_folder_or_the_snapshot(loopback: Loopback, tmp_path: Path) -> None:
    loopback.login_required = True
    loopback.notes["v2"] = [v2_note(number) for number in range(1_001)]
    loopback.faults = [None, (429, {"Retry-After": "86400"}, {})]
    with pytest.raises(SourceBusy):
        fetched(loopback, tmp_path, login=True)
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    fetched(loopback, tmp_path, login=True)
    left += gzip.decompress((tmp_path / "snapshots" / "icml2026" / "papers.jsonl.gz").read_bytes())

    assert left
    assert PASSWORD.encode() not in left
    assert TOKEN.encode() not in left


def test_a_redirect_is_not_followed(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(1)]
    loopback.faults = [(302, {"Location": f"{loopback.url}/v1/notes"}, {})]

    with pytest.raises(SourceRefused, match="HTTP 302"):
        fetched(loopback, tmp_path)

    assert "/v1/notes" not in [path for path, _ in loopback.requests]


def test_a_title_that_the_card_cannot_hold_is_refused_before_anything_is_asked(
    loopback: Loopback, tmp_path: Path
) -> None:
    with pytest.raises(InputRefused, match="title 'two"):
        fetched(loopback, tmp_path, title="two\nlines")

    assert not loopback.requests


def test_the_base_url_of_the_wrong_version_is_an_error(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(1)]
    access = access_from({"OPENREVIEW_BASEURL": f"{loopback.url}/v1"})
    fetch = Fetch([VENUE], "icml2026", tmp_path / "snapshots", tmp_path / "work")

    with pytest.raises(InputRefused, match="lists no note"):
        fetch_openreview(fetch, access, QUICK)


def test_two_fetches_do_not_share_a_work_folder(loopback: Loopback, tmp_path: Path) -> None:
    loopback.notes["v2"] = [v2_note(1)]
    refused: list[WorkFolderHeld] = []

    def fetch_again(pages: int) -> None:
        if pages == 0:
            with pytest.raises(WorkFolderHeld) as error:
                fetched(loopback, tmp_path)
            refused.append(error.value)

    loopback.before_page = fetch_again

    assert fetched(loopback, tmp_path)["papers"] == 1
    assert refused[0].exit_code == 7


@pytest.mark.parametrize(
    ("environment", "fault"),
    [
        ({"OPENREVIEW_USERNAME": "a"}, "OPENREVIEW_PASSWORD is not set"),
        ({"OPENREVIEW_BASEURL": "api2.openreview.net"}, "must look like"),
        ({"OPENREVIEW_BASEURL": "https://me:secret@api2.openreview.net"}, "without a login"),
        (
            {"OPENREVIEW_BASEURL": "http://example.org", "OPENREVIEW_USERNAME": "a", "OPENREVIEW_PASSWORD": "b"},
            "plain HTTP",
        ),
    ],
)
def test_an_environment_that_cannot_be_meant_is_refused(environment: dict[str, str], fault: str) -> None:
    with pytest.raises(SourceRefused, match=fault) as error:
        access_from(environment)

    assert "secret" not in str(error.value)


def test_without_settings_the_public_hosts_are_asked() -> None:
    access = access_from({})

    assert (access.v2, access.v1) == ("https://api2.openreview.net", "https://api.openreview.net")
