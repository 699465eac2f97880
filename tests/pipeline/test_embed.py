"""The embed stage: what is sent, what is kept, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from manifests.errors import InputRefused, ProviderBusy, ProviderRefused, QuotaExhausted, TextRefused
from manifests.texts import embed_text
from pipeline.embed import EmbedResult, Policy, embed
from pipeline.embedding_store import EmbeddingStore
from pipeline.errors import EmbedStopped, MachineRefused
from pipeline.plan import plan
from pipeline.records import TEXT_KEY
from pipeline.store_upkeep import prune_store
from tests.pipeline import embed_stand
from tests.pipeline.embed_stand import SPEC, TITLES, Scripted, papers, raising, vector_of, well

QUICK = Policy(wait_max_s=0.01)


def texts_of(corpus: Path) -> list[str]:
    return [embed_text(*row) for row in pl.read_parquet(corpus, columns=["title", "abstract"]).iter_rows()]


def stored(store: EmbeddingStore, corpus: Path) -> np.ndarray:
    return store.vectors(pl.read_parquet(corpus)[TEXT_KEY].to_list())


def test_every_text_gets_its_own_vector_and_a_second_run_sends_nothing(corpus: Path, store: EmbeddingStore):
    first, second = Scripted(concurrency=3), Scripted()

    assert embed(corpus, store, first, QUICK) == EmbedResult(embedded=35, reused=0, tokens=first.tokens_spent)
    assert embed(corpus, store, second, QUICK) == EmbedResult(embedded=0, reused=35, tokens=0)

    assert [len(call) for call in first.calls] == [10, 10, 10, 5]
    assert second.calls == []
    assert np.array_equal(stored(store, corpus), np.stack([vector_of(text) for text in texts_of(corpus)]))


def test_only_new_texts_are_sent_and_equal_texts_once(tmp_path: Path, corpus: Path, store: EmbeddingStore):
    embed(corpus, store, Scripted(), QUICK)
    later = papers(tmp_path / "later.parquet", [*TITLES, "New", "New", "Newer"])
    embedder = Scripted()

    assert embed(later, store, embedder, QUICK).embedded == 2
    assert embedder.calls == [[texts_of(later)[-3], texts_of(later)[-1]]]


def test_batches_hold_no_more_tokens_than_the_embedder_takes_and_a_longer_text_goes_alone(
    tmp_path: Path, store: EmbeddingStore
):
    corpus = papers(tmp_path / "p.parquet", ["a b c", "word " * 30, "d", "e", "f"])
    embedder = Scripted(tokens_max=12)

    embed(corpus, store, embedder, QUICK)

    counted = [embedder.count_tokens(call) for call in embedder.calls]
    assert all(sum(tokens) <= 12 or len(tokens) == 1 for tokens in counted)
    assert max(sum(tokens) for tokens in counted) > 12
    assert sum(map(len, counted)) == 5


def test_busy_is_tried_again_until_it_answers(corpus: Path, store: EmbeddingStore):
    embedder = Scripted(raising(ProviderBusy("429")), raising(ProviderBusy("503")))

    assert embed(corpus, store, embedder, QUICK).embedded == 35
    assert len(embedder.calls) == 4 + 2


def test_a_wait_that_the_provider_asks_for_is_kept(tmp_path: Path, store: EmbeddingStore):
    corpus = papers(tmp_path / "p.parquet", ["one"])
    embedder = Scripted(raising(ProviderBusy("429", retry_after_s=0.4)))
    started = time.monotonic()

    embed(corpus, store, embedder, QUICK)

    assert time.monotonic() - started >= 0.4


def test_a_wait_of_a_day_stops_at_once_with_everything_stored(corpus: Path, store: EmbeddingStore):
    embedder = Scripted(well, raising(ProviderBusy("429, come back tomorrow", retry_after_s=86_400)))

    with pytest.raises(
        EmbedStopped, match=r"come back tomorrow\. The provider asks to wait 86,400 s, .* \d+ new vectors"
    ) as stop:
        embed(corpus, store, embedder, QUICK)

    assert stop.value.exit_code == 4
    left = 35 - len(embedder.answered)
    assert 0 < left < 35
    assert embed(corpus, store, Scripted(), QUICK).embedded == left


def test_a_provider_that_stays_busy_ends_the_run_after_the_allowed_attempts(tmp_path: Path, store: EmbeddingStore):
    corpus = papers(tmp_path / "p.parquet", ["one"])
    embedder = Scripted(*[raising(ProviderBusy("still busy"))] * 10)

    with pytest.raises(EmbedStopped, match="still busy"):
        embed(corpus, store, embedder, Policy(attempts_max=3, wait_max_s=0.01))

    assert len(embedder.calls) == 3


@pytest.mark.parametrize("error", [ProviderRefused("Arrearage"), QuotaExhausted("no room", wait_s=60.0)], ids=str)
def test_a_refusal_is_never_repeated_and_what_came_back_is_kept(corpus: Path, store: EmbeddingStore, error: Exception):
    embedder = Scripted(well, raising(error), *[well] * 10)

    with pytest.raises(EmbedStopped, match=str(error)) as stop:
        embed(corpus, store, embedder, QUICK)

    assert stop.value.exit_code == 4
    left = len(store.missing(pl.read_parquet(corpus)[TEXT_KEY]))
    assert left == 35 - len(embedder.answered)
    assert len(embedder.calls) <= 3  # the refused one, and what was in flight beside it
    assert embed(corpus, store, Scripted(), QUICK).embedded == left


def test_one_refused_text_is_named_by_paper_and_costs_no_other_vector(corpus: Path, store: EmbeddingStore):
    def inspect(texts: Sequence[str]) -> None:
        for position, text in enumerate(texts):
            if "Paper 13\n" in text:
                raise TextRefused("inspection failed", position=position)

    embedder = Scripted(*[inspect] * 20)

    with pytest.raises(EmbedStopped, match=r"id-00013 \(inspection failed\).*34 new vectors") as stop:
        embed(corpus, store, embedder, QUICK)

    assert stop.value.exit_code == 4
    assert len(store.missing(pl.read_parquet(corpus)[TEXT_KEY])) == 1
    assert [len(call) for call in embedder.calls] == [10, 10, 9, 10, 5]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_budget_is_never_exceeded_and_a_larger_one_finishes(corpus: Path, store: EmbeddingStore, concurrency: int):
    embedder = Scripted(*[lambda _texts: time.sleep(0.05)] * 4, concurrency=concurrency)
    whole = sum(embedder.count_tokens(texts_of(corpus)))
    budget = whole // 2

    with pytest.raises(EmbedStopped, match="--budget-tokens") as stop:
        embed(corpus, store, embedder, Policy(budget_tokens=budget))

    assert stop.value.exit_code == 4
    assert 0 < embedder.tokens_spent <= budget
    second = Scripted(concurrency=concurrency)
    assert embed(corpus, store, second, Policy(budget_tokens=whole)).embedded > 0
    assert embedder.tokens_spent + second.tokens_spent == whole


@pytest.mark.parametrize(
    "answer",
    [
        np.zeros((9, 8), np.float32),
        np.ones((10, 7), np.float32),
        np.zeros((10, 8), np.float32),
        np.full((10, 8), np.nan, np.float32),
        np.full((10, 8), np.inf, np.float32),
    ],
    ids=["count", "dimension", "zero", "nan", "infinite"],
)
def test_unusable_vectors_are_asked_for_again_and_never_stored(
    corpus: Path, store: EmbeddingStore, answer: np.ndarray, monkeypatch: pytest.MonkeyPatch
):
    embedder = Scripted()
    right, wrong = embedder.embed_documents, [answer]
    monkeypatch.setattr(embedder, "embed_documents", lambda texts: wrong.pop() if wrong else right(texts))

    embed(corpus, store, embedder, QUICK)

    assert np.array_equal(stored(store, corpus), np.stack([vector_of(text) for text in texts_of(corpus)]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stores_every_batch_that_was_sent_and_sends_hardly_another(
    tmp_path: Path, store: EmbeddingStore, number: signal.Signals
):
    corpus = papers(tmp_path / "p.parquet", [f"Paper {number}" for number in range(95)])
    both_sent = threading.Barrier(2)

    def interrupted(_texts: Sequence[str]) -> None:
        if both_sent.wait(10) == 0:
            os.kill(os.getpid(), number)
        time.sleep(0.3)  # the provider answers after the signal

    embedder = Scripted(interrupted, interrupted, concurrency=2)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            embed(corpus, store, embedder, QUICK)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert embedder.stopped
    assert len(embedder.calls) <= 4  # the main thread may learn of it only when the first answer wakes it
    left = 95 - len(embedder.answered)
    assert len(store.missing(pl.read_parquet(corpus)[TEXT_KEY])) == left
    assert embed(corpus, store, Scripted(), QUICK).embedded == left


def test_ctrl_c_does_not_wait_for_a_retry_that_is_far_away(tmp_path: Path, store: EmbeddingStore):
    corpus = papers(tmp_path / "p.parquet", ["one"])

    def busy(_texts: Sequence[str]) -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        raise ProviderBusy("429", retry_after_s=60)

    embedder = Scripted(busy)
    started = time.monotonic()

    with pytest.raises(KeyboardInterrupt):
        embed(corpus, store, embedder, Policy())

    assert time.monotonic() - started < 10
    assert len(embedder.calls) == 1


def test_a_disk_without_room_is_found_before_anything_is_bought(
    corpus: Path, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: shutil._ntuple_diskusage(1, 1, 1_000))
    embedder = Scripted()

    with pytest.raises(MachineRefused, match=r"35 vectors need 1,120 bytes .* 1,000 are free"):
        embed(corpus, store, embedder, QUICK)

    assert embedder.calls == []


def test_a_disk_that_fills_keeps_what_was_written_and_the_run_resumes(
    corpus: Path, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
):
    append, calls = store.append, []

    def fills_up(keys: Sequence[str], vectors: np.ndarray, *announce: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        append(keys, vectors, *announce)

    monkeypatch.setattr(store, "append", fills_up)
    with pytest.raises(OSError, match="No space left"):
        embed(corpus, store, Scripted(), QUICK)
    monkeypatch.undo()

    again = Scripted()
    embed(corpus, store, again, QUICK)
    assert 5 <= len(again.answered) <= 25
    assert store.missing(pl.read_parquet(corpus)[TEXT_KEY]) == []


def test_a_corpus_of_another_text_version_is_refused_before_it_poisons_the_store(corpus: Path, store: EmbeddingStore):
    frame = pl.read_parquet(corpus)
    frame.with_columns(title=pl.lit("Other ") + pl.col("title")).write_parquet(corpus)

    with pytest.raises(InputRefused, match="another version: run `python -m pipeline load` again") as refusal:
        embed(corpus, store, Scripted(), QUICK)

    assert refusal.value.exit_code == 3
    assert len(store.missing(frame[TEXT_KEY])) == 35


def test_progress_counts_texts_and_shows_tokens_and_quota(corpus: Path, store: EmbeddingStore):
    lines: list[tuple[int, int | None, str]] = []

    embed(corpus, store, Scripted(), QUICK, lambda *line: lines.append(line))

    counts = [line[:2] for line in lines]
    assert (counts[0], counts[-1]) == ((0, 35), (35, 35))
    # Batches that come back together are counted together.
    assert counts == [step for step in [(0, 35), (10, 35), (20, 35), (30, 35), (35, 35)] if step in counts]
    assert len(counts) > 2
    assert lines[-1][2] == "175 tokens, quota 7 %"


def run_child(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, embed_stand.__file__, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_kill_9_between_parts_loses_only_the_batches_in_flight(tmp_path: Path):
    corpus = papers(tmp_path / "papers.parquet", [f"Paper {number}" for number in range(200)])

    for _ in range(3):
        assert run_child(corpus, tmp_path / "store", 10, 4).returncode == -signal.SIGKILL

    with EmbeddingStore(tmp_path / "store", SPEC) as store:
        left = len(store.missing(pl.read_parquet(corpus)[TEXT_KEY]))
        # each run had 5 calls; of those at most the two in flight and those not yet written are lost
        assert 200 - 3 * 50 <= left <= 200 - 3 * 10
        assert embed(corpus, store, Scripted(), QUICK).embedded == left
        assert np.array_equal(stored(store, corpus), np.stack([vector_of(text) for text in texts_of(corpus)]))


def test_two_builds_share_one_store_without_loss(tmp_path: Path):
    left = papers(tmp_path / "left.parquet", [f"Paper {number}" for number in range(150)])
    right = papers(tmp_path / "right.parquet", [f"Paper {number}" for number in range(50, 200)])

    builds = [
        subprocess.Popen([sys.executable, embed_stand.__file__, corpus, tmp_path / "store", "5"])
        for corpus in (left, right)
    ]

    assert [build.wait(120) for build in builds] == [0, 0]
    with EmbeddingStore(tmp_path / "store", SPEC) as store:
        for corpus in (left, right):
            assert np.array_equal(stored(store, corpus), np.stack([vector_of(text) for text in texts_of(corpus)]))


def test_prune_keeps_what_was_bought_for_a_build_that_is_not_published_yet(tmp_path: Path, corpus: Path):
    embedder = Scripted(well, well, raising(ProviderRefused("Arrearage")))
    with EmbeddingStore(tmp_path / "store", SPEC) as store, pytest.raises(EmbedStopped):
        embed(corpus, store, embedder, QUICK)

    [pruned] = prune_store(tmp_path / "store")

    assert (pruned.kept, pruned.removed) == (len(embedder.answered), 0)


def test_plan_counts_what_a_build_sends_and_touches_nothing(tmp_path: Path, corpus: Path):
    texts = [*texts_of(corpus), texts_of(corpus)[0]]
    counting = Scripted()
    with EmbeddingStore(tmp_path / "absent", SPEC, create=False) as absent:
        whole = plan(texts, absent, counting, requests_per_minute=2, tokens_per_minute=10_000)

    assert not (tmp_path / "absent").exists()
    assert counting.calls == []
    assert (whole.texts, whole.reused, whole.requests, whole.minutes) == (35, 1, 4, 2.0)
    assert whole.tokens == sum(counting.count_tokens(texts_of(corpus)))

    with EmbeddingStore(tmp_path / "store", SPEC) as store:
        embed(corpus, store, Scripted(), QUICK)
    with EmbeddingStore(tmp_path / "store", SPEC, create=False) as store:
        rest = plan([*texts, "a new text"], store, Scripted())
    assert (rest.texts, rest.reused, rest.requests, rest.minutes) == (1, 36, 1, None)
