from __future__ import annotations

import csv
import gzip
import html
import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from manifests.errors import InputRefused
from pipeline.corpus import tabulate
from pipeline.errors import BadRecords
from pipeline.fetch.importers import Import, import_file
from pipeline.snapshot import open_snapshot
from tests.programs import SAMPLE

NATIVE = [json.loads(line) for _, line in open_snapshot(SAMPLE).lines() if line.strip()]


def imported(path: Path, **options: Any) -> dict[str, Any]:
    return import_file(Import(path, "list", path.parent / "snapshots", **options))


def papers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for _, line in open_snapshot(path.parent / "snapshots" / "list").lines()]


def corpus_digest(snapshot: Path, work: Path) -> str:
    return tabulate(open_snapshot(snapshot), work, quarantine=False, workers=1).facts.content_sha256


@pytest.fixture(scope="module")
def native_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return corpus_digest(SAMPLE, tmp_path_factory.mktemp("native"))


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(text.getvalue().encode())
    return path


def paperlists_entry(paper: dict[str, Any]) -> dict[str, Any]:
    """As papercopilot/paperlists writes one: lists in one text, the decision as a word, numbers of the reviews."""
    status = "Oral" if paper.get("oral") else "Spotlight" if paper.get("spotlight") else "Poster"
    return {
        "id": paper["id"],
        "title": paper["title"],
        "track": "Position" if paper["paper_type"] == "position" else "main",
        "status": status,
        "keywords": ";".join(paper["keywords"]),
        "abstract": paper.get("abstract", ""),
        "primary_area": paper["primary_area"] or "",
        "author": ";".join(paper["authors"]),
        "site": paper["forum_url"] or "",
        "pdf": paper["pdf_url"] or "",
        "rating_avg": 7.5,
        "gs_citation": -1,
    }


def without_oral_spotlights(paper: dict[str, Any]) -> dict[str, Any]:
    """paperlists has one word for the presentation: an oral that is also a spotlight cannot be told."""
    return paper | {"spotlight": bool(paper.get("spotlight")) and not paper.get("oral")}


def written_natively(papers: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "native.jsonl"
    path.write_text("\n".join(json.dumps(paper) for paper in papers))
    import_file(Import(path, "native", folder / "snapshots"))
    return folder / "snapshots" / "native"


def test_a_paperlists_json_gives_the_corpus_of_the_native_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "icml2026.json"
    path.write_text(json.dumps([paperlists_entry(paper) for paper in NATIVE], indent=4))
    same = written_natively([without_oral_spotlights(paper) for paper in NATIVE], tmp_path)

    result = imported(path)

    assert result["papers"] == result["rows"] == 150
    assert result["columns"]["authors"] == "author"
    assert result["unused_columns"] == ["rating_avg", "gs_citation"]
    assert corpus_digest(tmp_path / "snapshots" / "list", tmp_path / "a") == corpus_digest(same, tmp_path / "b")


def icml_row(paper: dict[str, Any], separator: str = "; ") -> dict[str, Any]:
    """As a download of icml.cc: authors in one cell, their accents and apostrophes as entities."""
    names = [html.escape(name).encode("ascii", "xmlcharrefreplace").decode() for name in paper["authors"]]
    return {
        "type": "Poster",
        "name": paper["title"],
        "virtualsite_url": f"https://icml.cc/virtual/2026/poster/{sum(paper['id'].encode())}",
        "speakers/authors": separator.join(names),
        "abstract": paper.get("abstract", ""),
        "topic": paper["primary_area"] or "",
        "keywords": "|".join(paper["keywords"]),
        "forum": paper["id"],
        "paper_url": paper["forum_url"] or "",
        "paper_pdf_url": paper["pdf_url"] or "",
        "Type of paper": paper["paper_type"],
        "oral": str(paper.get("oral", False)),
        "spotlight": "yes" if paper.get("spotlight") else "",
    }


def test_an_icml_csv_with_entity_escaped_authors_gives_the_corpus_of_the_native_snapshot(
    tmp_path: Path, native_digest: str
) -> None:
    path = write_csv(tmp_path / "ICML 2026 Events.csv", [icml_row(paper) for paper in NATIVE])

    result = imported(path, mapping={"id": "forum", "paper_type": "Type of paper"})

    assert result["papers"] == 150
    assert result["cases"]["authors_entities_decoded"] > 20
    assert result["columns"] == {
        "id": "forum",
        "title": "name",
        "abstract": "abstract",
        "authors": "speakers/authors",
        "keywords": "keywords",
        "primary_area": "topic",
        "paper_type": "Type of paper",
        "spotlight": "spotlight",
        "oral": "oral",
        "forum_url": "paper_url",
        "pdf_url": "paper_pdf_url",
        "event": "type",
        "event_url": "virtualsite_url",
    }
    assert corpus_digest(tmp_path / "snapshots" / "list", tmp_path / "work") == native_digest


def test_a_parquet_list_under_other_names_gives_the_corpus_of_the_native_snapshot(
    tmp_path: Path, native_digest: str
) -> None:
    frame = pl.DataFrame(
        {
            "No": [paper["id"] for paper in NATIVE],
            "Heading": [paper["title"] for paper in NATIVE],
            "Kurzfassung": [paper.get("abstract") for paper in NATIVE],
            "Personen": [paper["authors"] for paper in NATIVE],
            "keywords": [paper["keywords"] for paper in NATIVE],
            "topic": [paper["primary_area"] for paper in NATIVE],
            "paper_type": [paper["paper_type"] for paper in NATIVE],
            "spotlight": [paper.get("spotlight") for paper in NATIVE],
            "oral": [paper.get("oral") for paper in NATIVE],
            "link": [paper["forum_url"] for paper in NATIVE],
            "pdf": [paper["pdf_url"] for paper in NATIVE],
            "year": [2026] * len(NATIVE),
        },
        schema_overrides={"Personen": pl.List(pl.String), "keywords": pl.List(pl.String), "pdf": pl.String},
    )
    frame.write_parquet(tmp_path / "papers.parquet")
    mapping = {"id": "No", "title": "Heading", "abstract": "Kurzfassung", "authors": "Personen", "forum_url": "link"}

    result = imported(tmp_path / "papers.parquet", mapping=mapping)

    assert result["unused_columns"] == ["year"]
    assert corpus_digest(tmp_path / "snapshots" / "list", tmp_path / "work") == native_digest


@pytest.mark.parametrize("name", ["copy.jsonl", "copy.jsonl.gz", "copy.ndjson"])
def test_a_copy_of_a_native_list_is_the_same_corpus(tmp_path: Path, native_digest: str, name: str) -> None:
    content = b"\xef\xbb\xbf" + "\r\n".join(json.dumps(paper) for paper in NATIVE).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)

    imported(tmp_path / name)

    assert corpus_digest(tmp_path / "snapshots" / "list", tmp_path / "work") == native_digest


