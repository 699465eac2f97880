"""A judged set in BEIR layout: corpus.jsonl, queries.jsonl, qrels/test.tsv, each plain or gzip.

Its documents become records of a snapshot under ids of our own (`d0000001` ...), given in the byte order of theirs:
theirs may be longer than ours may be, and equal scores are ordered by id. A document without a title gets its first
words as one; one longer than a field may be is cut. What was left out, cut or is missing is counted and said.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manifests.collection import FIELD
from manifests.errors import InputRefused

_SUFFIXES = ("", ".gz")
_BORROWED_TITLE_CHARS = 120
_TITLE_BYTES_MAX = FIELD["title"].bytes_max
# Search text holds the abstract and more besides; a judged document of this length is a book.
_ABSTRACT_BYTES_MAX = 30_000
_QRELS_COLUMNS = 3
_WHOLE = re.compile(r"[+-]?[0-9]{1,9}(\.0*)?")
_GRADE_MAX = 1_000  # the library of the measures keeps memory for every grade up to the largest


@dataclass(frozen=True)
class Judged:
    """A judged set, its documents under our ids.

    Attributes:
        records: a snapshot record for each document that holds any text.
        their_ids: our id -> theirs.
        queries: query id -> text, of the queries that are judged.
        qrels: query id -> (their document id -> grade); what is not in the corpus is kept, as trec_eval keeps it.
        notes: what was left out, cut or is missing, in words.
    """

    records: list[dict[str, Any]]
    their_ids: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    notes: list[str] = field(default_factory=list)


def read_judged(folder: Path) -> Judged:
    """The judged set in `folder`.

    Raises:
        InputRefused: a file is absent, damaged or not what BEIR says, naming the line; an id twice; a grade that is not
            whole, or two of one document for one query; nothing judged.
    """
    notes: list[str] = []
    qrels = _qrels(_file(folder, "qrels/test.tsv"), notes)
    texts = _texts(_file(folder, "queries.jsonl"))
    queries = {query_id: texts[query_id] for query_id in qrels if query_id in texts}
    _note(notes, len(qrels) - len(queries), "judged queries have no text; they count as unanswered")
    _note(notes, len(texts) - len(queries), "queries without judgements left out")
    documents = _documents(_file(folder, "corpus.jsonl"))
    judged = {document for grades in qrels.values() for document in grades}
    _note(notes, len(judged - documents.keys()), "judged documents are not in the corpus")
    records, their_ids = [], {}
    empty = cut = 0
    for number, their_id in enumerate(sorted(documents, key=str.encode), start=1):
        record, was_cut = _record(f"d{number:07d}", *documents[their_id])
        cut += was_cut
        if record["title"]:
            records.append(record)
            their_ids[record["id"]] = their_id
        else:
            empty += 1
    _note(notes, empty, "documents without any text left out")
    _note(notes, cut, "documents cut to what a field may hold")
    if not records or not queries:
        raise InputRefused(f"{folder} holds {len(records)} documents and {len(queries)} judged queries; nothing to do")
    return Judged(records, their_ids, queries, qrels, notes)


def _note(notes: list[str], count: int, words: str) -> None:
    if count:
        notes.append(f"{count:,} {words}")


def _file(folder: Path, name: str) -> Path:
    for suffix in _SUFFIXES:
        if (path := folder / f"{name}{suffix}").is_file():
            return path
    raise InputRefused(f"{folder / name} (or .gz) does not exist; expected a judged set in BEIR layout")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank."""
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="\n") as lines:
            yield from ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputRefused(f"{path} cannot be read: {error}") from error


def _objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in _lines(path):
        try:
            found = json.loads(line)
            found["_id"] = str(found["_id"])
            found["_id"].encode()  # a lone surrogate has no place in the order of the ids
        except (ValueError, TypeError, KeyError) as error:
            raise InputRefused(f"{path}, line {number}: expected an object with _id, found {error!r}") from error
        yield number, found


def _texts(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, query in _objects(path):
        if query["_id"] in found:
            raise InputRefused(f"{path}, line {number}: query {query['_id']} is there twice")
        found[query["_id"]] = _clean(query.get("text"))
    return found


def _documents(path: Path) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for number, document in _objects(path):
        if document["_id"] in found:
            raise InputRefused(f"{path}, line {number}: document {document['_id']} is there twice")
        found[document["_id"]] = (_clean(document.get("title")), _clean(document.get("text")))
    return found


def _clean(text: Any) -> str:
    """Text that a record may hold: no NUL, no lone surrogate."""
    return str(text or "").replace("\0", " ").encode("utf-8", "replace").decode()


def _record(our_id: str, title: str, text: str) -> tuple[dict[str, Any], bool]:
    title, text = " ".join(title.split()), text.strip()
    if not title:
        title, text = _parted(text)
    kept_title, kept_text = _cut(title, _TITLE_BYTES_MAX), _cut(text, _ABSTRACT_BYTES_MAX)
    record = {"id": our_id, "title": kept_title, "abstract": kept_text, "authors": [], "keywords": []}
    return record, (kept_title, kept_text) != (title, text)


def _parted(text: str) -> tuple[str, str]:
    """The first words of `text` and the rest."""
    if len(text) <= _BORROWED_TITLE_CHARS:
        return text, ""
    space = text.rfind(" ", 0, _BORROWED_TITLE_CHARS)
    end = space if space > 0 else _BORROWED_TITLE_CHARS
    return text[:end].strip(), text[end:].strip()


def _cut(text: str, bytes_max: int) -> str:
    return text.encode()[:bytes_max].decode(errors="ignore")


def _qrels(path: Path, notes: list[str]) -> dict[str, dict[str, int]]:
    """Query id -> document id -> grade; the heading line may be absent.

    As strict as trec_eval, which refuses a judgement that is there twice; the same one twice is harmless, and said.
    """
    found: dict[str, dict[str, int]] = {}
    judged = 0
    for number, line in _lines(path):
        columns = line.rstrip("\r\n").split("\t")
        if len(columns) != _QRELS_COLUMNS:
            raise InputRefused(
                f"{path}, line {number}: expected query id, document id and grade divided by tabs, found {line!r}"
            )
        query_id, document_id, written = columns
        grade = _grade(written)
        if grade is None:
            if number == 1 and not _is_number(written):
                continue
            raise InputRefused(
                f"{path}, line {number}: expected a whole grade from {-_GRADE_MAX} to {_GRADE_MAX}, found {written!r}"
            )
        grades = found.setdefault(query_id, {})
        if grades.setdefault(document_id, grade) != grade:
            raise InputRefused(
                f"{path}, line {number}: document {document_id} of query {query_id} has grade {grade}, and "
                f"{grades[document_id]} in a line before; keep one"
            )
        judged += 1
    _note(notes, judged - sum(map(len, found.values())), "judgements are there twice")
    return found


def _grade(text: str) -> int | None:
    """The whole number that `text` writes, such as 2 or 2.0; None for anything else."""
    if not _WHOLE.fullmatch(text.strip()):
        return None
    grade = int(float(text))
    return grade if abs(grade) <= _GRADE_MAX else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
