"""The application service: what each tool does, from checked arguments to the text of the answer.

One search: embed the query -> hybrid, or words alone with the reason -> min_score -> session -> top_k -> text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio.to_thread import run_sync

from manifests.contract import Manifest
from manifests.embedding.spec import Vectors
from manifests.errors import MilvusError
from manifests.hybrid import Hit
from manifests.texts import query_text
from serve import answers, session_answers, text
from serve.errors import ErrorCode, ToolFailure
from serve.filters import build_filter
from serve.observe import Metrics, part
from serve.session import Page, Sessions
from serve.workers import Workers

T = TypeVar("T")

log = logging.getLogger(__name__)

TOP_K_DEFAULT = 10
DEPTH_DEFAULT = 100
DEPTH_MAX = 500
# Milvus is told to stop this long before the caller is, so that the caller hears the engine's own failure.
MARGIN_S = 0.5
# Told once, by the first answer of a session after a restart on another index.
INDEX_CHANGED = "the index was rebuilt since this session's last answer; papers returned before stay left out"
PROBE_TEXT = "learning"
PROBE_TIMEOUT_S = 5.0


class VerifiedIndex(Protocol):
    """What the gate's value offers a search; only manifests.gate.open_index makes the real one."""

    manifest: Manifest
    papers: Mapping[str, Mapping[str, Any]]

    def hybrid(self, vector: Vectors, text: str, where: str, depth: int, timeout_s: float) -> list[Hit]:
        """Both rankings fused, at most `depth` hits."""
        ...

    def lexical(self, text: str, where: str, depth: int, timeout_s: float) -> list[Hit]:
        """The BM25 ranking alone."""
        ...

    def running(self) -> bool:
        """False once an embedded engine is gone for good."""
        ...


class QueryEmbedding(Protocol):
    """Turns a query into a vector, or says in one of DESIGN.md's words why it cannot."""

    async def embed(self, query: str) -> Vectors | str:
        """A vector of shape (dimension,), or the reason for an answer by words alone."""
        ...


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
        embedding: QueryEmbedding,
        sessions: Sessions,
        workers: Workers,
        metrics: Metrics,
        *,
        strict_hybrid: bool,
        output_chars: int,
        now: Callable[[], float],
        index_lost: Callable[[], None],
    ) -> None:
        self._index = index
        self._embedding = embedding
        self._sessions = sessions
        self._workers = workers
        self._metrics = metrics
        self._strict_hybrid = strict_hybrid
        self._chars = output_chars
        self._now = now
        self._index_lost = index_lost
        self._turn = anyio.CapacityLimiter(1)
        self._by_url = {
            url: paper_id
            for paper_id, paper in index.papers.items()
            for url in (paper["forum_url"], paper["pdf_url"])
            if url
        }
        self.index_failed = False
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
        hits, reason = await self._ranking(request.query, asked.where, depth, deadline)
        filters = [text.shortened(text.clean(words), text.WORDS_CHARS_MAX) for words in asked.words]
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
        session_id = await self.in_turn(partial(self._sessions.open, text.clean(label), default_top_k))
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

    async def probe(self) -> bool:
        """Whether the index answers now; asks it only when the last search failed."""
        if self.index_failed:
            call = partial(self._index.lexical, PROBE_TEXT, "", 1, PROBE_TIMEOUT_S)
            try:
                await self._workers.run(call)
            except (MilvusError, ToolFailure):
                return False
            self.index_failed = False
        return True

    async def _ranking(self, query: str, where: str, depth: int, deadline: float) -> tuple[list[Hit], str | None]:
        """The candidate window, and why it is lexical only when it is."""
        with part("embed"):
            vector = await self._embedding.embed(query)
        words = query_text(query)
        if isinstance(vector, str):
            self._metrics.lexical.labels(vector).inc()
            if self._strict_hybrid:
                raise ToolFailure(
                    ErrorCode.EMBEDDING_UNAVAILABLE,
                    f"The query could not be embedded ({vector}). {ErrorCode.EMBEDDING_UNAVAILABLE.advice}",
                )
            return await self._ask(lambda left: self._index.lexical(words, where, depth, left), deadline), vector
        return await self._ask(lambda left: self._index.hybrid(vector, words, where, depth, left), deadline), None

    async def _ask(self, ask: Callable[[float], list[Hit]], deadline: float) -> list[Hit]:
        """One question to Milvus in a worker thread, told the seconds it has left when its turn comes."""

        def asked() -> list[Hit]:
            left = deadline - MARGIN_S - time.monotonic()
            if left <= 0:
                raise ToolFailure(
                    ErrorCode.OVERLOADED, f"The turn of this search did not come in time. {ErrorCode.OVERLOADED.advice}"
                )
            return ask(left)

        try:
            with part("milvus"):
                hits = await self._workers.run(asked)
        except MilvusError as error:
            self.index_failed = True
            log.warning("index failed: %s", error)
            if not self._index.running():
                self._index_lost()
            raise ToolFailure(
                ErrorCode.INDEX_UNAVAILABLE,
                f"{ErrorCode.INDEX_UNAVAILABLE.meaning} {ErrorCode.INDEX_UNAVAILABLE.advice}",
            ) from error
        self.index_failed = False
        return hits

    async def _page(self, request: SearchRequest, hits: Sequence[Hit], top_k: int) -> Page:
        ranking = [hit.paper_id for hit in hits]
        by_id = {hit.paper_id: hit for hit in hits}

        def fitting(papers: list[str]) -> int:
            return self._shape(request, [by_id[paper_id] for paper_id in papers]).hits

        if request.session_id is None:
            return Page(ranking[: fitting(ranking[:top_k])], [], 0, index_changed=False)
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
        shown = [hit for hit in hits if hit.paper_id in set(page.papers)]
        shape = self._shape(request, shown)
        found = min(top_k, len(hits) - len(page.left_out))
        cut = answers.cut_notes(
            found,
            shape._replace(hits=len(shown)),
            abstracts=request.include_abstract,
            in_session=request.session_id is not None,
        )
        if request.session_id is not None and found < top_k:
            cut.append(f"That was the rest of this window of {depth} candidates; raise search_depth or ask otherwise.")
        return answers.search_answer(heading, shown, self._index.papers, shape=shape, cut=cut)

    def _resolve(self, asked: Sequence[str]) -> tuple[list[str], list[str]]:
        """Known ids and unknown ones, each once and in the order asked."""
        ids = list(dict.fromkeys(self._by_url.get(name) or named_id(name) for name in asked))
        known = [paper_id for paper_id in ids if paper_id in self._index.papers]
        return known, [paper_id for paper_id in ids if paper_id not in self._index.papers]


def corpus_words(manifest: Manifest) -> str:
    """Such as `6,341 ICML 2026 papers`: every sentence about the corpus says it alike."""
    return f"{manifest.corpus.rows:,} {text.clean(manifest.snapshot.title)} papers"


def named_id(name: str) -> str:
    """The paper id that `name` is, or that an OpenReview address such as `…/forum?id=ID` names."""
    if "?" not in name:
        return name.strip()
    values = parse_qs(urlsplit(name.strip()).query).get("id", [name])
    return values[0].strip()
