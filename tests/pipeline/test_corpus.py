"""Stage load: every record becomes a row unchanged, or is named with its line, id, field and reason."""

from __future__ import annotations

import base64
import json
import multiprocessing
import random
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manifests.collection import FIELD, content_sha256, ids_sha256, paper_digest
from manifests.errors import InputRefused
from manifests.texts import embed_text, text_sha256
from pipeline import corpus as module
from pipeline import records as records_module
from pipeline.blocks import SCHEMA, tabulate_blocks
from pipeline.corpus import FACTS, PAPERS, REJECTED, Corpus, read_corpus, tabulate
from pipeline.errors import BadRecords, MachineRefused
from pipeline.snapshot import open_snapshot
from tests.pipeline.snapshots import lines, record, snapshot_of

NAN = b'{"id": "n", "title": "t", "score": NaN}'
BLANK_COUNTS = {"lines": 2, "blank": 0, "records": 2, "rejected": 0, "papers": 2, "unknown_keys": {}}


def load(folder: Path, content: bytes, papers: int, *, zipped: bool = False, quarantine: bool = False) -> Corpus:
    """The corpus of a snapshot of these bytes, in folder/work."""
    snapshot = snapshot_of(folder / "snapshot", content, papers, zipped=zipped)
    return tabulate(snapshot, folder / "work", quarantine=quarantine)


def rows(corpus: Corpus) -> list[dict[str, Any]]:
    """Every row of papers.parquet."""
    return pl.read_parquet(corpus.path).to_dicts()


def refusal(folder: Path, content: bytes, papers: int, *, zipped: bool = False) -> str:
    """The message with which a snapshot of these bytes is refused; nothing is left in the work folder."""
    with pytest.raises(InputRefused) as refused:
        load(folder, content, papers, zipped=zipped)

    assert refused.value.exit_code == 3
    assert [path.name for path in (folder / "work").iterdir()] == []
    return str(refused.value)


# --- what is accepted


def test_a_record_becomes_a_row_with_its_texts_and_nothing_else(tmp_path: Path) -> None:
    given_record = record("a", title="Rényi  \\alpha", abstract="One.\nTwo.", decision="Accept", oral=True)

    corpus = load(tmp_path, lines(given_record), 1)

    assert rows(corpus) == [
        {
            "paper_id": "a",
            "title": "Rényi  \\alpha",
            "abstract": "One.\nTwo.",
            "authors": ["Ada Lovelace", "José García"],
            "keywords": ["bandits"],
            "area": "Theory->Learning",
            "paper_type": "regular",
            "spotlight": False,
            "oral": True,
            "forum_url": "https://example.org/forum?id=a",
            "pdf_url": "",
            "text_sha256": text_sha256(embed_text("Rényi  \\alpha", "One.\nTwo.")),
        }
    ]
    assert corpus.snapshot.counts.unknown_keys == {"decision": 1}
    assert pl.read_parquet_schema(corpus.path) == SCHEMA


@pytest.mark.parametrize(
    ("content", "blank"),
    [
        (b"\xef\xbb\xbf" + lines(record("a"), record("b")), 0),
        (lines(record("a"), record("b")).replace(b"\n", b"\r\n"), 0),
        (b"\n" + lines(record("a")) + b"\n \t\r\n" + lines(record("b")) + b"\n", 4),
        (lines(record("a"), record("b")).removesuffix(b"\n"), 0),
    ],
    ids=["bom", "crlf", "blank-lines", "no-last-newline"],
)
@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_forms_of_the_same_lines_give_the_same_corpus(tmp_path: Path, content: bytes, blank: int, zipped: bool) -> None:
    plain = load(tmp_path / "plain", lines(record("a"), record("b")), 2)

    corpus = load(tmp_path / "form", content, 2, zipped=zipped)

    assert corpus.facts == plain.facts
    assert rows(corpus) == rows(plain)
    assert corpus.snapshot.counts.model_dump() == BLANK_COUNTS | {"lines": 2 + blank, "blank": blank}


def test_one_record_is_a_corpus(tmp_path: Path) -> None:
    assert load(tmp_path, lines(record("a")), 1).facts.rows == 1


