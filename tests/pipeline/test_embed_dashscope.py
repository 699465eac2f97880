"""The embed stage with the real SDK against the emulated service: faults, kills, two builds at once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bench.emulated_answer import vector
from bench.emulated_quota import Quota
from bench.emulator import UNSEEMLY, Emulator, Fault, emulator, refusal
from manifests.embedding.dashscope import DashScopeEmbedder, dashscope_spec, ledger_account
from manifests.embedding.spec import EmbeddingSpec
from manifests.ledger import Ledger, Limits
from manifests.texts import embed_text
from pipeline.embed import Policy, embed
from pipeline.embedding_store import EmbeddingStore
from pipeline.errors import EmbedStopped
from pipeline.records import TEXT_KEY
from tests.pipeline.embed_stand import papers

SPEC = dashscope_spec("text-embedding-v4", 64)
WINDOW_S = 3.0
AMPLE = Quota(100_000, 100_000_000, window_s=WINDOW_S)
TITLES = [f"Paper {number} on subject {number * 7}" for number in range(25)]
QUICK = Policy(wait_max_s=0.05)
BILLING = "Your account is in arrears: access denied, please pay your overdue bill and top up."


@pytest.fixture
def service() -> Iterator[Emulator]:
    with emulator(AMPLE) as running:
        yield running


@pytest.fixture
def titles() -> Sequence[str]:
    return TITLES


@pytest.fixture
def spec() -> EmbeddingSpec:
    return SPEC


def open_embedder(base_url: str, folder: Path, quota: Quota, **options) -> DashScopeEmbedder:
    limits = Limits(quota.requests, quota.tokens)
    ledger = Ledger(
        folder / "ledger.db", ledger_account(base_url, SPEC.model), limits, window_s=quota.window_s, in_flight_s=2.0
    )
    return DashScopeEmbedder(SPEC, api_key="sk-test", ledger=ledger, base_url=base_url, **options)


def stored_are_right(store: EmbeddingStore, corpus: Path) -> bool:
    rows = pl.read_parquet(corpus)
    expected = [vector(embed_text(*row), SPEC.model, 64) for row in rows.select("title", "abstract").iter_rows()]
    return np.allclose(store.vectors(rows[TEXT_KEY].to_list()), np.stack(expected), atol=1e-5)


PASSING = {
    "429": refusal(429, "Throttling.RateQuota"),
    "429 with Retry-After": refusal(429, "Throttling", Retry_After="1"),
    "429 worded as billing": refusal(429, "Throttling.AllocationQuota", BILLING),
    "500": refusal(500, "InternalError"),
    "502 HTML": Fault(502, b"<html>Bad Gateway</html>"),
    "truncated JSON": Fault(200, b'{"output": {"embeddings": [{"text_in'),
    "HTML": Fault(200, b"<html>Welcome</html>"),
    "null": Fault(200, b"null"),
    "business error": Fault(200, b'{"code": "InternalError", "message": "try again"}'),
    "short": Fault(mangle="short"),
    "reversed": Fault(mangle="reversed"),
    "duplicate index": Fault(mangle="duplicate_index"),
    "missing index": Fault(mangle="missing_index"),
    "nan": Fault(mangle="nan"),
    "infinity": Fault(mangle="infinity"),
    "zero": Fault(mangle="zero"),
    "dimension": Fault(mangle="dimension"),
    "hang": Fault(delay_s=3.0),
    "reset before counting": Fault(drop="before"),
    "reset after counting": Fault(drop="after"),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_a_fault_that_passes_costs_no_vector_and_stores_none_that_is_wrong(
    service: Emulator, corpus: Path, store: EmbeddingStore, tmp_path: Path, fault: Fault
):
    embedder = open_embedder(service.base_url, tmp_path, AMPLE, read_timeout_s=0.5)
    service.will(Fault(), fault)

    assert embed(corpus, store, embedder, QUICK).embedded == 25
    assert stored_are_right(store, corpus)
    assert len(service.entries) in (3, 4)


LASTING = {
    "arrears": refusal(400, "Arrearage", BILLING),
    "key": refusal(401, "InvalidApiKey"),
    "access": refusal(403, "AccessDenied.Unpurchased"),
    "parameter": refusal(400, "InvalidParameter"),
    "come back tomorrow": refusal(429, "Throttling", Retry_After="86400"),
}


@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING)
def test_a_fault_that_lasts_ends_with_exit_4_and_the_same_command_resumes(
    service: Emulator, corpus: Path, store: EmbeddingStore, tmp_path: Path, fault: Fault
):
    service.will(Fault(), *[fault] * 8)
    started = time.monotonic()

    with pytest.raises(EmbedStopped, match="the same command goes on") as stop:
        embed(corpus, store, open_embedder(service.base_url, tmp_path, AMPLE), QUICK)

    assert stop.value.exit_code == 4
    assert time.monotonic() - started < 30
    assert "sk-test" not in str(stop.value)
    service._faults.clear()
    result = embed(corpus, store, open_embedder(service.base_url, tmp_path, AMPLE), QUICK)
    assert result.embedded < 25
    assert stored_are_right(store, corpus)
    assert max(service.bought().values()) == 1


def test_a_wait_too_long_for_a_build_is_said_in_seconds(
    service: Emulator, corpus: Path, store: EmbeddingStore, tmp_path: Path
):
    service.always(refusal(429, "Throttling", Retry_After="86400"))

    with pytest.raises(EmbedStopped, match="asks to wait 86,400 s"):
        embed(corpus, store, open_embedder(service.base_url, tmp_path, AMPLE), QUICK)


def test_a_text_refused_by_inspection_is_named_by_paper_and_every_other_is_bought_once(
    service: Emulator, tmp_path: Path, store: EmbeddingStore
):
    corpus = papers(tmp_path / "p.parquet", [*TITLES[:7], f"A title {UNSEEMLY}", *TITLES[7:]])

    with pytest.raises(EmbedStopped, match=r"id-00007 \(.*DataInspectionFailed") as stop:
        embed(corpus, store, open_embedder(service.base_url, tmp_path, AMPLE), QUICK)

    assert stop.value.exit_code == 4
    assert len(store.missing(pl.read_parquet(corpus)[TEXT_KEY])) == 1
    assert len(service.bought()) == 25
    assert max(service.bought().values()) == 1


def start(corpus: Path, folder: Path, service: Emulator) -> subprocess.Popen[bytes]:
    quota = service.quota
    arguments = (corpus, folder, service.base_url, quota.requests, quota.tokens)
    command = [sys.executable, "-m", "tests.pipeline.test_embed_dashscope", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills_lose_no_vector_buy_little_twice_and_break_no_limit(tmp_path: Path):
    corpus = papers(tmp_path / "papers.parquet", [f"Paper {number} on {number * 7}" for number in range(1_600)])
    quota, chance = Quota(60, 20_000, window_s=WINDOW_S), random.Random(7)
    with emulator(quota, latency_s=0.1) as service:
        for _ in range(20):
            build = start(corpus, tmp_path, service)
            until = len(service.entries) + chance.randint(1, 6)
            while len(service.entries) < until:
                assert build.poll() is None
                time.sleep(0.005)  # bounded by the test's own limit
            build.kill()
            build.communicate(timeout=60)
        last = start(corpus, tmp_path, service)
        last.communicate(timeout=300)
        assert last.returncode == 0

        with EmbeddingStore(tmp_path / "store", SPEC) as store:
            assert stored_are_right(store, corpus)
        assert service.refused == 0
        requests, tokens = service.meter.peak()
        assert requests <= quota.requests
        assert tokens <= quota.tokens
        in_flight = 2 * open_embedder(service.base_url, tmp_path, quota).concurrency
        assert service.report()["texts_bought_again"] <= 20 * in_flight * 10


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_builds_at_once_share_quota_and_store_without_loss(tmp_path: Path):
    left = papers(tmp_path / "left.parquet", [f"Paper {number} on {number * 7}" for number in range(500)])
    right = papers(tmp_path / "right.parquet", [f"Paper {number} on {number * 7}" for number in range(250, 750)])
    quota = Quota(60, 20_000, window_s=WINDOW_S)
    with emulator(quota, latency_s=0.1) as service:
        builds = [start(corpus, tmp_path, service) for corpus in (left, right)]

        for build in builds:
            build.communicate(timeout=300)
        assert [build.returncode for build in builds] == [0, 0]
        assert service.refused == 0
        requests, tokens = service.meter.peak()
        assert requests <= quota.requests
        assert tokens <= quota.tokens
        with EmbeddingStore(tmp_path / "store", SPEC) as store:
            assert stored_are_right(store, left)
            assert stored_are_right(store, right)


@pytest.mark.parametrize("first", [0, 100], ids=["same corpus", "corpora that overlap"])
@pytest.mark.timeout(120)
def test_two_builds_at_once_share_the_texts_and_pay_for_none_twice(tmp_path: Path, first: int):
    titles = [f"Paper {number} on {number * 7}" for number in range(300 + first)]
    left = papers(tmp_path / "left.parquet", titles[:300])
    right = papers(tmp_path / "right.parquet", titles[first:])
    with emulator(Quota(30, 100_000, window_s=WINDOW_S), latency_s=0.2) as service:
        builds = [start(corpus, tmp_path, service) for corpus in (left, right)]

        embedded = [int(build.communicate(timeout=100)[0]) for build in builds]

        assert [build.returncode for build in builds] == [0, 0]
        assert min(embedded) > 0
        assert sum(embedded) == 300 + first
        assert service.report()["texts_bought_again"] == 0
        with EmbeddingStore(tmp_path / "store", SPEC) as store:
            assert stored_are_right(store, left)
            assert stored_are_right(store, right)


@pytest.mark.timeout(120)
def test_a_build_killed_beside_another_leaves_its_texts_to_it(tmp_path: Path):
    corpus = papers(tmp_path / "papers.parquet", [f"Paper {number} on {number * 7}" for number in range(300)])
    with emulator(Quota(30, 100_000, window_s=WINDOW_S), latency_s=0.2) as service:
        doomed = start(corpus, tmp_path, service)
        while not service.entries:
            assert doomed.poll() is None
            time.sleep(0.005)  # bounded by the test's own limit
        other = start(corpus, tmp_path, service)
        while len(service.entries) < 10:
            assert doomed.poll() is None
            time.sleep(0.005)  # bounded by the test's own limit
        doomed.kill()
        doomed.communicate(timeout=60)

        assert int(other.communicate(timeout=100)[0]) > 0
        with EmbeddingStore(tmp_path / "store", SPEC) as store:
            assert stored_are_right(store, corpus)
        in_flight = 2 * open_embedder(service.base_url, tmp_path, service.quota).concurrency
        assert service.report()["texts_bought_again"] <= 10 * in_flight


def main() -> None:
    """One build as a program of its own: PAPERS FOLDER BASE_URL REQUESTS TOKENS."""
    corpus, folder, base_url, requests, tokens = sys.argv[1:]
    quota = Quota(int(requests), int(tokens), window_s=WINDOW_S)
    with EmbeddingStore(Path(folder) / "store", SPEC) as store:
        result = embed(Path(corpus), store, open_embedder(base_url, Path(folder), quota), Policy())
    sys.stdout.write(f"{result.embedded}\n")


if __name__ == "__main__":
    main()