def test_the_same_file_gives_the_same_snapshot_bytes_and_its_digest_is_in_the_card(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "A", "title": "T"}))

    first = imported(path)
    second = import_file(Import(path, "other", tmp_path / "snapshots"))

    assert first["sha256"] == second["sha256"]
    card = open_snapshot(tmp_path / "snapshots" / "list").card
    assert card.source.startswith("file a.jsonl sha256 ")
    assert str(tmp_path) not in card.model_dump_json()


@pytest.mark.parametrize("paper_id", ["1e10", "007", "0x1F", "12345678901234567890", "NaN", "true", "null"])
def test_an_id_that_looks_like_something_else_stays_text_in_a_csv(tmp_path: Path, paper_id: str) -> None:
    path = write_csv(tmp_path / "a.csv", [{"id": paper_id, "title": "2026-07-01"}])

    imported(path)

    assert [(paper["id"], paper["title"]) for paper in papers(path)] == [(paper_id, "2026-07-01")]


def test_numbers_of_a_json_list_stay_as_they_are_written_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        '{"count": 2, "results": [{"id": 1e10, "title": "A"}, {"id": 12345678901234567890, "title": 7.50}]}'
    )

    result = imported(path)

    assert [(paper["id"], paper["title"]) for paper in papers(path)] == [
        ("1e10", "A"),
        ("12345678901234567890", "7.50"),
    ]
    assert result["cases"]["id_was_a_number"] == 2


def test_whole_numbers_of_a_parquet_list_are_ids_and_floats_are_not(tmp_path: Path) -> None:
    pl.DataFrame({"id": [7, 8], "title": ["A", "B"]}).write_parquet(tmp_path / "whole.parquet")
    pl.DataFrame({"id": [1e10], "title": ["A"]}).write_parquet(tmp_path / "float.parquet")

    assert imported(tmp_path / "whole.parquet")["papers"] == 2
    with pytest.raises(BadRecords, match=r"row 1: id is float '10000000000\.0'; expected a text"):
        import_file(Import(tmp_path / "float.parquet", "other", tmp_path / "snapshots"))


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("Ren&eacute; D; O&#x27;Neil", ["René D", "O'Neil"]),
        ("O&amp;#x27;Neil; B &amp; C", ["O'Neil", "B & C"]),
        ("Ng, Pei Shan; Ada", ["Ng, Pei Shan", "Ada"]),
        ("A|B", ["A", "B"]),
        ("Jane Roe, Jos&#233; P", ["Jane Roe", "José P"]),
        ("King&#44; Jr., Ada", ["King, Jr.", "Ada"]),
        ('["A; B", "C, D"]', ["A; B", "C, D"]),
        ("['A', \"O'Neil\"]", ["A", "O'Neil"]),
        ("[&quot;Fang DONG(董方)&quot;, &quot;周欣&quot;]", ["Fang DONG(董方)", "周欣"]),
        ("AT&T; Bob", ["AT&T", "Bob"]),
        ("AT&amp;T; Bob", ["AT&T", "Bob"]),
        ("A;;B; ", ["A", "B"]),
        ("", []),
        ("[Anonymous]", ["[Anonymous]"]),
    ],
)
def test_authors_in_one_text_are_parted_outside_their_entities(tmp_path: Path, cell: str, names: list[str]) -> None:
    path = write_csv(tmp_path / "a.csv", [{"id": "A", "title": "&amp; stays", "authors": cell}])

    imported(path)

    assert papers(path)[0]["authors"] == names
    assert papers(path)[0]["title"] == "&amp; stays"


