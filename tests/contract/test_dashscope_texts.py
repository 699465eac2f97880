"""The DashScope adapter and its texts: which is at fault, what a request holds, what is bought once."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from bench.emulator import UNSEEMLY, Fault, refusal
from manifests.embedding.dashscope import DashScopeEmbedder, dashscope_spec, ledger_account
from manifests.errors import ProviderBusy, TextRefused
from manifests.ledger import Ledger, Limits
from tests.contract.dashscope_stand import KEY, TEXTS


@pytest.mark.parametrize("text", ["", "  \n\t", "\u200b\u2060", "\u2800"])
def test_a_blank_text_is_named_before_anything_is_sent(service, embedder, text):
    with pytest.raises(TextRefused) as caught:
        embedder.embed_documents(["fine", text, "fine too"])

    assert caught.value.position == 1
    assert service.entries == []


def test_an_over_long_text_is_named_before_anything_is_sent(service, embedder):
    with pytest.raises(TextRefused, match=r"12,000 tokens; text-embedding-v4 takes 8,192") as caught:
        embedder.embed_documents([*TEXTS, "word " * 11_999 + "word"])

    assert caught.value.position == 3
    assert service.entries == []


def test_a_text_only_the_service_finds_too_long_is_named_and_costs_no_other(service, embedder):
    too_long = "x" * 60_000  # 7,500 tokens by the SDK's vocabulary, 10,000 by the emulator's count
    with pytest.raises(TextRefused) as caught:
        embedder.embed_documents([*TEXTS, too_long])
    assert caught.value.position == 3
    sent = len(service.entries)

    assert embedder.embed_documents(TEXTS).shape == (3, 1024)
    assert len(service.entries) == sent


def test_a_text_refused_by_inspection_is_named_and_the_others_are_bought_once(service, embedder):
    texts = [f"paper number {number}" for number in range(10)]
    texts[6] += f" {UNSEEMLY}"
    with pytest.raises(TextRefused) as caught:
        embedder.embed_documents(texts)
    assert caught.value.position == 6

    rest = texts[:6] + texts[7:]
    vectors = embedder.embed_documents(rest)

    assert set(service.bought().values()) == {1}
    assert np.array_equal(vectors, embedder.embed_documents(rest))


def test_two_texts_refused_by_inspection_are_named_one_after_the_other(service, embedder):
    texts = [f"a {UNSEEMLY}", "b", f"c {UNSEEMLY}", "d"]
    with pytest.raises(TextRefused) as first:
        embedder.embed_documents(texts)
    with pytest.raises(TextRefused) as second:
        embedder.embed_documents(texts[1:])

    assert (first.value.position, second.value.position) == (0, 1)
    assert embedder.embed_documents(["b", "d"]).shape == (2, 1024)
    assert set(service.bought().values()) == {1}


def test_vectors_bought_before_a_busy_answer_are_not_bought_again(service, embedder):
    texts = [f"paper number {number}" for number in range(25)]
    service.will(Fault(), Fault(), refusal(500, "InternalError"))
    with pytest.raises(ProviderBusy):
        embedder.embed_documents(texts)

    assert embedder.embed_documents(texts).shape == (25, 1024)
    assert set(service.bought().values()) == {1}


@pytest.mark.parametrize(("model", "most"), [("text-embedding-v4", 10), ("text-embedding-v2", 25)])
def test_no_request_holds_more_texts_than_the_model_takes(service, tmp_path, model, most):
    spec = dashscope_spec(model, 1_536)
    ledger = Ledger(tmp_path / "ledger.db", ledger_account(service.base_url, model), Limits(100_000, 10**8))
    embedder = DashScopeEmbedder(spec, api_key=KEY, ledger=ledger, base_url=service.base_url)
    texts = [f"paper number {number}" for number in range(most + 1)]

    vectors = embedder.embed_documents(texts)

    assert vectors.shape == (most + 1, 1_536)
    assert [len(entry.texts) for entry in service.entries] == [most, 1]
    assert embedder.batch_texts_max == most


def test_equal_texts_of_a_batch_are_bought_once(service, embedder):
    vectors = embedder.embed_documents(["a b", "c", "a b"])

    assert np.array_equal(vectors[0], vectors[2])
    assert len(service.entries[0].texts) == 2


def test_many_threads_get_their_own_vectors(service, embedder):
    expected = {text: embedder.embed_documents([text])[0] for text in TEXTS}
    right: list[bool] = []

    def work(text: str) -> None:
        right.extend(np.array_equal(embedder.embed_documents([text])[0], expected[text]) for _ in range(20))

    threads = [threading.Thread(target=work, args=(text,)) for text in TEXTS * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert right == [True] * 240
    assert {entry.status for entry in service.entries} == {200}
