"""Stage: papers.parquet -> the vector of every text, in the embedding store.

Reads    text_sha256, title, abstract; the text itself is made again and compared with its sha256
Writes   one part a batch, as soon as the batch has come back
Holds    every stored vector has the spec's dimension, is finite and is not zero
Resumes  a stored text is not sent again; stopping loses the batches in flight at most
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import polars as pl

from manifests.collection import KEY
from manifests.embedding import VectorsUnusable, check_vectors
from manifests.embedding.spec import Embedder, Vectors
from manifests.errors import ProviderBusy, ProviderError, QuotaExhausted, TextRefused
from manifests.files import file_sha256
from pipeline.batches import Batch, batches, missing_texts
from pipeline.claims import Claims, Share
from pipeline.embedding_store import EmbeddingStore
from pipeline.errors import EmbedStopped, MachineRefused
from pipeline.interrupt import Interrupt
from pipeline.patience import Patience, patiently
from pipeline.progress import Report, silent
from pipeline.records import TEXT_KEY

_LOOK_S = 1.0  # how often the progress line is renewed while nothing comes back
_OTHERS_S = 900.0  # how long another program may keep texts to itself without storing one
_NAMED_MAX = 20


@dataclass(frozen=True)
class Policy(Patience):
    """How patient and how expensive the stage may be; past its patience it stops, resumably.

    Attributes:
        budget_tokens: tokens that may be spent; the stage stops before a batch that could exceed it.
    """

    budget_tokens: int | None = None


@dataclass(frozen=True)
class EmbedResult:
    """What the stage did: texts embedded, papers whose vector was there already, tokens spent."""

    embedded: int
    reused: int
    tokens: int


def embed(
    papers: Path, store: EmbeddingStore, embedder: Embedder, policy: Policy, report: Report = silent
) -> EmbedResult:
    """Embed every text of the corpus that the store lacks, and wait for those that another program is embedding.

    Raises:
        EmbedStopped: provider, quota or budget ended it early, or texts were refused (named by paper id); everything
            that came back is stored and the same call goes on from there.
        StoreDamaged: a part of the store is not what was written; nothing was sent.
        InputRefused: papers.parquet was made by another version of the embed text.
        MachineRefused: there is no room for the vectors; nothing was sent.
    """
    keys = pl.read_parquet(papers, columns=[TEXT_KEY], glob=False)[TEXT_KEY]
    with Claims(store.folder) as claims:  # opened before the store is read, so that no part comes unseen
        missing = store.missing(keys)
        if not missing:
            return EmbedResult(0, len(keys), 0)
        _require_room(store, len(missing))
        store.reference(papers, file_sha256(papers), keys)
        run = _Run(Share(store, claims), embedder, policy, report, len(missing))
        run.send(missing_texts(papers, set(missing)))
        run.close(papers)
        return EmbedResult(run.embedded, len(keys) - run.embedded, run.tokens)


def _require_room(store: EmbeddingStore, texts: int) -> None:
    needed = texts * store.spec.dimension * 4
    free = shutil.disk_usage(store.folder).free
    if free < needed:
        raise MachineRefused(
            f"{texts:,} vectors need {needed:,} bytes in {store.folder}, where {free:,} are free; nothing was sent. "
            "Free space or choose another --store, then run the same command"
        )


class _Answer(NamedTuple):
    keys: list[str]
    vectors: Vectors | None
    refused: dict[str, str]


class _Run:
    """One pass over the missing texts: what is in flight, what came back, why it ended."""

    def __init__(self, share: Share, embedder: Embedder, policy: Policy, report: Report, missing: int) -> None:
        self.embedded = 0
        self._share, self._embedder, self._policy, self._report = share, embedder, policy, report
        self._missing = missing
        self._refused: dict[str, str] = {}
        self._failure: Exception | None = None
        self._flying: dict[Future[_Answer], int] = {}
        self._next: Batch | None = None
        self._stopping = threading.Event()
        self._interrupt = Interrupt(self._send_nothing_more)
        self._spent_before = embedder.tokens_spent

    @property
    def tokens(self) -> int:
        """Tokens this pass has spent."""
        return self._embedder.tokens_spent - self._spent_before

    @property
    def _done(self) -> int:
        return self.embedded + self._share.arrived

    def send(self, texts: Iterator[tuple[str, str]]) -> None:
        """Embed the texts and store what comes back, until every one has a vector or something ends it."""
        self._progress()
        with ThreadPoolExecutor(self._embedder.concurrency, thread_name_prefix="embed") as pool:
            try:
                with self._interrupt:  # else Ctrl-C between sending and noting it would lose a batch that is paid for
                    self._empty(pool, self._share.mine(texts))
                    self._follow_others(pool)
            finally:  # also at Ctrl-C and when a write fails
                self._land()

    def _empty(self, pool: ThreadPoolExecutor, texts: Iterator[tuple[str, str]]) -> None:
        """Keep `concurrency` batches in flight until there is no text left."""
        queue = batches(texts, self._embedder)
        while not self._failure and self._fill(pool, queue):
            self._collect(_LOOK_S)
            self._interrupt.check()

    def _follow_others(self, pool: ThreadPoolExecutor) -> None:
        """Wait for the texts that other programs are embedding, and embed those that they leave."""
        done, until = self._done, time.monotonic() + _OTHERS_S
        while self._share.elsewhere and not self._failure:
            time.sleep(_LOOK_S)
            self._interrupt.check()
            self._empty(pool, self._share.left_by_others())
            self._progress()
            if self._done > done:
                done, until = self._done, time.monotonic() + _OTHERS_S
            elif time.monotonic() > until and not self._failure:
                self._failure = EmbedStopped(
                    f"{len(self._share.elsewhere):,} texts are being embedded by another program on this store, which "
                    f"has stored none of them for {_OTHERS_S:.0f} s. End that program"
                )

    def close(self, papers: Path) -> None:
        """Raise what ended the pass early, if anything did."""
        left = self._missing - self._done
        if not left:
            return
        parts = [self._reason()] if self._failure else []
        if self._refused:
            parts.append(self._refusals(papers))
        raise EmbedStopped(
            f"{'. '.join(parts)}. {self.embedded:,} new vectors are stored, {left:,} texts have none yet; the same "
            "command goes on from there"
        ) from self._failure

    def _reason(self) -> str:
        """What ended the pass, with the wait that the provider asked for where that was too long."""
        asked = self._failure.retry_after_s if isinstance(self._failure, ProviderBusy) else None
        if asked is None or asked <= self._policy.retry_after_max_s:
            return str(self._failure)
        return (
            f"{self._failure}. The provider asks to wait {asked:,.0f} s, a build waits "
            f"{self._policy.retry_after_max_s:,.0f} s at most"
        )

    def _fill(self, pool: ThreadPoolExecutor, queue: Iterator[Batch]) -> bool:
        """Put batches in flight, one waiting for every one that is sent; whether anything is in flight."""
        while len(self._flying) < 2 * self._embedder.concurrency:
            self._interrupt.check()
            self._next = self._next or next(queue, None)
            if self._next is None:
                break
            cost = sum(self._next.tokens)
            spendable = self._policy.budget_tokens
            if spendable is not None and self.tokens + sum(self._flying.values()) + cost > spendable:
                if not self._flying:  # nothing more can turn out cheaper than it was counted
                    self._failure = EmbedStopped(
                        f"the budget of {spendable:,} tokens is spent: {self.tokens:,} used, the next batch is counted "
                        f"at {cost:,}. Give a larger --budget-tokens"
                    )
                break
            self._flying[pool.submit(self._ask, self._next)] = cost
            self._next = None
        return bool(self._flying)

    def _collect(self, timeout_s: float | None) -> None:
        """Store whatever has come back by then."""
        done, _ = wait(self._flying, timeout=timeout_s, return_when=FIRST_COMPLETED)
        for future in done:
            del self._flying[future]
            try:
                answer = future.result()
            except (ProviderError, QuotaExhausted) as error:
                self._failure = self._failure or error
                continue
            self._refused |= answer.refused
            self._share.refuse(answer.refused)
            if answer.vectors is not None:
                self._share.keep(answer.keys, answer.vectors)
                self.embedded += len(answer.keys)
        self._progress()

    def _send_nothing_more(self) -> None:
        """At a signal, wherever the main thread is: it must hold no lock of these, so it never waits on them."""
        self._stopping.set()
        self._embedder.stop()

    def _land(self) -> None:
        """Send nothing more, and store what was sent."""
        self._stopping.set()
        self._flying = {future: cost for future, cost in self._flying.items() if not future.cancel()}
        if self._flying:
            self._embedder.stop()
        while self._flying:
            self._collect(None)

    def _ask(self, batch: Batch) -> _Answer:
        """The batch without the texts that were refused; in a thread of the pool."""
        keys, texts = list(batch.keys), list(batch.texts)
        refused: dict[str, str] = {}
        while texts:
            try:
                return _Answer(keys, patiently(partial(self._vectors, texts), self._policy, self._stopping), refused)
            except TextRefused as refusal:
                refused[keys.pop(refusal.position)] = str(refusal)
                texts.pop(refusal.position)
        return _Answer([], None, refused)

    def _vectors(self, texts: list[str]) -> Vectors:
        """The embedder's answer, whatever embedder it is."""
        try:
            return check_vectors(self._embedder.embed_documents(texts), len(texts), self._embedder.spec.dimension)
        except VectorsUnusable as error:
            raise ProviderBusy(f"the embedder's answer cannot be used: {error}") from error

    def _progress(self) -> None:
        quota = self._embedder.usage_note()
        note = f"{self.tokens:,} tokens, {quota}" if quota else f"{self.tokens:,} tokens"
        if self._share.elsewhere and not self._flying:
            note += f", another program is embedding {len(self._share.elsewhere):,} texts"
        self._report(self._done, self._missing, note)

    def _refusals(self, papers: Path) -> str:
        """The refused texts by paper id, with the provider's words."""
        rows = pl.scan_parquet(papers, glob=False).select(KEY, TEXT_KEY)
        rows = rows.filter(pl.col(TEXT_KEY).is_in(list(self._refused)))
        named = [f"{paper_id} ({self._refused[key]})" for paper_id, key in rows.collect().iter_rows()]
        more = f" and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
        return (
            f"the provider refused the text of {len(named)} paper(s): {'; '.join(named[:_NAMED_MAX])}{more}. Correct "
            "them at their source or leave them out of the snapshot"
        )
