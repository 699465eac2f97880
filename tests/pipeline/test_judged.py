"""Judged sets: what is read, what is left out and said, what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from manifests.errors import InputRefused
from pipeline.judged import read_judged

DOCUMENTS = [
    {"_id": "b", "title": "Second", "text": "of two"},
    {"_id": "a" * 200, "title": "First", "text": ""},
]


def judged_set(
    folder: Path,
    *,
    documents: list[dict[str, str]] | None = None,
    qrels: str = "query-id\tcorpus-id\tscore\n1\tb\t2\n",
    suffix: str = "",
) -> Path:
    (folder / "qrels").mkdir(parents=True)
    opened = gzip.open if suffix else open
    rows = {
        "corpus.jsonl": "".join(json.dumps(each) + "\n" for each in documents or DOCUMENTS),
        "queries.jsonl": '{"_id": "1", "text": "two"}\n{"_id": "2", "text": "not judged"}\n',
        "qrels/test.tsv": qrels,
    }
    for name, text in rows.items():
        with opened(folder / f"{name}{suffix}", "wt", encoding="utf-8") as file:
            file.write(text)
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_plain_and_compressed_sets_give_records_in_the_order_of_their_ids(tmp_path: Path, suffix: str) -> None:
    judged = read_judged(judged_set(tmp_path / "set", suffix=suffix))

    assert [record["title"] for record in judged.records] == ["First", "Second"]
    assert judged.their_ids == {"d0000001": "a" * 200, "d0000002": "b"}
    assert judged.queries == {"1": "two"}
    assert judged.qrels == {"1": {"b": 2}}
    assert judged.notes == ["1 queries without judgements left out"]


def test_grades_are_read_without_a_heading_too(tmp_path: Path) -> None:
    assert read_judged(judged_set(tmp_path / "set", qrels="1\tb\t1.0\r\n")).qrels == {"1": {"b": 1}}


def test_what_is_judged_and_absent_is_kept_counted_and_said(tmp_path: Path) -> None:
    judged = read_judged(judged_set(tmp_path / "set", qrels="1\tb\t1\n1\tgone\t1\n9\tb\t1\n"))

    assert judged.qrels == {"1": {"b": 1, "gone": 1}, "9": {"b": 1}}
    assert "1 judged queries have no text; they count as unanswered" in judged.notes
    assert "1 judged documents are not in the corpus" in judged.notes


def test_documents_without_title_borrow_one_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    text = "word " * 60
    documents = [{"_id": "b", "text": text}, {"_id": "c", "title": " ", "text": "\n"}]
    judged = read_judged(judged_set(tmp_path / "set", documents=documents))

    (record,) = judged.records
    assert f"{record['title']} {record['abstract']}" == text.strip()
    assert len(record["title"]) <= 120
    assert "1 documents without any text left out" in judged.notes


def test_documents_longer_than_a_field_are_cut_and_counted(tmp_path: Path) -> None:
    documents = [{"_id": "b", "title": "Long", "text": "é" * 100_000 + "\ud800\0"}]
    judged = read_judged(judged_set(tmp_path / "set", documents=documents))

    assert judged.records[0]["abstract"] == "é" * 15_000
    assert "1 documents cut to what a field may hold" in judged.notes


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"documents": [*DOCUMENTS, DOCUMENTS[0]]}, "document b is there twice"),
        ({"qrels": "query-id\tcorpus-id\tscore\n1 b 1\n"}, "line 2"),
        ({"qrels": "query-id\tcorpus-id\tscore\n7\tb\t1\n"}, "0 judged queries"),
    ],
)
def test_what_is_no_judged_set_is_refused(tmp_path: Path, change: dict[str, object], named: str) -> None:
    with pytest.raises(InputRefused, match=named):
        read_judged(judged_set(tmp_path / "set", **change))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match=r"qrels/test\.tsv"):
        read_judged(tmp_path)