def test_a_title_alone_is_a_paper(tmp_path: Path) -> None:
    corpus = load(tmp_path, lines({"id": "a", "title": "Only a title"}), 1)

    expected: dict[str, Any] = {
        "abstract": "",
        "authors": [],
        "keywords": [],
        "area": "Unspecified",
        "paper_type": "Unspecified",
    }
    expected |= {
        "spotlight": False,
        "oral": False,
        "forum_url": "",
        "pdf_url": "",
    }
    assert expected.items() <= rows(corpus)[0].items()
    assert corpus.catalogue.without_abstract == 1


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path: Path) -> None:
    corpus = load(tmp_path, lines(record("a", abstract="one\u2028two\u2029three\x85four")), 1)

    assert rows(corpus)[0]["abstract"] == "one\u2028two\u2029three\x85four"


def test_empty_lists_before_lists_with_values_keep_their_type(tmp_path: Path) -> None:
    lists: list[list[str]] = [[]] * 150 + [["x"], [""], ["", "y"]]

    corpus = load(tmp_path, lines(*(record(str(n), keywords=words) for n, words in enumerate(lists))), len(lists))

    assert [row["keywords"] for row in rows(corpus)] == lists


def test_a_key_first_seen_on_the_last_line_is_read(tmp_path: Path) -> None:
    bare = [{"id": str(number), "title": "t"} for number in range(200)]

    corpus = load(tmp_path, lines(*bare, record("z", keywords=["late"], new=1)), 201)

    assert rows(corpus)[-1]["keywords"] == ["late"]
    assert corpus.snapshot.counts.unknown_keys == {"new": 1}


@pytest.mark.parametrize("text", ["2026-07-01", "123", "true", "null", "1e5", "NaN"])
def test_text_that_looks_like_another_type_stays_text(tmp_path: Path, text: str) -> None:
    corpus = load(tmp_path, lines(record("a", title=text, abstract=text, keywords=[text])), 1)

    assert [rows(corpus)[0][key] for key in ("title", "abstract", "keywords")] == [text, text, [text]]


@pytest.mark.parametrize(
    "area", ['Say "what"', "back\\slash", "Bayes, Fisher", "Vision / Language->3D / 4D", "a_b->c_d", "日本語"]
)
def test_an_area_is_stored_as_given(tmp_path: Path, area: str) -> None:
    corpus = load(tmp_path, lines(record("a", primary_area=area)), 1)

    assert rows(corpus)[0]["area"] == area
    assert corpus.catalogue.areas == {area: 1}


def test_a_null_area_is_unspecified_and_null_urls_are_empty(tmp_path: Path) -> None:
    corpus = load(tmp_path, lines(record("a", primary_area=None, forum_url=None)), 1)

    assert [rows(corpus)[0][key] for key in ("area", "forum_url", "pdf_url")] == ["Unspecified", "", ""]


def test_ids_are_case_sensitive(tmp_path: Path) -> None:
    assert load(tmp_path, lines(record("aB"), record("Ab"), record("ab")), 3).facts.rows == 3


