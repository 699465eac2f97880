"""What the model reads of papers: one shape, bounded."""

from __future__ import annotations

import pytest

from manifests.contract import Catalogue
from manifests.hybrid import Hit
from serve import answers
from serve.errors import ErrorCode, ToolFailure
from tests.serve.standin import paper


def heading(**changed) -> answers.Heading:
    return answers.Heading("9 X papers", [], [], None, [])._replace(**changed)


def test_a_hit_is_title_line_facts_line_preview():
    stored = paper(0, title="A\nTitle", area="Theory", authors=["A", "B", "C", "D", "E"], abstract="Short.")
    answer = answers.search_answer(
        heading(), [Hit("paper000", 0.987)], {"paper000": stored}, shape=answers.Layout(1, 500), cut=[]
    )

    assert answer.splitlines() == [
        "1 paper of 9 X papers, best first.",
        "1. [paper000] A Title",
        "   Theory | position | spotlight | oral | score 0.99 | A, B, C, +2 | https://openreview.net/forum?id=paper000",
        "   Short.",
    ]


def test_the_first_line_says_everything_in_force():
    first = answers.search_answer(
        heading(
            filters=['area "X"', "spotlight only"],
            left_out=[f"p{number}" for number in range(7)],
            lexical_because="timeout",
            notes=["search_depth clamped to 500"],
        ),
        [],
        {},
        shape=answers.Layout(0, 0),
        cut=[],
    ).splitlines()[0]

    assert first == (
        '0 papers of 9 X papers, best first; search_depth clamped to 500; filters: area "X", spotlight only; left out'
        " as already returned in this session: 7: p0, p1, p2, p3, p4, +2; ranked by words alone (BM25), because the"
        " query could not be embedded: timeout."
    )


def test_nothing_matching_and_everything_returned_are_different_sentences():
    nothing = answers.nothing_matches(heading(filters=["spotlight only"]))
    used_up = answers.all_returned(heading(left_out=["p1"]), 100, 500)

    assert "nothing in 9 X papers matches" in nothing
    assert "Remove a filter" in nothing
    assert "already returned in this session" in used_up
    assert "search_depth" in used_up
    assert "already returned" not in nothing
    assert "search_depth" not in answers.all_returned(heading(left_out=["p1"]), 500, 500)


@pytest.mark.parametrize("chars_max", [2_000, 3_000, 5_000, 10_000, 20_000, 100_000])
@pytest.mark.parametrize("abstracts", [True, False])
def test_a_search_answer_is_bounded_and_hits_come_before_previews(chars_max, abstracts):
    papers = {
        stored["paper_id"]: stored for stored in (paper(number, abstract="long " * 2_000) for number in range(50))
    }
    hits = [Hit(paper_id, 0.5) for paper_id in papers]

    shape = answers.layout(hits, papers, abstracts=abstracts, chars_max=chars_max)
    cut = answers.cut_notes(len(hits), shape, abstracts=abstracts, in_session=True, session_full=False)
    answer = answers.search_answer(
        heading(left_out=[f"left{number:060}" for number in range(90)]),
        hits[: shape.hits],
        papers,
        shape=shape,
        cut=cut,
    )

    assert len(answer) <= chars_max
    assert shape.hits == 50 or shape.preview == 0
    assert (shape.hits == 50) == ("did not fit" not in answer)


@pytest.mark.parametrize("abstracts", [True, False])
@pytest.mark.parametrize(
    ("in_session", "session_full", "advice"),
    [
        (False, False, "a session brings them in further rounds."),
        (True, False, "the next round brings them."),
        (True, True, "this session holds as many papers as it may: close it and open a new one."),
    ],
)
def test_the_advice_for_what_did_not_fit_can_be_followed(abstracts, in_session, session_full, advice):
    papers = {stored["paper_id"]: stored for stored in (paper(number) for number in range(20))}
    hits = [Hit(paper_id, 0.5) for paper_id in papers]
    shape = answers.layout(hits, papers, abstracts=abstracts, chars_max=2_000)

    cut = answers.cut_notes(20, shape, abstracts=abstracts, in_session=in_session, session_full=session_full)

    assert 0 < shape.hits < 20
    assert shape.hits == answers.layout(hits, papers, abstracts=False, chars_max=2_000).hits
    assert cut[0] == f"{20 - shape.hits} more papers did not fit; {advice}"
    assert ("get_papers" in "".join(cut[1:])) == abstracts


