"""The answers of searches and of papers asked for, laid out to fit.

Compact English lines. Nothing here searches or stores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from manifests.contract import Catalogue
from manifests.hybrid import Hit
from manifests.visible import visible
from serve.errors import ErrorCode, ToolFailure
from serve.filters import parents
from serve.text import FRAME_CHARS, bounded, counted, paper_text, shortened, shown_id

AUTHORS_SHOWN = 3
# Of the authors, and of the keywords, of a whole paper: the longest record that load accepts can still be read.
NAMES_CHARS_MAX = 5_000
LEFT_OUT_SHOWN = 5
PREVIEWS = (500, 350, 250, 150, 80)
ABSTRACTS = (60_000, 8_000, 4_000, 2_000, 1_000, 500, 250)
# In the first line of every answer that had no vector: benches look for it too.
LEXICAL = "ranked by words alone (BM25)"
# What an id that nobody knows is stripped of before it is repeated: it is the caller's text, not ours.
_UNLIKE_AN_ID = re.compile(r"[^\w.:~?=&/#%+-]")

Paper = Mapping[str, Any]


class Heading(NamedTuple):
    """What the first line of a search answer says beside the number of papers."""

    corpus: str
    filters: list[str]
    left_out: list[str]
    lexical_because: str | None
    notes: list[str]


class Layout(NamedTuple):
    """How much of a list of hits an answer can show: this many, with abstracts cut to `preview` (0: none)."""

    hits: int
    preview: int


def layout(hits: Sequence[Hit], papers: Mapping[str, Paper], *, abstracts: bool, chars_max: int) -> Layout:
    """The layout that shows every hit, with as much of the abstracts as then fits; else as many hits as fit.

    Raises:
        ToolFailure: `response_too_large`; not even one hit fits.
    """
    blocks = [_hit_lines(number, hit, papers[hit.paper_id]) for number, hit in enumerate(hits, start=1)]
    return _layout(blocks, [papers[hit.paper_id] for hit in hits], PREVIEWS if abstracts else (), chars_max)


def search_answer(
    heading: Heading, hits: Sequence[Hit], papers: Mapping[str, Paper], *, shape: Layout, cut: list[str]
) -> str:
    """The answer of a search that found new papers; `cut` says what is missing and how to get it."""
    said = [f"{counted(len(hits), 'paper')} of {heading.corpus}, best first", *heading.notes]
    if heading.filters:
        said.append("filters: " + ", ".join(heading.filters))
    if heading.left_out:
        said.append(f"left out as already returned in this session: {_left_out(heading.left_out)}")
    if heading.lexical_because:
        said.append(_lexical(heading.lexical_because))
    lines = ["; ".join(said) + "."]
    for number, hit in enumerate(hits, start=1):
        paper = papers[hit.paper_id]
        lines.append(_hit_lines(number, hit, paper))
        lines.extend(_abstract_lines(paper, shape.preview))
    return "\n".join([*lines, *cut])


def nothing_matches(heading: Heading) -> str:
    """The answer of a search with no candidate at all."""
    said = [f"0 papers: nothing in {heading.corpus} matches", *heading.notes]
    if heading.filters:
        said.append("filters: " + ", ".join(heading.filters))
    if heading.lexical_because:
        said.append(_lexical(heading.lexical_because))
    advice = "Remove a filter or lower min_score." if heading.filters else "Use other or fewer words."
    return "; ".join(said) + f". {advice}"


def all_returned(heading: Heading, depth: int, depth_max: int) -> str:
    """The answer of a search whose every candidate was returned before in the session."""
    said = [
        f"0 new papers of {heading.corpus}",
        f"everything in this window of {depth} candidates was already returned in this session",
        f"left out: {_left_out(heading.left_out)}",
        *heading.notes,
    ]
    if heading.filters:
        said.append("filters: " + ", ".join(heading.filters))
    if heading.lexical_because:
        said.append(_lexical(heading.lexical_because))
    deeper = f"raise search_depth (at most {depth_max}), " if depth < depth_max else ""
    advice = f"To see more, {deeper}ask another query, or open a new session to start again from the first page."
    return "; ".join(said) + f". {advice}"


def papers_layout(papers: Sequence[Paper], unknown: Sequence[str], *, chars_max: int) -> Layout:
    """Like `layout`, for whole papers beside the ids that are unknown.

    Raises:
        ToolFailure: `response_too_large`; not even one paper fits.
    """
    blocks = [_paper_lines(number, paper) for number, paper in enumerate(papers, start=1)]
    return _layout(blocks, papers, ABSTRACTS, chars_max - len(_ids(unknown)))


def papers_answer(papers: Sequence[Paper], unknown: Sequence[str], *, shape: Layout, session_note: str) -> str:
    """The papers asked for, in that order; those that did not fit and those unknown are named."""
    shown, unshown = papers[: shape.hits], papers[shape.hits :]
    lines = [f"{counted(len(shown), 'paper')}{session_note}."]
    for number, paper in enumerate(shown, start=1):
        lines.append(_paper_lines(number, paper))
        lines.extend(_abstract_lines(paper, shape.preview))
    if shown and any(len(visible(paper["abstract"])) > shape.preview for paper in shown):
        how = f"cut at {shape.preview} characters" if shape.preview else "left out"
        fewer = "; ask for fewer papers to read them whole" if len(papers) > 1 else ""
        lines.append(f"Abstracts {how} to fit{fewer}.")
    if unshown:
        lines.append("Not shown, to fit; ask again for: " + _ids([paper["paper_id"] for paper in unshown]))
    if unknown:
        named = [_UNLIKE_AN_ID.sub("", paper_id) or "(no id)" for paper_id in unknown]
        lines.append(f"Not in this index (ids are case-sensitive; take them from search_papers): {_ids(named)}")
    return "\n".join(lines)


def areas_answer(catalogue: Catalogue, corpus: str, *, chars_max: int) -> str:
    """Every value of `area` and `paper_type` with its number of papers."""
    types = ", ".join(f"{visible(name)} {papers:,}" for name, papers in sorted(catalogue.paper_types.items()))
    lines = [
        f"{corpus}. area takes a name below or a parent (everything before ->), in any case.",
        f"paper_type: {types}",
        f"spotlight: {catalogue.spotlight:,} (of all papers; oral: {catalogue.oral:,})",
        f"Parents: {', '.join(f'{visible(name)} {papers:,}' for name, papers in parents(catalogue.areas).items())}",
        "Areas:",
    ]
    left = chars_max - FRAME_CHARS - sum(len(line) + 1 for line in lines)
    for position, (area, papers) in enumerate(sorted(catalogue.areas.items())):
        line = f"{visible(area)}: {papers:,}"
        left -= len(line) + 1
        if left < 0:
            lines.append(f"{len(catalogue.areas) - position} more areas not shown; search by a parent instead.")
            break
        lines.append(line)
    return bounded("\n".join(lines), chars_max)


def cut_notes(found: int, shape: Layout, *, abstracts: bool, in_session: bool, session_full: bool) -> list[str]:
    """What the answer had to leave out, and how to see it."""
    notes = []
    if shape.hits < found:
        how = "the next round brings them" if in_session else "a session brings them in further rounds"
        if session_full:
            how = "this session holds as many papers as it may: close it and open a new one"
        notes.append(f"{counted(found - shape.hits, 'more paper')} did not fit; {how}.")
    if abstracts and shape.preview < PREVIEWS[0]:
        how = f"cut to {shape.preview} characters" if shape.preview else "left out"
        notes.append(f"Abstract previews {how} to fit; lower top_k, or read them with get_papers.")
    return notes


def _layout(blocks: Sequence[str], papers: Sequence[Paper], lengths: Sequence[int], chars_max: int) -> Layout:
    budget = chars_max - FRAME_CHARS
    fixed = [len(block) + 1 for block in blocks]
    for length in (*lengths, 0):
        shown = sum(len(line) + 1 for paper in papers for line in _abstract_lines(paper, length))
        if sum(fixed) + shown <= budget:
            return Layout(len(blocks), length)
    hits = sum(end <= budget for end in accumulate(fixed))
    if fixed and not hits:
        raise ToolFailure(
            ErrorCode.RESPONSE_TOO_LARGE,
            f"The first paper takes {fixed[0]:,} characters, more than this server's limit of {chars_max:,} leaves."
            f" {ErrorCode.RESPONSE_TOO_LARGE.advice}",
        )
    return Layout(hits, 0)


def _hit_lines(number: int, hit: Hit, paper: Paper) -> str:
    facts = [*_kind(paper), f"score {hit.score:.2f}"]
    if paper["authors"]:
        facts.append(_names(paper["authors"][:AUTHORS_SHOWN], len(paper["authors"])))
    if link := paper["forum_url"] or paper["pdf_url"]:
        facts.append(paper_text(link))
    return f"{_title_line(number, paper)}\n   {' | '.join(facts)}"


def _paper_lines(number: int, paper: Paper) -> str:
    lines = [_title_line(number, paper), "   " + " | ".join(_kind(paper))]
    if paper["authors"]:
        lines.append(f"   Authors: {_names(_fitting(paper['authors'], NAMES_CHARS_MAX), len(paper['authors']))}")
    if paper["keywords"]:
        lines.append(f"   Keywords: {_names(_fitting(paper['keywords'], NAMES_CHARS_MAX), len(paper['keywords']))}")
    links = (("Forum", paper["forum_url"]), ("PDF", paper["pdf_url"]))
    lines.extend(f"   {name}: {paper_text(link)}" for name, link in links if link)
    return "\n".join(lines)


def _title_line(number: int, paper: Paper) -> str:
    return f"{number}. [{shown_id(paper['paper_id'])}] {paper_text(paper['title'])}"


def _abstract_lines(paper: Paper, chars_max: int) -> list[str]:
    if not chars_max:
        return []
    abstract = paper_text(paper["abstract"])
    return ["   " + (shortened(abstract, chars_max) if abstract else "(no abstract)")]


def _kind(paper: Paper) -> list[str]:
    marks = [mark for mark in ("spotlight", "oral") if paper[mark]]
    return [paper_text(paper["area"]), paper_text(paper["paper_type"]), *marks]


def _names(names: Sequence[str], of: int) -> str:
    more = [f"+{of - len(names)}"] if of > len(names) else []
    return ", ".join([*(paper_text(name) for name in names), *more])


def _fitting(names: Sequence[str], chars_max: int) -> Sequence[str]:
    """The first of `names` that fit into a line of `chars_max`."""
    ends = accumulate(len(paper_text(name)) + 2 for name in names)
    return names[: sum(1 for end in ends if end <= chars_max)]


def _left_out(paper_ids: Sequence[str]) -> str:
    shown = [shown_id(paper_id) for paper_id in paper_ids[:LEFT_OUT_SHOWN]]
    return f"{len(paper_ids)}: {_names(shown, len(paper_ids))}"


def _lexical(reason: str) -> str:
    return f"{LEXICAL}, because the query could not be embedded: {reason}"


def _ids(paper_ids: Sequence[str]) -> str:
    """As many of the ids as fit into a frame's share of the answer, then how many more."""
    return _names(_fitting([shown_id(paper_id) for paper_id in paper_ids], FRAME_CHARS), len(paper_ids))