def test_escaped_pairs_quotes_and_colons_inside_texts_are_text(tmp_path: Path) -> None:
    tricky = b'{"id": "a", "title": "\\ud83d\\ude00 \\"title\\": \\"x\\": y", "abstract": "\\\\\\":"}\n'

    assert rows(load(tmp_path, tricky, 1))[0]["title"] == '😀 "title": "x": y'


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
# With a letter at the end: what is all invisible is blank.
ONE_LINE = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), max_size=14).map(lambda text: text + "T")
URL = st.none() | st.from_regex(r"\Ahttps?://[a-z0-9.-]{1,20}/[!-~]{0,20}\Z")
RECORDS = st.lists(
    st.fixed_dictionaries(
        {"id": ONE_LINE, "title": TEXT.map(lambda text: "T" + text)},
        optional={
            "abstract": TEXT,
            "authors": st.lists(TEXT, max_size=4),
            "keywords": st.lists(TEXT, max_size=4),
            "primary_area": st.none() | ONE_LINE,
            "paper_type": ONE_LINE,
            "spotlight": st.booleans(),
            "oral": st.booleans(),
            "forum_url": URL,
            "pdf_url": URL,
        },
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda each: each["id"],
)


@given(records=RECORDS, ascii_only=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_any_valid_records_come_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], ascii_only: bool
) -> None:
    content = "".join(json.dumps(each, ensure_ascii=ascii_only) + "\n" for each in records).encode()

    corpus = load(tmp_path_factory.mktemp("any"), content, len(records))

    stored = rows(corpus)
    for row, given_record in zip(stored, records, strict=True):
        expected: dict[str, Any] = {
            "abstract": "",
            "authors": [],
            "keywords": [],
            "spotlight": False,
            "oral": False,
        } | given_record
        for key in ("title", "abstract", "authors", "keywords", "spotlight", "oral"):
            assert row[key] == expected[key]
        assert row["paper_id"] == given_record["id"]
        assert row["area"] == (given_record.get("primary_area") or "Unspecified")
        assert row["paper_type"] == given_record.get("paper_type", "Unspecified")
        assert row["forum_url"] == (given_record.get("forum_url") or "")
    assert corpus.facts.ids_sha256 == ids_sha256(row["paper_id"] for row in stored)
    assert corpus.facts.content_sha256 == content_sha256((row["paper_id"], paper_digest(row)) for row in stored)


# --- what is refused


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": 7}, "id: found the number 7, expected text"),
        ({"id": ""}, 'id: found "", expected text that is not blank'),
        ({"id": "a" * 65}, "id: found 65 bytes, expected at most 64"),
        ({"id": "é" * 33}, "id: found 66 bytes, expected at most 64"),
        ({"id": " a"}, "id: found white space around"),
        ({"id": "a\nb"}, "id: found a control character"),
        ({"title": 2026}, "title: found the number 2026, expected text"),
        ({"title": None}, "title: found null, expected text"),
        ({"title": " \t\n"}, "title: found .*, expected a title that is not blank"),
        *(
            ({"title": title}, "title: found .*, expected a title that is not blank")
            for title in ("\u200b\u2060", "\u3164", "\u202e \u2800", "\ufe0f\u115f", "\ue000")
        ),
        ({"title": "x" * 2_001}, "title: found 2,001 bytes, expected at most 2,000"),
        ({"abstract": None}, "abstract: found null, expected text"),
        ({"abstract": "x" * 100_000}, "abstract: found 100,000 bytes, expected at most 60,000"),
        ({"abstract": "é" * 30_001}, "abstract: found 60,002 bytes"),
        ({"abstract": "a\0b"}, "abstract: found a NUL character"),
        ({"authors": "Ada"}, 'authors: found "Ada", expected a list of texts'),
        ({"authors": ["Ada", 3]}, "authors: number 2 of the list: found the number 3, expected text"),
        ({"authors": [["Ada"]]}, "authors: number 1 of the list: found the list"),
        ({"authors": ["x"] * 2_001}, "authors: found 2,001 texts, expected at most 2,000"),
        ({"keywords": ["x" * 501]}, "keywords: number 1 of the list: found 501 bytes, expected at most 500"),
        ({"keywords": ["\0"]}, "keywords: number 1 of the list: found a NUL"),
        ({"keywords": None}, "keywords: found null, expected a list of texts"),
        ({"primary_area": ""}, "primary_area: found .*not blank"),
        ({"primary_area": "\u3164"}, "primary_area: found .*not blank"),
        ({"paper_type": "\u200b"}, "paper_type: found .*not blank"),
        ({"id": "\u202e"}, "id: found .*not blank"),
        ({"primary_area": ["x"]}, "primary_area: found the list"),
        ({"primary_area": "a\tb"}, "primary_area: found a control character"),
        ({"paper_type": None}, "paper_type: found null"),
        ({"spotlight": "true"}, 'spotlight: found "true", expected true or false'),
        ({"spotlight": 1}, "spotlight: found the number 1, expected true or false"),
        ({"oral": None}, "oral: found null, expected true or false"),
        ({"forum_url": "ftp://x"}, "forum_url: found .*, expected an http"),
        ({"forum_url": "javascript:alert(1)"}, "forum_url: found .*, expected an http"),
        ({"pdf_url": ""}, "pdf_url: found .*, expected an http"),
        ({"pdf_url": "https://a b"}, "pdf_url: found .*, expected an http"),
        ({"pdf_url": {"href": "x"}}, "pdf_url: found the object"),
        (
            {"authors": [f"{n:0400}" for n in range(200)]},
            r"search_text: found [\d,]+ bytes, expected at most 65,535 \(title, abstract",
        ),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_value_outside_its_rule_is_refused_with_line_id_field_and_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    message = refusal(tmp_path, lines(record("ok"), record("bad") | change), 2)

    named = json.dumps(change["id"]) if isinstance(change.get("id"), str) else "null" if "id" in change else '"bad"'
    assert f"1 of 2 records are bad:\n  - line 2, id {named}: " in message
    assert re.search(reason, message)
    assert "--quarantine" in message