def test_an_abstract_longer_than_an_answer_is_cut_without_advice_to_ask_for_less():
    papers = [paper(number, abstract="long " * 2_000) for number in range(2)]

    one, two = (
        answers.papers_answer(some, [], shape=answers.papers_layout(some, [], chars_max=5_000), session_note="")
        for some in (papers[:1], papers)
    )

    assert one.endswith("to fit.")
    assert two.endswith("to fit; ask for fewer papers to read them whole.")


def test_one_hit_that_does_not_fit_is_response_too_large():
    stored = paper(1, title="long " * 400)

    with pytest.raises(ToolFailure, match="limit of 2,000") as refused:
        answers.layout([Hit("paper001", 1.0)], {"paper001": stored}, abstracts=True, chars_max=2_000)

    assert refused.value.code is ErrorCode.RESPONSE_TOO_LARGE


@pytest.mark.parametrize("chars_max", [2_000, 6_000, 20_000, 100_000])
def test_whole_papers_are_bounded_and_what_is_missing_is_said(chars_max):
    papers = [paper(number, abstract="long " * 400, authors=[f"A{i}" for i in range(59)]) for number in range(50)]

    shape = answers.papers_layout(papers, ["nope"], chars_max=chars_max)
    answer = answers.papers_answer(papers, ["nope"], shape=shape, session_note="")

    assert len(answer) <= chars_max
    assert ("Not shown" in answer) == (shape.hits < 50)
    assert ("Abstracts cut" in answer or "Abstracts left out" in answer) == (shape.preview < 2_000)
    assert "at 0 characters" not in answer
    assert answer.endswith("nope")


def test_whole_papers_show_all_there_is():
    answer = answers.papers_answer([paper(0)], [], shape=answers.Layout(1, 60_000), session_note="; 1 newly recorded")

    assert answer.startswith("1 paper; 1 newly recorded.\n1. [paper000] Title 0\n")
    assert "Authors: Author 0-0, Author 0-1, Author 0-2, Author 0-3, Author 0-4\n" in answer
    assert "Keywords: one, two\n" in answer
    assert "PDF" not in answer


def test_the_longest_record_that_load_accepts_can_be_read():
    longest = paper(
        0,
        title="T" * 2_000,
        area="A" * 500,
        paper_type="p" * 100,
        authors=[f"{number:04}" + "n" * 496 for number in range(2_000)],
        keywords=[f"{number:04}" + "k" * 496 for number in range(200)],
        forum_url="u" * 2_000,
        pdf_url="v" * 2_000,
    )

    shape = answers.papers_layout([longest], [], chars_max=20_000)
    answer = answers.papers_answer([longest], [], shape=shape, session_note="")

    assert shape.hits == 1
    assert len(answer) <= 20_000
    assert ", +1991\n" in answer
    assert ", +191\n" in answer


def test_an_odd_id_is_shown_short_and_clean():
    answer = answers.papers_answer(
        [], ["\x1b[2J" + "x" * 500, "<script>a()</script>", "<>"], shape=answers.Layout(0, 0), session_note=""
    )

    assert not set("\x1b<>[") & set(answer)
    assert answer.endswith(", scripta/script, (no id)")
    assert len(answer) < 250


def test_areas_are_listed_with_counts_and_bounded():
    catalogue = Catalogue(
        areas={f"Parent {number % 7}->Child {number}": number for number in range(100)},
        paper_types={"regular": 6_000, "position": 300},
        spotlight=5,
        oral=2,
        without_abstract=0,
    )

    whole = answers.areas_answer(catalogue, "9 X papers", chars_max=20_000)
    short = answers.areas_answer(catalogue, "9 X papers", chars_max=2_000)

    assert "paper_type: position 300, regular 6,000" in whole
    assert "Parent 6->Child 97: 97" in whole
    assert len(short) <= 2_000
    assert "more areas not shown" in short


def test_a_list_of_types_longer_than_an_answer_is_cut_and_says_so():
    types = {f"type {number}": 1 for number in range(500)}
    catalogue = Catalogue(areas={"Theory": 500}, paper_types=types, spotlight=0, oral=0, without_abstract=0)

    answer = answers.areas_answer(catalogue, "500 X papers", chars_max=2_000)

    assert len(answer) <= 2_000
    assert answer.endswith("\n[cut]")
