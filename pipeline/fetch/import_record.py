"""One row of a foreign list as a snapshot record, and what it says of its decision and its icml.cc event."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from pipeline.fetch import icml_events
from pipeline.fetch.decisions import ORAL, POSITION, SPOTLIGHT
from pipeline.fetch.icml_events import Event
from pipeline.fetch.import_columns import Columns, flag, id_in_url, text, texts
from pipeline.fetch.import_rows import BadCell, Row
from pipeline.records import faults_of


def record_of(row: Row, columns: Columns, cases: Counter[str]) -> dict[str, Any]:
    """The snapshot record of an accepted paper's row; counts in `cases` what was odd about it.

    Raises:
        BadCell: no id or title, a cell of another type, or a record that `load` would refuse.
    """

    def one(key: str) -> str | None:
        return text(columns.cell(row, key), key, columns, cases)

    def presented(key: str, words: re.Pattern[str]) -> bool:
        # A column of its own is all that the list has to say about it, also where its cell is absent.
        return bool(flag(columns.cell(row, key), key) if key in columns.theirs else words.search(said))

    said = " ".join([*wordings_of(row, columns, cases)[:1], kind_of(row, columns, cases)])
    record = {
        "id": _id(one, cases),
        "title": one("title"),
        "abstract": one("abstract") or "",
        "authors": texts(columns.cell(row, "authors"), "authors", columns, cases),
        "keywords": texts(columns.cell(row, "keywords"), "keywords", columns, cases),
        "primary_area": one("primary_area"),
        "paper_type": one("paper_type") or _type_of(one("track")),
        "spotlight": presented("spotlight", SPOTLIGHT),
        "oral": presented("oral", ORAL),
        "forum_url": one("forum_url"),
        "pdf_url": one("pdf_url"),
    }
    if not {"paper_type", "track"} & columns.theirs.keys():
        position = POSITION.search(said)
        record["paper_type"] = "position" if position else "regular"
        cases["paper_type_assumed_regular"] += not position
    if record["paper_type"] is None:
        # The list has the column and says nothing: `load` files the paper under Unspecified.
        del record["paper_type"]
    if record["title"] is None:
        raise BadCell(f"id {record['id']}: no title")
    if faults := faults_of(record):
        raise BadCell(f"id {record['id']}: {faults}")
    # A list in CSV whose quotes are broken may show only here.
    cases["line_end_in_title"] += "\n" in str(record["title"]).strip()
    for key in ("abstract", "primary_area", "authors", "keywords", "paper_type"):
        value = record.get(key)
        cases[f"no_{key}"] += not (value.strip() if isinstance(value, str) else value)
    return record


def _id(one: Any, cases: Counter[str]) -> str:
    """The id cell, else the id of the OpenReview address, else the number of the icml.cc event."""
    found = one("id")
    if not found or "://" in found:
        forum_url, event_url = one("forum_url"), one("event_url")
        derived = next((paper_id for url in (found, forum_url) if url and (paper_id := id_in_url(url))), None)
        where = "id_from_forum_url" if derived else "id_from_event_url"
        found = derived or (event_url.rstrip("/").rsplit("/", 1)[-1] if event_url else None)
        cases[where] += found is not None
    if not found:
        raise BadCell("no id, and no forum address to take it from")
    return str(found)


def _type_of(track: str | None) -> str | None:
    if track is None:
        return None
    if track.strip().lower() in {"main", "conference"}:
        return "regular"
    return "position" if POSITION.search(track) else track


def wordings_of(row: Row, columns: Columns, cases: Counter[str]) -> list[str]:
    """What the row says became of it, the one that decides first."""
    cells = (text(columns.cell(row, key), key, columns, cases) for key in ("decision", "status"))
    return [wording for wording in cells if wording]


def event_of(row: Row, columns: Columns) -> Event | None:
    """What icml.cc says of the row; None where the list is not of its events."""
    if "event_url" not in columns.theirs:
        return None
    return Event("talk" if is_talk(row, columns) else "poster", "id" in columns.theirs)


def is_talk(row: Row, columns: Columns) -> bool:
    """Whether the row is of an icml.cc event that is no poster."""
    return icml_events.is_talk(columns.cell(row, "event"), columns.cell(row, "event_url"))


def kind_of(row: Row, columns: Columns, cases: Counter[str]) -> str:
    """The kind of an icml.cc event; empty where the row says none."""
    kind, page = (text(columns.cell(row, key), key, columns, cases) for key in ("event", "event_url"))
    return icml_events.kind_said(kind, page)