@pytest.mark.parametrize("key", ["id", "title"])
def test_an_absent_required_key_is_refused(tmp_path: Path, key: str) -> None:
    bad = record("bad")
    del bad[key]

    assert f"{key}: absent, expected text" in refusal(tmp_path, lines(bad), 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": "x", "title": "t", "title": "u"}', 'id "x": title: the key occurs twice'),
        (b'{"id": "x", "title": "t", "id" \t: "y"}', 'id "x": id: the key occurs twice'),
        (b'{"id": "x", "title": "t", "i\\u0064": "y"}', 'id "x": id: the key occurs twice'),
        (b'{"id": "x", "title": "t", "note": {"k": 1, "k": 1}}', 'id "x": k: the key occurs twice'),
        (NAN, 'id "n": line: found NaN, which is not JSON'),
        (b'{"id": "x", "title": "t", "score": -Infinity}', "line: found -Infinity, which is not JSON"),
        (b'{"id": "x", "title": "t", "score": 1e999}', "line: not JSON"),
        (b'{"id": "x", "title": "\\ud800 lone"}', 'id "x": line: found a lone surrogate'),
        (b'{"id": "x", "title": "lone \\ude00"}', 'id "x": line: found a lone surrogate'),
        (b'{"id": "x", "title": "\xed\xa0\x80"}', 'id "x": line: not UTF-8 at byte 23'),
        (b'{"id": "x", "title": "caf\xe9"}', 'id "x": line: not UTF-8 at byte 26'),
        (b'{"id": "x", "title": "a\0b"}', 'id "x": line: found a NUL byte at byte 24'),
        (b'{"id": "x", "title": "a\tb"}', 'id "x": line: not JSON: Invalid control character'),
        (b'{"id": "x", "title": "t"} {"id": "y"}', 'id "x": line: not JSON: Extra data'),
        (b"['id']", "id null: line: not JSON"),
        (b'[{"id": "x", "title": "t"}]', "id null: line: found the list .*, expected one JSON object"),
        (b'"text"', 'id null: line: found "text", expected one JSON object'),
        (b"[" * 100_000, "id null: line: nested too deep"),
        (b'{"id": "x", "title": "t", "note": ' + b"9" * 5_000 + b"}", 'id "x"'),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_line_that_is_not_one_strict_json_object_is_refused(tmp_path: Path, line: bytes, reason: str) -> None:
    message = refusal(tmp_path, lines(record("ok")) + line + b"\n", 2)

    assert "  - line 2, " in message
    assert re.search(reason, message)


def test_a_truncated_last_line_is_refused_as_such(tmp_path: Path) -> None:
    content = lines(record("a"), record("b"))[:-40]

    for zipped in (False, True):
        message = refusal(tmp_path / str(zipped), content, 2, zipped=zipped)
        assert '- line 2, id "b": line: the last line is cut short (not JSON: ' in message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (NAN, "line: found NaN, which is not JSON"),
        (b'{"id": "x", "title": "a\0b"}', "line: found a NUL byte at byte 24"),
        (b'{"id": "x", "title": "t"}\0\0', "line: found a NUL byte at byte 26"),
        (b'{"id": "x", "title": "\\ud800 lone"}', "line: found a lone surrogate"),
        (b'{"id": "x", "title": "\xed\xa0\x80"}', "line: not UTF-8 at byte 23"),
        (b'{"id": "x", "title": "a\tb"}', "line: not JSON: Invalid control character"),
        (b'{"id": "x", "title": "t", "score": 1e999}', "line: not JSON"),
        (b'{"id": "x", "title": "t"} {"id": "y"}', "line: not JSON: Extra data"),
        (b'[{"id": "x", "title": "t"}]', "line: found the list"),
        (b"[" * 2_000 + b"]" * 2_000, "line: nested too deep"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_last_line_without_newline_that_is_not_cut_is_refused_for_what_is_wrong_in_it(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    message = refusal(tmp_path, lines(record("ok")) + line, 2)

    assert reason in message
    assert "cut short" not in message


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": "x", "score": NaN, "title": "one',
        b'{"id": "x", "title": "a\0b',
        b'{"id": "x", "title": "t\0\0\0\0',
        b'{"id": "x", "title": "caf\xc3',
        b'{"id": "x", "title": "\\ud83d',
        b'{"id": "x", "title": "t", "oral": tru',
        b'{"id": "x", "title": "t"',
        b'{"id": "x", "title": "t"} {"id": "y", "ti',
        b"[" * 100_000,
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_cut_last_line_is_refused_as_such_whatever_else_is_wrong_in_it(tmp_path: Path, line: bytes) -> None:
    assert "the last line is cut short (" in refusal(tmp_path, lines(record("ok")) + line, 2)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"\n\r\n  \n"], ids=["empty", "bom", "blank"])
@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_zero_records_are_refused(tmp_path: Path, content: bytes, zipped: bool) -> None:
    assert "found no record, expected at least one" in refusal(tmp_path, content, 0, zipped=zipped)


@pytest.mark.parametrize("papers", [1, 3])
def test_another_number_of_records_than_the_card_says_is_refused(tmp_path: Path, papers: int) -> None:
    message = refusal(tmp_path, lines(record("a"), record("b")), papers)

    assert f"snapshot.json says {papers} papers, found 2 records" in message


@pytest.mark.parametrize(("change", "told"), [({}, "the same"), ({"title": "Other"}, "other")], ids=["same", "other"])
def test_a_duplicate_id_is_refused_and_its_content_compared(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    message = refusal(tmp_path, lines(record("a"), record("b"), record("a", **change)), 3)

    assert f'- line 3, id "a": id: occurs before, in line 1, with {told} content' in message


def test_the_first_twenty_bad_records_are_named_with_all_their_faults_and_the_rest_counted(tmp_path: Path) -> None:
    bad = [record(str(number), title="", spotlight=0) for number in range(50)]

    message = refusal(tmp_path, lines(record("ok"), *bad), 60)

    assert "50 of 51 records are bad" in message
    assert [line.split(",")[0] for line in message.splitlines() if line.startswith("  - line")] == [
        f"  - line {number}" for number in range(2, 22)
    ]
    assert message.count("title: found") == message.count("spotlight: found") == 20
    assert "and 30 more" in message
    assert "snapshot.json says 60 papers, found 51 records" in message


# --- bad records moved aside


def test_quarantine_moves_bad_records_aside_and_the_counts_add_up(tmp_path: Path) -> None:
    good = lines(record("a"), record("b", extra=1))
    other = json.dumps(record("a", title="Another")).encode()
    content = lines(record("a")) + b"\n" + other + b"\n" + NAN + b"\r\n" + b'{"id": "\xff"}\n' + good.split(b"\n")[1]

    corpus = load(tmp_path, content, 5, quarantine=True)

    counts = corpus.snapshot.counts
    assert (counts.lines, counts.blank, counts.records, counts.rejected, counts.papers) == (6, 1, 5, 3, 2)
    assert corpus.facts == load(tmp_path / "good", good, 2).facts
    rejected = [json.loads(line) for line in (tmp_path / "work" / REJECTED).read_text("utf-8").splitlines()]
    assert [(each["line"], each["id"]) for each in rejected] == [(3, "a"), (4, "n"), (5, None)]
    assert rejected[0]["record"] == other.decode()
    assert rejected[0]["reasons"] == ["id: occurs before, in line 1, with other content; expected once"]
    assert rejected[1]["record"] == NAN.decode()
    assert base64.b64decode(rejected[2]["record_base64"]) == b'{"id": "\xff"}'


def test_quarantine_of_every_record_is_refused_with_the_first_reasons(tmp_path: Path) -> None:
    bad = lines(*[record(str(number), title="") for number in range(25)])

    with pytest.raises(BadRecords, match="no paper is left") as refused:
        load(tmp_path, bad, 26, quarantine=True)

    message = str(refused.value)
    assert "25 of 25 records are bad" in message
    assert '- line 1, id "0": title: found' in message
    assert "and 5 more" in message
    assert "--quarantine" not in message  # it was given
    assert "snapshot.json says 26 papers, found 25 records" in message
    assert [path.name for path in (tmp_path / "work").iterdir()] == []


def test_a_clean_snapshot_leaves_no_file_of_rejected_records(tmp_path: Path) -> None:
    load(tmp_path, lines(record("a"), record("a")), 2, quarantine=True)
    load(tmp_path, lines(record("a"), record("b")), 2, quarantine=True)

    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == [FACTS, PAPERS]


def test_unknown_keys_are_counted_but_cannot_swell_the_facts(tmp_path: Path) -> None:
    many = [record(str(number), **{f"k{number}": 1, "x" * 5_000: 2}) for number in range(300)]

    unknown = load(tmp_path, lines(*many), 300).snapshot.counts.unknown_keys

    assert len(unknown) == 101
    assert unknown["x" * 100] == 300
    assert sum(unknown.values()) == 600


# --- what is kept, and when it is made again


def test_the_same_snapshot_is_not_tabulated_twice(tmp_path: Path) -> None:
    first = load(tmp_path, lines(record("a")), 1)
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").iterdir()}

    second = load(tmp_path, lines(record("a")), 1)

    assert (first.reused, second.reused) == (False, True)
    assert (second.facts, second.snapshot, second.catalogue) == (first.facts, first.snapshot, first.catalogue)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").iterdir()} == written
    assert set(read_corpus(tmp_path / "work").digests()) == {"a"}
    assert read_corpus(tmp_path / "work").source == (tmp_path / "snapshot").resolve()


@pytest.mark.parametrize("version", ["SEARCH_TEXT_VERSION", "EMBED_TEXT_VERSION"])
def test_another_text_version_is_tabulated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    load(tmp_path, lines(record("a")), 1)
    monkeypatch.setattr(module, version, 99)

    assert not load(tmp_path, lines(record("a")), 1).reused


*REST, PDF_URL = records_module._TABLE


@pytest.mark.parametrize(
    ("where", "changed"),
    [
        ("RULES_VERSION", records_module.RULES_VERSION + 1),
        ("_TABLE", (*REST, ("pdf", *PDF_URL[1:]))),
        ("_TABLE", (*REST, ("pdf_url", FIELD["pdf_url"]._replace(bytes_max=100), *PDF_URL[2:]))),
        ("_TABLE", (*REST, (*PDF_URL[:2], records_module._area, ""))),
        ("_TABLE", (*REST, (*PDF_URL[:3], "none"))),
    ],
    ids=["version", "key", "limit", "reader", "default"],
)
def test_a_corpus_read_by_other_rules_is_tabulated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, changed: Any
) -> None:
    load(tmp_path, lines(record("a")), 1)
    monkeypatch.setattr(records_module, where, changed)

    assert not load(tmp_path, lines(record("a")), 1).reused


def test_a_corpus_is_read_in_slices_that_are_all_of_it_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = load(tmp_path, lines(*(record(str(number)) for number in range(5))), 5)
    monkeypatch.setattr(module, "ROW_GROUP_ROWS", 2)

    assert [frame.height for frame in corpus.slices("title")] == [2, 2, 1]
    assert list(corpus.paper_digests()) == [(row["paper_id"], paper_digest(row)) for row in rows(corpus)]


def test_another_snapshot_replaces_the_corpus(tmp_path: Path) -> None:
    load(tmp_path, lines(record("a")), 1)

    corpus = load(tmp_path, lines(record("a"), record("b")), 2)

    assert (corpus.reused, corpus.facts.rows, read_corpus(tmp_path / "work").facts.rows) == (False, 2, 2)


def test_a_corpus_with_rejected_records_is_not_kept_without_quarantine(tmp_path: Path) -> None:
    content = lines(record("a"), record("b", title=""))
    load(tmp_path, content, 2, quarantine=True)

    assert load(tmp_path, content, 2, quarantine=True).reused
    with pytest.raises(BadRecords):
        load(tmp_path, content, 2)


def test_a_refused_snapshot_leaves_the_corpus_before_it_in_place(tmp_path: Path) -> None:
    load(tmp_path, lines(record("a")), 1)

    with pytest.raises(BadRecords):
        load(tmp_path, lines(record("b", title="")), 1)

    assert set(read_corpus(tmp_path / "work").digests()) == {"a"}


@pytest.mark.parametrize(
    "damage", [lambda old: old[:-1], lambda old: old[:100] + bytes([old[100] ^ 1]) + old[101:], lambda old: b""]
)
def test_a_cut_or_changed_parquet_file_is_noticed_named_and_made_again(tmp_path: Path, damage: Any) -> None:
    corpus = load(tmp_path, lines(record("a")), 1)
    corpus.path.write_bytes(damage(corpus.path.read_bytes()))

    with pytest.raises(InputRefused, match=rf"papers\.parquet was cut short or changed: .*{corpus.parquet_sha256}"):
        read_corpus(tmp_path / "work")

    assert not load(tmp_path, lines(record("a")), 1).reused
    assert set(read_corpus(tmp_path / "work").digests()) == {"a"}


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": 2}', b"\xff"], ids=repr)
def test_unreadable_facts_are_refused_and_made_again(tmp_path: Path, content: bytes) -> None:
    load(tmp_path, lines(record("a")), 1)
    (tmp_path / "work" / FACTS).write_bytes(content)

    with pytest.raises(InputRefused, match=r"corpus\.json"):
        read_corpus(tmp_path / "work")
    assert not load(tmp_path, lines(record("a")), 1).reused


def test_an_absent_corpus_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="pipeline load"):
        read_corpus(tmp_path)


