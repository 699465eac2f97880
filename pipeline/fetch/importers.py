"""`fetch file`: a list of papers that somebody already has -> snapshots/NAME.

Reads    one JSONL, JSON, CSV, TSV or Parquet file (import_rows.py), column by column (import_columns.py)
Writes   snapshots/NAME, whole or not at all, papers in the order of the file (icml.cc: those with a talk alone last)
Holds    papers + rows left out by reason + rows merged = rows of the file
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manifests.errors import InputRefused
from manifests.files import file_sha256
from pipeline.errors import BadRecords
from pipeline.fetch.decisions import accepts, refusal
from pipeline.fetch.icml_events import presents_paper
from pipeline.fetch.import_columns import Columns, columns_of
from pipeline.fetch.import_record import event_of, is_talk, kind_of, record_of, wordings_of
from pipeline.fetch.import_rows import BadCell, BadRow, Format, Row, read_rows
from pipeline.fetch.same_paper import Papers, same_titles
from pipeline.progress import Report, silent
from pipeline.snapshot import Provenance, Snapshot
from pipeline.snapshot_write import free_folder, provenance_of, write_snapshot

FAULTS_NAMED_MAX = 20


@dataclass(frozen=True)
class Import:
    """What to import and where to put it.

    `mapping`: our key -> their column or template; an empty column leaves the field out. `separator`: between the
    authors and keywords that stand in one text (default: the first of `;`, `|`, `,` that the cell uses). `decoded`:
    keys whose texts hold HTML entities (default: authors in one text). `quarantine` leaves bad rows out.
    """

    path: Path
    name: str
    snapshots: Path
    mapping: Mapping[str, str] = field(default_factory=dict)
    form: Format | None = None
    separator: str | None = None
    decoded: frozenset[str] | None = None
    title: str = ""
    url: str = ""
    licence: str = ""
    quarantine: bool = False


class UnknownDecision(BadCell):
    """A decision of which nobody can tell whether it accepts: neither a paper nor left out unseen."""

    reason = "unknown_decision"


@dataclass
class _Found:
    papers: Papers = field(default_factory=Papers)
    excluded: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    bad: dict[str, str] = field(default_factory=dict)
    lists_refused: bool = False


def import_file(task: Import, *, report: Report = silent) -> dict[str, Any]:
    """Write the snapshot of a list file; return what became of every row.

    The result: name, snapshot (folder), sha256 (papers file), papers, rows, excluded {reason: rows}, cases {case:
    times}, statuses {wording: rows}, columns {our key: their column}, unused_columns, bad {row: reason}, seconds.

    Raises:
        InputRefused: the snapshot exists, the file is no list of papers, the mapping does not fit, or no paper is left.
        BadRecords: rows that cannot become records, without `quarantine`.
        OSError: the machine refused a write.
    """
    started = time.monotonic()
    folder = free_folder(task.snapshots, task.name)
    rows = read_rows(task.path, task.form)
    good = [row for row in rows if isinstance(row, Row)]
    if not good:
        fault = next((f" ({row.where}: {row.reason})" for row in rows if isinstance(row, BadRow)), "")
        raise InputRefused(f"{task.path} holds no row that can be read{fault}; expected at least one paper")
    columns = columns_of(good, task.mapping, task.separator, task.decoded)
    # A talk joins its poster, whose address is the paper's; so the posters come first.
    rows.sort(key=lambda row: isinstance(row, Row) and is_talk(row, columns))
    found = _Found(lists_refused=_lists_refused(good, columns))
    for number, row in enumerate(rows, 1):
        _take(row, columns, found)
        if number % 500 == 0 or number == len(rows):
            report(number, len(rows), "")
    _check(task, found, len(rows))
    found.cases["same_title_and_authors"] = same_titles(found.papers.records.values())
    snapshot = write_snapshot(folder, _provenance(task), found.papers.records.values())
    return _result(snapshot, found, columns, len(rows), time.monotonic() - started)


def _lists_refused(rows: Sequence[Row], columns: Columns) -> bool:
    """Whether the list holds papers that were not accepted, too."""
    cells = (columns.cell(row, key) for row in rows for key in ("decision", "status"))
    return any(refusal(cell) for cell in cells if isinstance(cell, str))


def _take(row: Row | BadRow, columns: Columns, found: _Found) -> None:
    """One row into `found`: a record, part of one, or one more of a reason."""
    if isinstance(row, BadRow):
        found.excluded["bad_row"] += 1
        found.bad[row.where] = row.reason
        return
    # A row that turns out bad leaves no trace in the counts of cases.
    cases: Counter[str] = Counter()
    try:
        reason = _left_out(row, columns, found, cases) or found.papers.join(
            record_of(row, columns, cases), event_of(row, columns), row.where, cases
        )
    except BadCell as fault:
        reason = fault.reason
        found.bad[row.where] = str(fault)
    else:
        found.cases.update(cases)
    if reason:
        found.excluded[reason] += 1


def _left_out(row: Row, columns: Columns, found: _Found, cases: Counter[str]) -> str | None:
    event = kind_of(row, columns, cases)
    if event and not presents_paper(event):
        return "not_a_paper"
    if not {"decision", "status"} & columns.theirs.keys():
        return None
    wordings = wordings_of(row, columns, cases)
    wording = next(iter(wordings), None)
    found.statuses[wording or "(blank)"] += 1
    if wording is None:
        # In a list of accepted papers alone nothing said is nothing against it; an event stands in the programme.
        return "no_decision" if found.lists_refused and not event else None
    if reason := refusal(wording):
        return reason
    if not accepts(wording):
        raise UnknownDecision(f"decision {wording!r:.80} is none that is known")
    cases["status_says_otherwise"] += any(map(refusal, wordings))
    return None


def _check(task: Import, found: _Found, rows: int) -> None:
    accounted = len(found.papers.records) + found.excluded.total()
    if accounted != rows:
        raise InputRefused(f"{accounted} rows are accounted for, the file has {rows}; nothing was written")
    if found.bad and not task.quarantine:
        raise BadRecords(
            f"{task.path}: {len(found.bad)} row(s) cannot become records; correct them, or leave them out with "
            f"--quarantine{_take_all(found)}:{_named(found.bad)}"
        )
    if not found.papers.records:
        reasons = ", ".join(f"{reason} {times}" for reason, times in sorted(found.excluded.items()))
        raise InputRefused(f"{task.path}: no paper is left of {rows} rows ({reasons}); expected at least one")


def _take_all(found: _Found) -> str:
    unknown = found.excluded[UnknownDecision.reason]
    return f" ({unknown} for its decision: --map status= takes every row, whatever its decision)" if unknown else ""


def _named(bad: Mapping[str, str]) -> str:
    """A line for each fault: the first row that has it, and how many more do."""
    rows: dict[str, list[str]] = {}
    for where, fault in bad.items():
        rows.setdefault(fault, []).append(where)
    lines = [
        f"\n  - {first}{f' and {len(more)} more' if more else ''}: {fault}" for fault, (first, *more) in rows.items()
    ]
    left = f"\n  - and {len(lines) - FAULTS_NAMED_MAX} faults more" if len(lines) > FAULTS_NAMED_MAX else ""
    return "".join(lines[:FAULTS_NAMED_MAX]) + left


def _provenance(task: Import) -> Provenance:
    return provenance_of(
        name=task.name,
        title=task.title or task.name,
        # The folder is this machine's; the name and the digest are the file's.
        source=f"file {task.path.name} sha256 {file_sha256(task.path)}",
        url=task.url,
        retrieved_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        licence=task.licence or "not stated",
    )


def _result(snapshot: Snapshot, found: _Found, columns: Columns, rows: int, seconds: float) -> dict[str, Any]:
    return {
        "name": snapshot.card.name,
        "snapshot": str(snapshot.folder),
        "sha256": snapshot.sha256,
        "papers": snapshot.card.papers,
        "rows": rows,
        "excluded": dict(sorted(found.excluded.items())),
        "cases": {case: times for case, times in sorted(found.cases.items()) if times},
        "statuses": dict(found.statuses.most_common()),
        "columns": dict(columns.theirs),
        "unused_columns": list(columns.unused),
        "bad": found.bad,
        "seconds": round(seconds, 3),
    }
