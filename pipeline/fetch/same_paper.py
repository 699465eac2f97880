"""Which rows of a list are one paper.

The same id is the same paper: there only spotlight and oral may differ, since lists repeat orals beside their posters.
icml.cc numbers events, not papers, and gives the talk about a paper another page than its poster. There title, authors,
abstract and the address on OpenReview have to tell, and a poster of its own is a paper of its own unless it is the
same in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.fetch.icml_events import Event, Kind
from pipeline.fetch.import_columns import id_in_url
from pipeline.fetch.import_rows import BadCell

Record = dict[str, Any]

PRESENTATION = ("spotlight", "oral")
FILLED = ("abstract", "authors", "keywords", "primary_area", "forum_url", "pdf_url")


@dataclass
class Papers:
    """The papers of a list so far, by id in the order of their rows. Posters have to come before talks."""

    records: dict[str, Record] = field(default_factory=dict)
    _origin: dict[str, str] = field(default_factory=dict)
    _kinds: dict[str, Kind] = field(default_factory=dict)
    _by_title: dict[str, list[str]] = field(default_factory=dict)

    def join(self, record: Record, event: Event | None, where: str, cases: Counter[str]) -> str | None:
        """Keep the record, or see that it repeats a paper: `merged` when it told something new, else `duplicate`.

        `event` is None where the list is not of icml.cc's events. None is returned for a paper of its own.

        Raises:
            BadCell: the id of another paper, or a talk that fits several papers.
        """
        known_id = self._known_id(record, event)
        if known_id is None:
            self._keep(record, event, where)
            return None
        known = self.records[known_id]
        if differ := _differences(record, known, event):
            if event is None or event.kind == self._kinds[known_id]:
                place = self._origin[known_id]
                raise BadCell(f"id {record['id']} is also in {place}, where {', '.join(differ)} differ")
            cases["talk_differs_from_its_poster"] += 1
        return _merge(record, known)

    def _keep(self, record: Record, event: Event | None, where: str) -> None:
        self.records[record["id"]] = record
        self._origin[record["id"]] = where
        if event:
            self._kinds[record["id"]] = event.kind
            self._by_title.setdefault(_plain(record["title"]), []).append(record["id"])

    def _known_id(self, record: Record, event: Event | None) -> str | None:
        if record["id"] in self.records or event is None:
            return record["id"] if record["id"] in self.records else None
        titled = self._by_title.get(_plain(record["title"]), [])
        fitting = [each for each in titled if _same_event(record, self.records[each], event, self._kinds[each])]
        if len(fitting) > 1:
            told = [each for each in fitting if _equal(record, self.records[each], "abstract")]
            if len(told) != 1:
                places = ", ".join(self._origin[each] for each in fitting)
                raise BadCell(f"id {record['id']}: title and authors fit the papers of {places}; expected one of them")
            fitting = told
        return fitting[0] if fitting else None


def same_titles(records: Iterable[Mapping[str, Any]]) -> int:
    """How many papers share title and authors with another under another id: kept, for people to judge."""
    papers = Counter((record["title"].casefold(), *record["authors"]) for record in records)
    return sum(times for times in papers.values() if times > 1)


def _same_event(record: Record, known: Record, event: Event, kind: Kind) -> bool:
    """Whether two events of one title are one paper: nothing speaks against it, and enough for it."""
    forums = [id_in_url(each["forum_url"] or "") for each in (record, known)]
    if (all(forums) and forums[0] != forums[1]) or _contrary(record, known, "authors"):
        return False
    if event.kind != kind:
        return _equal(record, known, "authors") or not _contrary(record, known, "abstract")
    return _equal(record, known, "abstract") and not event.has_id


def _differences(record: Record, known: Record, event: Event | None) -> list[str]:
    """The fields in which a repeated row says something else; an event may leave out what another one says."""
    keys = [key for key in record if key not in PRESENTATION and record[key] != known.get(key)]
    if event is None:
        return keys
    return [key for key in keys if key != "id" and _contrary(record, known, key)]


def _merge(record: Record, known: Record) -> str:
    merged = any(record[key] > known[key] for key in PRESENTATION)
    for key in PRESENTATION:
        known[key] = known[key] or record[key]
    for key in FILLED:
        known[key] = known[key] or record[key]
    return "merged" if merged else "duplicate"


def _equal(record: Record, known: Record, key: str) -> bool:
    return bool(_plain(record.get(key))) and _plain(record.get(key)) == _plain(known.get(key))


def _contrary(record: Record, known: Record, key: str) -> bool:
    found = [_plain(each.get(key)) for each in (record, known)]
    return all(found) and found[0] != found[1]


def _plain(value: Any) -> Any:
    """Without the white space that one page has and another has not."""
    return " ".join(value.split()) if isinstance(value, str) else value