def test_a_write_that_fails_is_the_machines_fault_and_keeps_the_old_corpus(tmp_path: Path) -> None:
    load(tmp_path, lines(record("a")), 1)
    before = {path.name: path.read_bytes() for path in (tmp_path / "work").iterdir()}
    snapshot = snapshot_of(tmp_path / "other", lines(record("b")), 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    # The system refuses the write halfway through the file, as it does on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        with pytest.raises(MachineRefused, match="nothing is lost"):
            tabulate(snapshot, tmp_path / "work", quarantine=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert {path.name: path.read_bytes() for path in (tmp_path / "work").iterdir()} == before
    assert set(tabulate(snapshot, tmp_path / "work", quarantine=False).digests()) == {"b"}


def test_a_run_killed_before_the_facts_were_written_leaves_no_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    load(tmp_path, lines(record("a")), 1)
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_atomically", killed)
        with pytest.raises(Killed):
            load(tmp_path, lines(record("b")), 1)

    with pytest.raises(InputRefused, match=r"corpus\.json: No such file"):
        read_corpus(tmp_path / "work")
    assert set(load(tmp_path, lines(record("b")), 1).digests()) == {"b"}


# --- many records, several processes


def test_the_order_of_the_lines_does_not_change_the_corpus_digests(tmp_path: Path) -> None:
    records = [record(f"{number:x}", oral=number % 3 == 0) for number in range(300)]
    shuffled = random.Random(7).sample(records, len(records))

    assert load(tmp_path / "a", lines(*records), 300).facts == load(tmp_path / "b", lines(*shuffled), 300).facts


def test_worker_processes_give_the_same_rows_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(f"{number:x}", abstract="word " * (number % 50)) for number in range(2_000)]
    content = lines(*records, record("1f", title=""), record("2f"), record("3f"))
    snapshot = snapshot_of(tmp_path / "snapshot", content, 2_003)
    blocks = list(snapshot.blocks(20_000))
    monkeypatch.setattr(type(snapshot), "blocks", lambda _: iter(blocks))

    alone = tabulate(snapshot, tmp_path / "alone", quarantine=True, workers=1)
    together = tabulate(snapshot, tmp_path / "together", quarantine=True, workers=2)

    assert len(blocks) > 10
    assert rows(alone) == rows(together)
    assert (alone.facts, alone.snapshot, alone.catalogue) == (together.facts, together.snapshot, together.catalogue)
    rejected = [(tmp_path / name / REJECTED).read_bytes() for name in ("alone", "together")]
    assert rejected[0] == rejected[1] != b""
    assert multiprocessing.active_children() == []


def test_there_are_no_more_worker_processes_than_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def alone(blocks: Any, workers: int, scratch: Path) -> Any:
        asked.append(workers)
        return tabulate_blocks(blocks, 1, scratch)

    monkeypatch.setattr(module, "PARALLEL_PAPERS_MIN", 1)
    monkeypatch.setattr(module, "tabulate_blocks", alone)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})

    load(tmp_path, lines(record("a")), 1)

    assert asked[0] <= 2