def test_a_suffix_stays_with_its_name(tmp_path: Path) -> None:
    rows = [
        {"id": "A", "title": "T", "authors": "King, Jr."},
        {"id": "B", "title": "T", "authors": "Ada Roe; Bo"},
    ]
    path = write_csv(tmp_path / "a.csv", rows)

    imported(path)

    assert [paper["authors"] for paper in papers(path)] == [["King, Jr."], ["Ada Roe", "Bo"]]


def parted(path: Path, *cells: str, column: str = "authors", **options: Any) -> tuple[list[list[str]], dict[str, int]]:
    rows = [{"id": f"P{n}", "title": "T", column: cell} for n, cell in enumerate(cells)]
    result = imported(write_csv(path / "a.csv", rows), **options)
    return [paper[column] for paper in papers(path / "a.csv")], result["cases"]


def test_a_cell_with_another_separator_leaves_the_other_cells_as_they_are_parted(tmp_path: Path) -> None:
    names, cases = parted(tmp_path, "A One, B Two, C Three", "D Four, E Five", "F Six; G Seven", "H Eight")

    assert names == [["A One", "B Two", "C Three"], ["D Four", "E Five"], ["F Six", "G Seven"], ["H Eight"]]
    assert cases["authors_parted_otherwise"] == 2


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["Ada Roe; Bo Doe", "Pranam Chatterjee, PhD"], [["Ada Roe", "Bo Doe"], ["Pranam Chatterjee, PhD"]]),
        (["Pranam Chatterjee, PhD, Bo Doe"], [["Pranam Chatterjee, PhD", "Bo Doe"]]),
        (
            ["Roe, Ada; Doe, Bo", "García Márquez, Gabriel José"],
            [["Roe, Ada", "Doe, Bo"], ["García Márquez, Gabriel José"]],
        ),
        (
            ["Ada Roe|Bo Doe", "C Three; D Four", "E Five, F Six"],
            [["Ada Roe", "Bo Doe"], ["C Three", "D Four"], ["E Five", "F Six"]],
        ),
        (["A One, B Two and C Three", "A One, B Two, and C Three"], [["A One", "B Two", "C Three"]] * 2),
        (["A One and B Two", "Ferdinand Sand"], [["A One", "B Two"], ["Ferdinand Sand"]]),
        (["周欣, Fang DONG(董方)", "A One; B Two"], [["周欣", "Fang DONG(董方)"], ["A One", "B Two"]]),
        (["Ada Roe, Hanchen, Bo Doe"], [["Ada Roe", "Hanchen", "Bo Doe"]]),
        (["Ada Roe, Hanchen, Bo Doe", "A One; B Two"], [["Ada Roe", "Hanchen", "Bo Doe"], ["A One", "B Two"]]),
        (["Jos&#233; P; B Q", "C R, D S"], [["José P", "B Q"], ["C R", "D S"]]),
        (["Ada Roe (MIT, Boston); Bo Doe", "C Three"], [["Ada Roe (MIT, Boston)", "Bo Doe"], ["C Three"]]),
    ],
)
def test_a_comma_parts_names_or_stands_in_one_as_names_and_column_tell(
    tmp_path: Path, cells: list[str], names: list[list[str]]
) -> None:
    assert parted(tmp_path, *cells)[0] == names


@pytest.mark.parametrize(
    "cells",
    [
        ["Ng, Pei Shan", "Ada Roe; Bo Doe"],
        ["A One, B Two; C Three", "D Four, E Five"],
        ["A One; B Two and C Three"],
        ["Roe, Ada"],
        ["Roe, Ada and Doe, Bo"],
        ["Roe, Ada, Doe, Bo", "Roe, Ada; Doe, Bo"],
    ],
)
def test_authors_that_nothing_tells_how_to_part_are_named_until_a_separator_is_said(
    tmp_path: Path, cells: list[str]
) -> None:
    with pytest.raises(BadRecords, match=f"line 2: authors '{cells[0]}': nothing tells .*--separator"):
        parted(tmp_path, *cells)

    assert parted(tmp_path, *cells, separator=";")[0][0] == [part.strip() for part in cells[0].split(";")]


def test_a_keyword_keeps_its_comma_where_most_cells_part_at_another_mark(tmp_path: Path) -> None:
    words, cases = parted(tmp_path, "a; b", "c; d", "e, f", column="keywords")
    other = tmp_path / "other"
    other.mkdir()

    assert words == [["a", "b"], ["c", "d"], ["e, f"]]
    assert cases["keywords_kept_with_comma"] == 1
    assert parted(other, "a; b", "c, d", "e, f", column="keywords")[0] == [["a", "b"], ["c", "d"], ["e", "f"]]


