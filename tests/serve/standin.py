"""What stands in for the index in unit tests: scripted rankings. Everything else is real."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import numpy as np

from manifests.contract import Catalogue
from manifests.hybrid import Hit
from serve.observe import Metrics
from serve.ranking import Ranking
from serve.search import PaperSearch
from serve.tools import Caller, Desk
from serve.workers import Workers

AREAS = (
    "Applications->Chemistry, Physics, and Earth Sciences",
    "Applications->Health / Medicine",
    "Theory->Bandits",
    'a"b\\',
)


class Clock:
    """Epoch seconds that move only when told."""

    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0

    def __call__(self) -> float:
        return self.seconds

    def forward(self, seconds: float) -> None:
        self.seconds += seconds


def paper(number: int, **changed: Any) -> dict[str, Any]:
    stored = {
        "paper_id": f"paper{number:03}",
        "title": f"Title {number}",
        "abstract": f"Abstract {number}. " + "word " * 40,
        "authors": [f"Author {number}-{place}" for place in range(5)],
        "keywords": ["one", "two"],
        "area": AREAS[number % len(AREAS)],
        "paper_type": "position" if number % 10 == 0 else "regular",
        "spotlight": number % 7 == 0,
        "oral": number % 14 == 0,
        "forum_url": f"https://openreview.net/forum?id=paper{number:03}",
        "pdf_url": "",
        "search_text": f"title {number}",
    }
    return stored | changed


@dataclass(frozen=True)
class StandInCorpus:
    rows: int


@dataclass(frozen=True)
class StandInSnapshot:
    title: str = "ICML 2026"
    name: str = "standin"


@dataclass(frozen=True)
class StandInManifest:
    """The facts of a manifest that a search reads."""

    corpus: StandInCorpus
    catalogue: Catalogue
    snapshot: StandInSnapshot = field(default_factory=StandInSnapshot)


class StandInIndex:
    """Ranks every paper by its id, or as `answer` says; remembers what it was asked."""

    def __init__(self, papers: list[dict[str, Any]]) -> None:
        self.papers: Mapping[str, Mapping[str, Any]] = {stored["paper_id"]: stored for stored in papers}
        areas: dict[str, int] = {}
        types: dict[str, int] = {}
        for stored in papers:
            areas[stored["area"]] = areas.get(stored["area"], 0) + 1
            types[stored["paper_type"]] = types.get(stored["paper_type"], 0) + 1
        self.manifest: Any = StandInManifest(
            StandInCorpus(len(papers)),
            Catalogue(
                areas=areas,
                paper_types=types,
                spotlight=sum(stored["spotlight"] for stored in papers),
                oral=sum(stored["oral"] for stored in papers),
                without_abstract=0,
            ),
        )
        self.alive = True
        self.lost: list[bool] = []
        self.asked: list[tuple[str, str, str, int]] = []
        self.answer: Callable[[int], list[Hit]] = lambda depth: [
            Hit(paper_id, 1 - rank / 1000) for rank, paper_id in enumerate(self.papers)
        ][:depth]

    def hybrid(self, vector: Any, text: str, *, where: str, depth: int, timeout_s: float) -> list[Hit]:
        assert vector.shape == (3,)
        self.asked.append(("hybrid", text, where, depth))
        return self.answer(depth)

    def running(self) -> bool:
        return self.alive

    def lexical(self, text: str, *, where: str, depth: int, timeout_s: float) -> list[Hit]:
        self.asked.append(("lexical", text, where, depth))
        return self.answer(depth)


class StandInEmbedding:
    """Gives one vector, or the reason it is told."""

    reason: str | None = None

    async def embed(self, query: str) -> Any:
        return self.reason or np.ones(3, dtype=np.float32)

    def state(self) -> dict[str, Any]:
        return {"provider": "standin"}


@dataclass
class Bench:
    """A desk and what stands behind it."""

    desk: Desk
    ranking: Ranking
    service: PaperSearch
    index: StandInIndex
    embedding: StandInEmbedding
    workers: Workers
    metrics: Metrics
    clock: Clock

    async def call(self, tool: str, client: str | None = None, **arguments: Any) -> str:
        """The text of one call, error or not."""
        result = await self.desk.call(tool, arguments, Caller(client, "00000000"))
        (content,) = result.content
        text: str = content.text
        assert result.is_error == text.startswith("error[")
        return text

    async def search(self, **arguments: Any) -> str:
        return await self.call("search_papers", **({"query": "graphs"} | arguments))

    async def open(self, **arguments: Any) -> str:
        text = await self.call("open_search_session", **arguments)
        return text.splitlines()[0].removeprefix("session_id: ")


def shown_ids(text: str) -> list[str]:
    """The ids of the numbered hits in an answer."""
    return [
        line.split("[", 1)[1].split("]", 1)[0] for line in text.splitlines() if line[:1].isdigit() and ". [" in line
    ]


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether `holds` comes true within `seconds`."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


async def arrives(holds: Callable[[], bool]) -> None:
    """Let the event loop run until `holds`, for ten seconds at most."""
    for _ in range(2_000):
        if holds():
            return
        await anyio.sleep(0.005)
    raise AssertionError("it never came true")