def test_only_a_few_blocks_are_read_ahead(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, lines(*(record(str(number)) for number in range(3_000))), 3_000)
    read: list[int] = []

    def counted() -> Any:
        for block in snapshot.blocks(5_000):
            read.append(block.first)
            yield block

    tabulated = tabulate_blocks(counted(), 2, tmp_path / "scratch")
    next(tabulated)
    ahead = len(read)
    tabulated.close()

    assert ahead <= 4
    assert multiprocessing.active_children() == []


ENDLESS = """
import itertools, sys
from pathlib import Path
import psutil
from pipeline.blocks import tabulate_blocks
from pipeline.snapshot import Block

if __name__ == "__main__":
    blocks = (Block(number, b'{"id": "a", "title": "t"}') for number in itertools.count(1))
    tabulated = tabulate_blocks(blocks, 2, Path(sys.argv[1]))
    next(tabulated)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    for _ in tabulated:
        pass
"""


def test_worker_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, tmp_path / "endless.py", tmp_path / "scratch"], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()

    _, alive = psutil.wait_procs(workers, timeout=60)
    for orphan in alive:
        orphan.kill()

    assert len(workers) >= 2
    assert alive == []


def test_progress_is_reported_up_to_the_number_of_papers(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path / "snapshot", lines(record("a"), record("b")), 2)
    reports: list[tuple[int, int | None]] = []

    tabulate(
        snapshot, tmp_path / "work", quarantine=False, report=lambda done, total, _note: reports.append((done, total))
    )

    assert reports == [(2, 2)]


# --- the real papers


@pytest.fixture(scope="module")
def real(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return tabulate(open_snapshot(shared / "snapshots" / "icml2026"), tmp_path_factory.mktemp("real"), quarantine=False)


@pytest.mark.corpus
def test_the_real_snapshot_gives_the_known_counts(real: Corpus) -> None:
    catalogue = real.catalogue

    assert (real.facts.rows, catalogue.spotlight, catalogue.oral, catalogue.without_abstract) == (6341, 536, 159, 661)
    assert catalogue.areas["Unspecified"] == 542
    assert len(catalogue.areas) == 79
    assert catalogue.paper_types == {"regular": 6341}
    assert real.snapshot.counts.unknown_keys == {"decision": 6341, "icml_url": 6341, "session": 6341}


@pytest.mark.corpus
def test_the_real_snapshot_shuffled_has_the_same_corpus_digests(real: Corpus, tmp_path: Path, shared: Path) -> None:
    found = [line + b"\n" for _, line in open_snapshot(shared / "snapshots" / "icml2026").lines()]
    random.Random(11).shuffle(found)

    assert load(tmp_path, b"".join(found), 6341).facts == real.facts