def test_a_separator_and_the_texts_to_decode_can_be_given(tmp_path: Path) -> None:
    row = {"id": "A", "title": "P &amp; Q, &amp;lt; &notit;", "authors": "Roe and Doe", "keywords": "a/b"}
    path = write_csv(tmp_path / "a.csv", [row])

    imported(path, separator=" and ", decoded=frozenset({"title"}))

    assert papers(path)[0]["title"] == "P & Q, &lt; &notit;"
    assert papers(path)[0]["authors"] == ["Roe", "Doe"]


def test_rows_that_are_no_accepted_paper_are_left_out_and_counted_by_reason(tmp_path: Path) -> None:
    statuses = ["Poster", "Accept (Poster)", "Accept: poster", "Oral", "Accept (spotlight)", "Top-5%", "Top-25%"]
    left_out = ["Reject", "Withdraw", "Desk Reject", "Active", "Submitted to ICML 2026", "Withdrawn", ""]
    entries = [{"id": f"P{n}", "title": f"T{n}", "status": status} for n, status in enumerate(statuses + left_out)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(entries))

    result = imported(path)

    flags = [(paper["spotlight"], paper["oral"]) for paper in papers(path)]
    assert flags == [(False, False)] * 3 + [(False, True), (True, False), (False, True), (True, False)]
    assert result["excluded"] == {"desk_rejected": 1, "no_decision": 1, "rejected": 1, "submitted": 2, "withdrawn": 2}
    assert result["papers"] + sum(result["excluded"].values()) == result["rows"] == 14
    assert result["statuses"]["(blank)"] == 1


@pytest.mark.parametrize("flags", [{}, {"spotlight": False}, {"oral": False}, {"spotlight": False, "oral": False}])
@pytest.mark.parametrize("column", ["status", "decision"])
def test_columns_for_spotlight_and_oral_let_no_refused_paper_in(
    tmp_path: Path, flags: dict[str, bool], column: str
) -> None:
    rows = [
        {"id": "a1", "title": "R", column: "Reject"} | flags,
        {"id": "a2", "title": "W", column: "Withdrawn"} | flags,
        {"id": "a3", "title": "OK", column: "Accept (Oral)"} | flags,
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows))

    result = imported(path)

    assert result["excluded"] == {"rejected": 1, "withdrawn": 1}
    assert result["columns"][column] == column
    # Where the list has the column, the column says it.
    assert [(paper["id"], paper["spotlight"], paper["oral"]) for paper in papers(path)] == [
        ("a3", False, "oral" not in flags)
    ]


def test_columns_are_known_by_their_names_in_any_case(tmp_path: Path) -> None:
    rows = [
        {"ID": "A", "Title": "T", "Decision": "Reject", "Primary Area": "X", "PDF URL": ""},
        {"ID": "B", "Title": "U", "Decision": "Accept", "Primary Area": "X", "PDF URL": ""},
    ]
    path = write_csv(tmp_path / "a.csv", rows)

    result = imported(path)

    assert result["excluded"] == {"rejected": 1}
    assert result["unused_columns"] == []


def test_a_column_named_as_it_is_known_goes_before_one_in_another_case(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [{"Title": "No", "title": "Yes", "TITLE": "No", "id": "A"}])

    imported(path)

    assert papers(path)[0]["title"] == "Yes"


@pytest.mark.parametrize(
    ("wording", "reason"),
    [
        ("Not accepted", "rejected"),
        ("Unaccepted", "rejected"),
        ("Not been accepted", "rejected"),
        ("Decline", "rejected"),
        ("Declined", "rejected"),
        ("Accept, then retracted", "rejected"),
        ("Invite to Workshop Track", "other_venue"),
        ("Accept (workshop)", "other_venue"),
        ("Pending", "submitted"),
        ("Acceptance pending", "submitted"),
        ("ICML_2026_Desk_Rejected", "desk_rejected"),
        ("Oral - withdrew", "withdrawn"),
    ],
)
def test_a_decision_that_refuses_leaves_the_paper_out_for_its_reason(tmp_path: Path, wording: str, reason: str) -> None:
    rows = [{"id": "A", "title": "T", "decision": "Accept"}, {"id": "B", "title": "U", "decision": wording}]
    path = write_csv(tmp_path / "a.csv", rows)

    assert imported(path)["excluded"] == {reason: 1}


