"""Judged sets: what is read, what is left out and said, what is refused."""

from __future__ import annotations

import gzip
import hashlib
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
        ({"documents": [{"_id": "\ud800", "text": "no id"}]}, "line 1: expected an object with _id"),
        ({"qrels": "1\tb\t1\n1\ta\t0\n1\tb\t2\n"}, "line 3: document b of query 1 has grade 2, and 1 in a line before"),
        ({"qrels": "query-id\tcorpus-id\tscore\n1 b 1\n"}, "line 2"),
        ({"qrels": "1\tb\t1\n1\ta\thigh\n"}, "line 2: expected a whole grade"),
        ({"qrels": "query-id\tcorpus-id\tscore\n7\tb\t1\n"}, "0 judged queries"),
    ],
)
def test_what_is_no_judged_set_is_refused(tmp_path: Path, change: dict[str, object], named: str) -> None:
    with pytest.raises(InputRefused, match=named):
        read_judged(judged_set(tmp_path / "set", **change))


@pytest.mark.parametrize("grade", ["inf", "nan", "0.5", "1e3", "-1e400", "1001", "9" * 30])
@pytest.mark.parametrize("line", [1, 2])
def test_a_grade_that_is_not_a_whole_number_is_refused_wherever_it_stands(
    tmp_path: Path, grade: str, line: int
) -> None:
    before = "1\tb\t1\n" * (line - 1)
    with pytest.raises(InputRefused, match=rf"line {line}: expected a whole grade from -1000 to 1000"):
        read_judged(judged_set(tmp_path / "set", qrels=f"{before}1\ta\t{grade}\n"))


def test_whole_grades_are_read_however_they_are_written(tmp_path: Path) -> None:
    judged = read_judged(judged_set(tmp_path / "set", qrels="1\tb\t-2\n1\tc\t+3.0\n1\td\t 0\n1\te\t1000\n"))

    assert judged.qrels == {"1": {"b": -2, "c": 3, "d": 0, "e": 1000}}


def test_a_judgement_that_is_there_twice_counts_once_and_is_said(tmp_path: Path) -> None:
    judged = read_judged(judged_set(tmp_path / "set", qrels="1\tb\t1\n1\tb\t1.0\n"))

    assert judged.qrels == {"1": {"b": 1}}
    assert "1 judgements are there twice" in judged.notes


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_damaged_gzip_file_is_named_whatever_is_wrong_with_it(tmp_path: Path, name: str) -> None:
    documents = [{"_id": f"{number:x}", "text": hashlib.sha256(b"%d" % number).hexdigest()} for number in range(300)]
    folder = judged_set(tmp_path / "set", documents=documents, suffix=".gz")
    path = folder / f"{name}.gz"
    whole = gzip.compress(gzip.decompress(path.read_bytes()))

    for position in range(10, len(whole), max(1, len(whole) // 50)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(InputRefused, match=name):
            read_judged(folder)
    path.write_bytes(whole[:-9])
    with pytest.raises(InputRefused, match=name):
        read_judged(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match=r"qrels/test\.tsv"):
        read_judged(tmp_path)
