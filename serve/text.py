"""What the model reads: compact English text of bounded length, free of invisible characters.

Nothing here searches or stores. Text of papers, labels and arguments goes through `clean` before it is shown.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple

from manifests.contract import Catalogue
from manifests.hybrid import Hit
from serve.errors import ErrorCode, ToolFailure
from serve.filters import parents
from serve.session import Session, SessionLimits

AUTHORS_SHOWN = 3
AUTHORS_WHOLE_MAX = 100
LEFT_OUT_SHOWN = 5
PREVIEWS = (500, 350, 250, 150, 80)
ABSTRACTS = (60_000, 8_000, 4_000, 2_000, 1_000, 500, 250)
ID_CHARS_MAX = 64
WORDS_CHARS_MAX = 120
# Kept free for the first and the last lines of an answer.
FRAME_CHARS = 1_200

Paper = Mapping[str, Any]

# Characters that show nothing, or change how their neighbours show, outside the categories dropped whole.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0000-\U000e0fff\ufdd0-\ufdef\ufffe\uffff]"
)
# What an id that nobody knows is stripped of before it is repeated: it is the caller's text, not ours.
_UNLIKE_AN_ID = re.compile(r"[^\w.:~?=&/#%+-]")
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Co"})
# All that can be one of these; an abstract with a single dash must not have each of its letters looked up.
_UNUSUAL = re.compile(r"[^\x20-\x7e]")


class Heading(NamedTuple):
    """What the first line of a search answer says beside the number of papers."""

    corpus: str
    filters: list[str]
    left_out: list[str]
    lexical_because: str | None
    notes: list[str]


def clean(text: str) -> str:
    """`text` on one line: white space collapsed; control, format, bidi, invisible and private characters gone."""
    spaced = " ".join(text.split())
    if spaced.isascii() and spaced.isprintable():
        return spaced
    return " ".join(_UNUSUAL.sub(lambda found: _shown(found[0]), spaced).split())


# An answer is laid out before it is written, and good papers are found again and again.
_paper_text = functools.lru_cache(maxsize=8_192)(clean)


@functools.lru_cache(maxsize=4_096)
def _shown(character: str) -> str:
    dropped = unicodedata.category(character) in _DROPPED or _INVISIBLE.fullmatch(character)
    return "" if dropped else character


def bounded(text: str, chars_max: int) -> str:
    """`text` within `chars_max`: the last guard behind every answer."""
    return text if len(text) <= chars_max else text[: chars_max - 6] + "\n[cut]"


def shortened(text: str, chars_max: int) -> str:
    """`text` cut at a word within `chars_max`, with an ellipsis when something is missing."""
    if len(text) <= chars_max:
        return text
    cut = text[: chars_max - 1]
    return (cut.rpartition(" ")[0] or cut).rstrip(" ,;:") + "…"


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
    said = [f"{_count(len(hits), 'paper')} of {heading.corpus}, best first", *heading.notes]
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
    lines = [f"{_count(len(shown), 'paper')}{session_note}."]
    for number, paper in enumerate(shown, start=1):
        lines.append(_paper_lines(number, paper))
        lines.extend(_abstract_lines(paper, shape.preview))
    if shown and any(len(clean(paper["abstract"])) > shape.preview for paper in shown):
        lines.append(f"Abstracts cut at {shape.preview} characters to fit; ask for fewer papers to read them whole.")
    if unshown:
        lines.append("Not shown, to fit; ask again for: " + _ids([paper["paper_id"] for paper in unshown]))
    if unknown:
        named = [_UNLIKE_AN_ID.sub("", paper_id) or "(no id)" for paper_id in unknown]
        lines.append(f"Not in this index (ids are case-sensitive; take them from search_papers): {_ids(named)}")
    return "\n".join(lines)


def session_opened(session_id: str, limits: SessionLimits) -> str:
    """The answer of a new session."""
    return (
        f"session_id: {session_id}\n"
        "Pass it to search_papers and get_papers; papers returned in it are left out of later searches."
        f" It expires after {_duration(limits.ttl_s)} without use and holds at most {limits.rounds:,} rounds"
        f" and {limits.papers:,} papers. Close it with close_search_session."
    )


def session_closed(session: Session, now: float) -> str:
    """The summary of a session that ended."""
    return (
        f"Session{_label(session)} closed: {_count(session.papers, 'paper')} returned in"
        f" {_count(session.rounds, 'round')} over {_duration(now - session.opened_at)}."
        " Its id can no longer be used."
    )


def session_status(session: Session, limits: SessionLimits, now: float) -> str:
    """The progress of a live session."""
    top_k = f" default_top_k {session.default_top_k}." if session.default_top_k else ""
    return (
        f"Session{_label(session)}: {_count(session.papers, 'paper')} returned in {_count(session.rounds, 'round')}."
        f" Opened {_time(session.opened_at)}, last used {_time(session.used_at)},"
        f" expires in {_duration(session.used_at + limits.ttl_s - now)} without use.{top_k}"
        f" Left: {max(0, limits.rounds - session.rounds):,} rounds,"
        f" {max(0, limits.papers - session.papers):,} papers."
    )


def session_papers(status: str, session: Session, titles: Sequence[tuple[str, str]], *, chars_max: int) -> str:
    """`status` with the papers last returned, as many as fit; `titles` are (paper id, title), newest first."""
    lines = [status, "Papers returned, newest first:"]
    left = chars_max - FRAME_CHARS
    for paper_id, title in titles:
        line = f"[{_id(paper_id)}] {clean(title)}"
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    shown = len(lines) - 2
    if shown < session.papers:
        lines.append(f"{session.papers - shown:,} more not shown; get_papers shows papers by id.")
    return "\n".join(lines if session.papers else [status, "No papers returned yet."])


def areas_answer(catalogue: Catalogue, corpus: str, *, chars_max: int) -> str:
    """Every value of `area` and `paper_type` with its number of papers."""
    types = ", ".join(f"{clean(name)} {papers:,}" for name, papers in sorted(catalogue.paper_types.items()))
    lines = [
        f"{corpus}. area takes a name below or a parent (everything before ->), in any case.",
        f"paper_type: {types}",
        f"spotlight: {catalogue.spotlight:,} (of all papers; oral: {catalogue.oral:,})",
        f"Parents: {', '.join(f'{clean(name)} {papers:,}' for name, papers in parents(catalogue.areas).items())}",
        "Areas:",
    ]
    left = chars_max - FRAME_CHARS - sum(len(line) + 1 for line in lines)
    for position, (area, papers) in enumerate(sorted(catalogue.areas.items())):
        line = f"{clean(area)}: {papers:,}"
        left -= len(line) + 1
        if left < 0:
            lines.append(f"{len(catalogue.areas) - position} more areas not shown; search by a parent instead.")
            break
        lines.append(line)
    return "\n".join(lines)[:chars_max]


def cut_notes(found: int, shape: Layout, *, abstracts: bool, in_session: bool) -> list[str]:
    """What the answer had to leave out, and how to see it."""
    notes = []
    if shape.hits < found:
        later = "the next round brings them" if in_session else "ask for fewer"
        notes.append(f"{_count(found - shape.hits, 'more paper')} did not fit; {later}, or set include_abstract false.")
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
    hits = 0
    while budget >= fixed[hits]:
        budget -= fixed[hits]
        hits += 1
    if not hits:
        raise ToolFailure(
            ErrorCode.RESPONSE_TOO_LARGE,
            f"The first paper takes {fixed[0]:,} characters, more than this server's limit of {chars_max:,} allows."
            f" {ErrorCode.RESPONSE_TOO_LARGE.advice}",
        )
    return Layout(hits, 0)


def _hit_lines(number: int, hit: Hit, paper: Paper) -> str:
    facts = [*_kind(paper), f"score {hit.score:.2f}"]
    if paper["authors"]:
        facts.append(_names(paper["authors"], AUTHORS_SHOWN))
    if link := paper["forum_url"] or paper["pdf_url"]:
        facts.append(_paper_text(link))
    return f"{_title_line(number, paper)}\n   {' | '.join(facts)}"


def _paper_lines(number: int, paper: Paper) -> str:
    lines = [_title_line(number, paper), "   " + " | ".join(_kind(paper))]
    if paper["authors"]:
        lines.append(f"   Authors: {_names(paper['authors'], AUTHORS_WHOLE_MAX)}")
    if paper["keywords"]:
        lines.append(f"   Keywords: {_names(paper['keywords'], AUTHORS_WHOLE_MAX)}")
    links = (("Forum", paper["forum_url"]), ("PDF", paper["pdf_url"]))
    lines.extend(f"   {name}: {_paper_text(link)}" for name, link in links if link)
    return "\n".join(lines)


def _title_line(number: int, paper: Paper) -> str:
    return f"{number}. [{_id(paper['paper_id'])}] {_paper_text(paper['title'])}"


def _abstract_lines(paper: Paper, chars_max: int) -> list[str]:
    if not chars_max:
        return []
    abstract = _paper_text(paper["abstract"])
    return ["   " + (shortened(abstract, chars_max) if abstract else "(no abstract)")]


def _kind(paper: Paper) -> list[str]:
    marks = [mark for mark in ("spotlight", "oral") if paper[mark]]
    return [_paper_text(paper["area"]), _paper_text(paper["paper_type"]), *marks]


def _names(names: Sequence[str], shown: int) -> str:
    more = [f"+{len(names) - shown}"] if len(names) > shown else []
    return ", ".join([*(_paper_text(name) for name in names[:shown]), *more])


def _left_out(paper_ids: Sequence[str]) -> str:
    return f"{len(paper_ids)}: {_names([_id(paper_id) for paper_id in paper_ids], LEFT_OUT_SHOWN)}"


def _lexical(reason: str) -> str:
    return f"ranked by words alone (BM25), because the query could not be embedded: {reason}"


def _id(paper_id: str) -> str:
    return shortened(clean(paper_id), ID_CHARS_MAX)


def _ids(paper_ids: Sequence[str]) -> str:
    """As many of the ids as fit into a frame's share of the answer, then how many more."""
    names = [_id(paper_id) for paper_id in paper_ids]
    shown = sum(1 for length in accumulate(len(name) + 2 for name in names) if length <= FRAME_CHARS)
    return _names(names, shown)


def _label(session: Session) -> str:
    return f' "{shortened(clean(session.label), WORDS_CHARS_MAX)}"' if clean(session.label) else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _time(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _duration(seconds: float) -> str:
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit_s or (seconds >= unit_s and seconds % unit_s == 0):
            return f"{seconds / unit_s:.0f} {name}"
    return f"{max(0, seconds):.0f} s"