@pytest.mark.parametrize(
    ("wording", "spotlight", "oral"),
    [
        ("Accept: notable top 5%", False, True),
        ("Accept: notable-top-25%", True, False),
        ("Accept: poster", False, False),
        ("ICLR 2026 Poster", False, False),
        ("NeurIPS 2025 Datasets and Benchmarks Track spotlight", True, False),
        ("ICML 2025 spotlightposter", True, False),
        ("Accept as Oral Presentation", False, True),
        ("Accept (spotlight poster, outstanding paper)", True, False),
        ("Accept (regular)", False, False),
        ("ACCEPTED", False, False),
    ],
)
def test_every_accepting_decision_is_a_paper_presented_as_it_says(
    tmp_path: Path, wording: str, spotlight: bool, oral: bool
) -> None:
    path = write_csv(tmp_path / "a.csv", [{"id": "A", "title": "T", "decision": wording}])

    imported(path)

    assert [(paper["spotlight"], paper["oral"]) for paper in papers(path)] == [(spotlight, oral)]


@pytest.mark.parametrize(
    "wording",
    ["Accept?", "To be accepted", "Conditional accept", "Accept unless withheld", "Waitlist", "Not oral", "50%", "1"],
)
def test_a_decision_that_is_not_known_is_named_and_never_taken_for_an_acceptance(tmp_path: Path, wording: str) -> None:
    rows = [{"id": f"P{n}", "title": "T", "decision": wording} for n in range(3)]
    path = write_csv(tmp_path / "a.csv", [{"id": "A", "title": "T", "decision": "Accept"}, *rows])

    with pytest.raises(BadRecords) as refused:
        imported(path)
    result = imported(path, quarantine=True)

    assert f"line 3 and 2 more: decision {wording!r} is none that is known" in str(refused.value)
    assert "--map status=" in str(refused.value)
    assert result["excluded"] == {"unknown_decision": 3}
    assert [paper["id"] for paper in papers(path)] == ["A"]
    taken = import_file(Import(path, "all", tmp_path / "snapshots", mapping={"status": ""}))
    assert taken["papers"] == 4


def test_of_a_decision_and_a_status_the_decision_decides_and_the_other_is_counted(tmp_path: Path) -> None:
    rows = [
        {"id": "A", "title": "T", "status": "Active", "decision": "Accept (poster)"},
        {"id": "B", "title": "U", "status": "Poster", "decision": "Reject"},
        {"id": "C", "title": "V", "status": "Oral", "decision": ""},
        {"id": "D", "title": "W", "status": "Withdrawn", "decision": ""},
        {"id": "E", "title": "X", "status": "whatever", "decision": "Accept (oral)"},
    ]
    path = write_csv(tmp_path / "a.csv", rows)

    result = imported(path)

    assert [(paper["id"], paper["oral"]) for paper in papers(path)] == [("A", False), ("C", True), ("E", True)]
    assert result["excluded"] == {"rejected": 1, "withdrawn": 1}
    assert result["cases"]["status_says_otherwise"] == 1
    assert result["statuses"] == {
        "Accept (poster)": 1,
        "Reject": 1,
        "Oral": 1,
        "Withdrawn": 1,
        "Accept (oral)": 1,
    }
    assert result["unused_columns"] == []


def test_papers_without_a_decision_are_papers_where_the_list_refuses_none(tmp_path: Path) -> None:
    rows = [{"id": "A", "title": "T", "decision": "Accept"}, {"id": "B", "title": "U"}]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows))
    blank = tmp_path / "blank.json"
    blank.write_text(json.dumps([row | {"decision": None} for row in rows]))

    assert imported(path)["statuses"] == {"Accept": 1, "(blank)": 1}
    assert import_file(Import(blank, "blank", tmp_path / "snapshots"))["unused_columns"] == ["decision"]


def test_the_decision_tells_a_position_paper_where_no_column_does(tmp_path: Path) -> None:
    rows = [
        {"id": "A", "title": "T", "decision": "ICML 2026 Position Oral"},
        {"id": "B", "title": "Position: U", "decision": "ICML 2026 oral"},
    ]
    path = write_csv(tmp_path / "a.csv", rows)
    composition = write_csv(tmp_path / "b.csv", [rows[0] | {"track": "Composition"}])

    imported(path)
    import_file(Import(composition, "b", tmp_path / "snapshots"))

    assert [paper["paper_type"] for paper in papers(path)] == ["position", "regular"]
    (line,) = (json.loads(line) for _, line in open_snapshot(tmp_path / "snapshots" / "b").lines())
    assert line["paper_type"] == "Composition"


def test_an_oral_event_joins_its_poster_and_other_events_are_no_papers(tmp_path: Path) -> None:
    authors = [{"id": 1, "fullname": "Ada Lovelace", "institution": "X"}]
    base = {"name": "A & B", "authors": authors, "decision": "Accept (regular)", "topic": None}
    forum = "https://openreview.net/forum?id=Wtjwjn1uak"
    results = [
        base | {"id": 70000, "eventtype": "Oral", "virtualsite_url": "/virtual/2026/oral/70000", "paper_url": ""},
        base
        | {"id": 63468, "eventtype": "Poster", "virtualsite_url": "/virtual/2026/poster/63468", "paper_url": forum},
        base | {"id": 5, "name": "Lunch", "eventtype": "Social", "virtualsite_url": "/virtual/2026/social/5"},
        base | {"id": 6, "name": "Alone", "eventtype": "Poster", "virtualsite_url": "/virtual/2026/poster/6"},
    ]
    path = tmp_path / "icml-2026-orals-posters.json"
    path.write_text(json.dumps({"count": 4, "next": None, "results": results}))

    result = imported(path)

    assert [(paper["id"], paper["oral"], paper["forum_url"]) for paper in papers(path)] == [
        ("Wtjwjn1uak", True, forum),
        ("6", False, None),
    ]
    assert papers(path)[0]["authors"] == ["Ada Lovelace"]
    assert result["excluded"] == {"merged": 1, "not_a_paper": 1}
    assert result["cases"]["id_from_forum_url"] == 1


