"""The application service: what each tool does, from checked arguments to the text of the answer.

One search: embed the query -> hybrid, or words alone with the reason -> min_score -> session -> top_k -> text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import parse_qs

import anyio
from anyio.to_thread import run_sync

from manifests.contract import Manifest
from manifests.hybrid import Hit
from manifests.visible import visible
from serve import answers, session_answers, text
from serve.filters import build_filter
from serve.observe import part
from serve.ranking import Ranking, VerifiedIndex
from serve.session import Page, Sessions

T = TypeVar("T")

TOP_K_DEFAULT = 10
DEPTH_DEFAULT = 100
DEPTH_MAX = 500
# Told once, by the first answer of a session after a restart on another index.
INDEX_CHANGED = "the index was rebuilt since this session's last answer; papers returned before stay left out"


@dataclass(frozen=True)
class SearchRequest:
    """The checked arguments of `search_papers`."""

    query: str
    session_id: str | None = None
    top_k: int | None = None
    search_depth: int | None = None
    area: str | None = None
    paper_type: str | None = None
    spotlight_only: bool = False
    min_score: float | None = None
    include_abstract: bool = True


class PaperSearch:
    """Six tools over one verified index. Every method gives the text of the answer or raises `ToolFailure`."""

    def __init__(
        self,
        index: VerifiedIndex,
        ranking: Ranking,
        sessions: Sessions,
        *,
        output_chars: int,
        now: Callable[[], float],
    ) -> None:
        self._index = index
        self._ranking = ranking
        self._sessions = sessions
        self._chars = output_chars
        self._now = now
        self._turn = anyio.CapacityLimiter(1)
        self._by_url = {
            url: paper_id
            for paper_id, paper in index.papers.items()
            for url in (paper["forum_url"], paper["pdf_url"])
            if url
        }
        self.corpus = corpus_words(index.manifest)

    async def search(self, request: SearchRequest, deadline: float) -> str:
        """Search; `deadline` is a time of `time.monotonic`."""
        session = None
        if request.session_id is not None:
            session = await self.in_turn(partial(self._sessions.check_room, request.session_id))
        asked = build_filter(
            self._index.manifest.catalogue,
            area=request.area,
            paper_type=request.paper_type,
            spotlight_only=request.spotlight_only,
        )
        depth = min(request.search_depth or DEPTH_DEFAULT, DEPTH_MAX)
        hits, reason = await self._ranking.window(request.query, asked.where, depth, deadline)
        filters = [text.shortened(visible(words), text.WORDS_CHARS_MAX) for words in asked.words]
        if request.min_score is not None:
            hits = [hit for hit in hits if hit.score >= request.min_score]
            filters.append(f"min_score {request.min_score:g}")
        notes = []
        if request.search_depth is not None and request.search_depth > DEPTH_MAX:
            notes.append(f"search_depth clamped to {DEPTH_MAX}, the most this server checks")
        top_k = request.top_k or (session.default_top_k if session else None) or TOP_K_DEFAULT
        page = await self._page(request, hits, top_k)
        if page.index_changed:
            notes.append(INDEX_CHANGED)
        heading = answers.Heading(self.corpus, filters, page.left_out, reason, notes)
        with part("render"):
            return text.bounded(self._answer(request, hits, page, heading, depth, top_k), self._chars)

    async def open_session(self, label: str, default_top_k: int | None) -> str:
        """Open a session."""
        session_id = await self.in_turn(partial(self._sessions.open, visible(label), default_top_k))
        return session_answers.session_opened(session_id, self._sessions.limits)

    async def close_session(self, session_id: str) -> str:
        """Close a session."""
        session = await self.in_turn(partial(self._sessions.close, session_id))
        return session_answers.session_closed(session, self._now())

    async def session_status(self, session_id: str, include_papers: bool) -> str:
        """Show a session's progress."""
        session, papers = await self.in_turn(partial(self._sessions.returned, session_id))
        status = session_answers.session_status(session, self._sessions.limits, self._now())
        if not include_papers:
            return status
        # A paper of an older index may be gone from this one.
        titles = [
            (paper_id, self._index.papers[paper_id]["title"] if paper_id in self._index.papers else "(not indexed now)")
            for paper_id in papers
        ]
        return text.bounded(session_answers.session_papers(status, session, titles, chars_max=self._chars), self._chars)

    async def get_papers(self, asked: Sequence[str], session_id: str | None) -> str:
        """Fetch papers by id or forum URL, each once, in the order asked."""
        known, unknown = self._resolve(asked)
        papers = [self._index.papers[paper_id] for paper_id in known]
        shape = answers.papers_layout(papers, unknown, chars_max=self._chars)
        note = ""
        if session_id is not None:
            shown = known[: shape.hits]
            recorded = await self.in_turn(partial(self._sessions.record, session_id, shown))
            note = f"; {recorded.new} newly recorded as returned in this session"
            if recorded.index_changed:
                note += f"; {INDEX_CHANGED}"
        with part("render"):
            answer = answers.papers_answer(papers, unknown, shape=shape, session_note=note)
            return text.bounded(answer, self._chars)

    async def list_areas(self) -> str:
        """List areas and paper types."""
        return answers.areas_answer(self._index.manifest.catalogue, self.corpus, chars_max=self._chars)

    async def in_turn(self, call: Callable[[], T]) -> T:
        """One call to the state database off the event loop, finished even when its caller is gone."""
        with part("state"):
            return await run_sync(call, limiter=self._turn)

    async def _page(self, request: SearchRequest, hits: Sequence[Hit], top_k: int) -> Page:
        ranking = [hit.paper_id for hit in hits]
        by_id = {hit.paper_id: hit for hit in hits}

        def fitting(papers: list[str]) -> int:
            return self._shape(request, [by_id[paper_id] for paper_id in papers]).hits

        if request.session_id is None:
            return Page(ranking[: fitting(ranking[:top_k])], [], index_changed=False, full=False)
        return await self.in_turn(partial(self._sessions.page, request.session_id, ranking, fitting, top_k))

    def _shape(self, request: SearchRequest, hits: Sequence[Hit]) -> answers.Layout:
        return answers.layout(hits, self._index.papers, abstracts=request.include_abstract, chars_max=self._chars)

    def _answer(
        self,
        request: SearchRequest,
        hits: Sequence[Hit],
        page: Page,
        heading: answers.Heading,
        depth: int,
        top_k: int,
    ) -> str:
        if not hits:
            return answers.nothing_matches(heading)
        if not page.papers:
            return answers.all_returned(heading, depth, DEPTH_MAX)
        kept = set(page.papers)
        shown = [hit for hit in hits if hit.paper_id in kept]
        shape = self._shape(request, shown)
        found = min(top_k, len(hits) - len(page.left_out))
        cut = answers.cut_notes(
            found,
            shape._replace(hits=len(shown)),
            abstracts=request.include_abstract,
            in_session=request.session_id is not None,
            session_full=page.full,
        )
        if request.session_id is not None and len(shown) == found < top_k:
            deeper = "raise search_depth or " if depth < DEPTH_MAX else ""
            cut.append(f"That was the rest of this window of {depth} candidates; {deeper}ask another query.")
        return answers.search_answer(heading, shown, self._index.papers, shape=shape, cut=cut)

    def _resolve(self, asked: Sequence[str]) -> tuple[list[str], list[str]]:
        """Known ids and unknown ones, each once and in the order asked."""
        papers = self._index.papers
        ids = list(
            dict.fromkeys(name if name in papers else self._by_url.get(name) or named_id(name) for name in asked)
        )
        return [name for name in ids if name in papers], [name for name in ids if name not in papers]


def corpus_words(manifest: Manifest) -> str:
    """Such as `6,341 ICML 2026 papers`: every sentence about the corpus says it alike."""
    return f"{manifest.corpus.rows:,} {visible(manifest.snapshot.title)} papers"


def named_id(name: str) -> str:
    """The paper id that `name` is, also as answers show it, or that an OpenReview address `…/forum?id=ID` names."""
    # Not by urlsplit: it raises for a host that is none, and the host says nothing here.
    asked = parse_qs(name.partition("#")[0].partition("?")[2])
    return asked.get("id", [name])[0].strip().strip("[]<>")