def event(number: int, kind: str = "Poster", **changes: str) -> dict[str, str]:
    """A row of an icml.cc list."""
    return {
        "type": kind,
        "name": "Scaling Laws",
        "virtualsite_url": f"https://icml.cc/virtual/2026/{kind.lower()}/{number}",
        "speakers/authors": "Ada Roe; Bo Doe",
        "abstract": f"Abstract {number}.",
        "paper_url": "",
    } | changes


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("Poster", (False, False)),
        ("Spotlight Poster", (True, False)),
        ("Oral", (False, True)),
        ("In-Person Poster presentation / poster accept", (False, False)),
        ("Virtual presentation / top 25% paper", (True, False)),
        ("In-Person Oral presentation / top 5% paper", (False, True)),
        ("Doctoral Consortium", None),
        ("Oral Session", None),
        ("Poster Session", None),
        ("Tutorial", None),
    ],
)
def test_an_event_is_a_paper_when_its_kind_presents_one(
    tmp_path: Path, kind: str, flags: tuple[bool, bool] | None
) -> None:
    path = write_csv(tmp_path / "a.csv", [event(1, kind), event(2, name="Another")])

    result = imported(path)

    assert result["excluded"] == ({} if flags else {"not_a_paper": 1})
    found = {paper["id"]: (paper["spotlight"], paper["oral"]) for paper in papers(path)}
    assert found.get("1") == flags


def test_the_page_of_an_event_tells_its_kind_where_the_list_has_no_types(tmp_path: Path) -> None:
    rows = [event(7, "Oral", abstract=""), event(8, "Workshop", name="W"), event(1), event(9, "Oral", name="Alone")]
    path = write_csv(tmp_path / "a.csv", [{key: cell for key, cell in row.items() if key != "type"} for row in rows])

    result = imported(path)

    assert [(paper["id"], paper["oral"]) for paper in papers(path)] == [("1", True), ("9", True)]
    assert result["excluded"] == {"merged": 1, "not_a_paper": 1}


@pytest.mark.parametrize("address", ["https://icml.cc/Conferences/2026/Schedule?showEvent=7", "7", ""])
def test_a_page_that_tells_no_kind_leaves_nothing_out(tmp_path: Path, address: str) -> None:
    row = {"id": "A", "name": "T", "virtualsite_url": address}
    path = write_csv(tmp_path / "a.csv", [row])

    assert imported(path, mapping={"id": "id"})["papers"] == 1


FORUM = "https://openreview.net/forum?id={}"


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({}, ["1", "2"]),
        ({"speakers/authors": ""}, ["1", "2"]),
        ({"abstract": ""}, ["1", "2"]),
        ({"abstract": "", "speakers/authors": ""}, ["1", "2"]),
        ({"abstract": "One.", "speakers/authors": ""}, ["1"]),
        ({"abstract": "One."}, ["1"]),
    ],
)
def test_two_posters_of_one_title_are_two_papers_unless_their_abstract_is_the_same(
    tmp_path: Path, changes: dict[str, str], ids: list[str]
) -> None:
    path = write_csv(tmp_path / "a.csv", [event(1, **changes), event(2, **changes)])

    result = imported(path)

    assert [paper["id"] for paper in papers(path)] == ids
    assert result["excluded"] == ({} if len(ids) == 2 else {"duplicate": 1})
    assert result["cases"].get("same_title_and_authors", 0) == (2 if len(ids) == 2 else 0)


def test_posters_with_addresses_of_two_papers_are_two_papers_however_alike(tmp_path: Path) -> None:
    alike = [event(n, abstract="One.", paper_url=FORUM.format(n * 1111111111)) for n in (1, 2)]
    path = write_csv(tmp_path / "a.csv", alike)

    assert imported(path)["papers"] == 2


@pytest.mark.parametrize(
    ("changes", "joins"),
    [
        ({"abstract": "", "speakers/authors": ""}, "1"),
        ({"abstract": "", "paper_url": FORUM.format("A")}, "1"),
        ({"name": "Scaling  Laws ", "abstract": "Another wording."}, "1"),
        ({"speakers/authors": "Somebody Else", "abstract": ""}, None),
        ({"speakers/authors": "", "abstract": "Another."}, None),
        ({"name": "Scaling Laws II"}, None),
    ],
)
def test_a_talk_joins_the_poster_that_nothing_tells_it_from(
    tmp_path: Path, changes: dict[str, str], joins: str | None
) -> None:
    path = write_csv(tmp_path / "a.csv", [event(7, "Oral", **changes), event(1)])

    result = imported(path)

    assert result["papers"] == (1 if joins else 2)
    assert papers(path)[0]["oral"] == bool(joins)
    assert papers(path)[0]["abstract"] == "Abstract 1."


def test_a_talk_joins_the_one_of_two_posters_that_has_its_abstract_or_is_named(tmp_path: Path) -> None:
    posters = [event(1), event(2)]
    told = write_csv(tmp_path / "a.csv", [event(7, "Oral", abstract="Abstract 2."), *posters])
    untold = write_csv(tmp_path / "b.csv", [event(7, "Oral", abstract=""), *posters])

    imported(told)

    assert [(paper["id"], paper["oral"]) for paper in papers(told)] == [("1", False), ("2", True)]
    with pytest.raises(BadRecords, match="line 2: id 7: title and authors fit the papers of line 3, line 4"):
        import_file(Import(untold, "b", tmp_path / "snapshots"))


def test_one_event_listed_twice_with_other_texts_is_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [event(1), event(1, name="Other Laws", abstract="")])

    with pytest.raises(BadRecords, match="line 3: id 1 is also in line 2, where title differ"):
        imported(path)


def test_a_talk_whose_abstract_is_not_that_of_its_poster_is_counted(tmp_path: Path) -> None:
    forum = {"paper_url": FORUM.format("A")}
    path = write_csv(tmp_path / "a.csv", [event(1, **forum), event(7, "Oral", **forum)])

    assert imported(path)["cases"]["talk_differs_from_its_poster"] == 1
    assert papers(path)[0]["abstract"] == "Abstract 1."


def test_the_same_id_twice_is_one_paper_only_when_nothing_but_the_presentation_differs(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [
        {"id": "A", "title": "T", "status": "Poster"},
        {"id": "A", "title": "T", "status": "Oral"},
        {"id": "A", "title": "T", "status": "Poster"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    clash = tmp_path / "clash.jsonl"
    clash.write_text("\n".join(map(json.dumps, [rows[0], rows[0] | {"title": "U"}])))

    result = imported(path)

    assert result["excluded"] == {"duplicate": 1, "merged": 1}
    assert papers(path)[0]["oral"]
    with pytest.raises(BadRecords, match="line 2: id A is also in line 1, where title differ"):
        import_file(Import(clash, "other", tmp_path / "snapshots"))


def test_a_missing_id_comes_from_the_forum_address_or_the_row_is_named(tmp_path: Path) -> None:
    rows = [
        {"title": "A", "openreview_url": "https://openreview.net/forum?id=AbC1234567&noteId=x"},
        {"title": "B", "openreview_url": ""},
    ]
    path = write_csv(tmp_path / "a.csv", rows)

    with pytest.raises(BadRecords, match="line 3: no id"):
        imported(path)

    result = imported(path, quarantine=True)
    assert [paper["id"] for paper in papers(path)] == ["AbC1234567"]
    assert result["bad"] == {"line 3": "no id, and no forum address to take it from"}
    assert result["excluded"] == {"bad_row": 1}


def test_a_template_makes_a_field_of_other_columns(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [{"id": "A", "title": "T", "decision": "Oral"}])

    imported(path, mapping={"forum_url": "https://openreview.net/forum?id={id}", "status": ""})

    assert papers(path)[0]["forum_url"] == "https://openreview.net/forum?id=A"
    assert not papers(path)[0]["oral"]


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.jsonl", '{"id": "A", "title": "T"}\n{"id": "B", "ti', "line 2: not a JSON object"),
        ("a.jsonl", '{"id": "A", "title": "T"}\n{"id": "B", "title": NaN}', "line 2: not a JSON object: NaN"),
        ("a.jsonl", '{"id": "A", "title": "T"}\n{"id": "B", "title": "T", "title": "U"}', "key 'title' occurs twice"),
        ("a.jsonl", '{"id": "A", "title": "T"}\n["B"]', "line 2: not a JSON object: found"),
        ("a.jsonl", '{"id": "A", "title": "T"}\n{"id": "B", "title": null}', "line 2: id B: no title"),
        ("a.jsonl", '{"id": "A", "title": "T"}\n{"id": "B", "title": "\\u0000"}', "line 2: id B: .*NUL"),
        ("a.jsonl", '{"id": "A", "title": "T"}\n{"id": "B", "title": "\\ud800"}', "line 2: id B: "),
        ("a.jsonl", '{"id": "A", "title": "T"}\n{"id": "B", "title": ["T"]}', r"line 2: title is list"),
        ("a.jsonl", '{"id": "A", "title": "T"}\n{"id": "B", "title": "T", "oral": "maybe"}', "line 2: oral is str"),
        ("a.jsonl", '{"id": "A", "title": "T"}\n{"id": "B", "title": "T", "pdf_url": "x"}', "line 2: id B: pdf_url"),
        ("a.csv", 'id,title\nA,"T\nmore"\nB,T,extra\nC,T', "line 4: 3 cells; the header has 2 columns"),
    ],
)
def test_a_row_that_cannot_be_a_record_is_named_with_its_place(
    tmp_path: Path, name: str, content: str, fault: str
) -> None:
    path = tmp_path / name
    path.write_text(content)

    with pytest.raises(BadRecords, match=fault) as error:
        imported(path)

    assert error.value.exit_code == 3
    assert not (tmp_path / "snapshots").exists()


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.jsonl", b"", "no row that can be read"),
        ("a.csv", b"id,title\n", "no row that can be read"),
        ("a.csv", b'id,title\nA,T\nB,"T" x\nC,T', "line 3: not CSV"),
        ("a.csv", b"id,id\nA,T\n", "header of different names"),
        ("a.json", b'{"papers": {"A": 1}}', "exactly one list"),
        ("a.json", b'[{"id": "A"', "not whole JSON"),
        ("a.csv", "id,title\nA,Rényi\n".encode("latin-1"), "not UTF-8"),
        ("a.jsonl.gz", gzip.compress(b'{"id": "A", "title": "T"}')[:-6], "not a whole gzip"),
        ("a.parquet", b"PAR1 no PAR1", "not a Parquet file"),
        ("a.xlsx", b"PK", "suffix '.xlsx'"),
        ("a.jsonl", b'{"id": "A", "headline": "T"}', "no column is the title; found id, headline"),
        ("a.jsonl", b'{"id": "A", "title": "T", "status": "Reject"}', r"no paper is left of 1 rows \(rejected 1\)"),
    ],
)
def test_a_file_that_is_no_list_of_papers_is_refused(tmp_path: Path, name: str, content: bytes, fault: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(InputRefused, match=fault):
        imported(path)

    assert not (tmp_path / "snapshots").exists()


@pytest.mark.parametrize(
    ("mapping", "fault"),
    [
        ({"heading": "title"}, "heading is no field; expected one of id, title"),
        ({"title": "headline"}, "no row has 'headline'; found id, title"),
        ({"forum_url": "https://x/{nr}"}, "no row has 'nr'"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(tmp_path: Path, mapping: dict[str, str], fault: str) -> None:
    path = write_csv(tmp_path / "a.csv", [{"id": "A", "title": "T"}])

    with pytest.raises(InputRefused, match=fault):
        imported(path, mapping=mapping)


def test_no_such_file_and_a_bad_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="No such file"):
        imported(tmp_path / "absent.csv")
    with pytest.raises(InputRefused, match="is no snapshot name"):
        import_file(Import(tmp_path / "absent.csv", "../x", tmp_path / "snapshots"))


@pytest.mark.parametrize(
    "line",
    [
        'B,"Broken title,x\nC,Screen 5",y,z',
        'B,"Broken title',
        'B,"Broken" title',
        'B,"Broken ""title',
        '"B,Broken title',
        f"B,{'x' * (17 << 20)}",
    ],
)
def test_a_csv_that_cannot_be_read_to_its_end_is_refused_with_quarantine_too(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.csv"
    after = [f'P{n},"Title {n}"' for n in range(200)]
    path.write_text("\n".join(["id,title", "A,T", line, *after]) + "\n")

    with pytest.raises(InputRefused, match=r"line 3: (not CSV|2 lines hold 4 cells)"):
        imported(path, quarantine=True)

    assert not (tmp_path / "snapshots").exists()


def test_a_line_end_in_a_title_is_counted_and_one_in_a_name_is_named(tmp_path: Path) -> None:
    title = write_csv(tmp_path / "a.csv", [{"id": "A", "title": "Broken title,x\nB,Screen 5", "authors": "A,\nB Two"}])
    name = write_csv(tmp_path / "b.csv", [{"id": "A", "title": "T", "authors": "A One\nB Two"}])

    assert imported(title)["cases"]["line_end_in_title"] == 1
    assert papers(title)[0]["authors"] == ["A", "B Two"]
    with pytest.raises(BadRecords, match="a line ends within a name"):
        import_file(Import(name, "b", tmp_path / "snapshots"))
    assert import_file(Import(name, "b", tmp_path / "snapshots", separator="\n"))["papers"] == 1


def test_a_tab_separated_list_and_quoted_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes('id\ttitle\tabstract\r\nA\tT\t"one\r\ntwo\u2028three"\r\n'.encode())

    imported(path)

    assert papers(path)[0]["abstract"] == "one\r\ntwo\u2028three"


def test_a_line_separator_inside_a_string_ends_no_line_of_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "A", "title": "one\u2028two"}\n\n{"id": "B", "title": "T"}', encoding="utf-8")

    assert imported(path)["rows"] == 2
    assert papers(path)[0]["title"] == "one\u2028two"
