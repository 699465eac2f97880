"""The application service: the path of a search, what reaches Milvus, and every way it can fail."""

from __future__ import annotations

import re
import threading
import time

import anyio
import pytest

from manifests.errors import MilvusError, MilvusTimeout
from manifests.hybrid import Hit
from serve.search import named_id
from tests.serve.standin import arrives, paper, shown_ids, within

pytestmark = pytest.mark.anyio


async def test_a_search_without_a_session_gives_the_first_page_every_time(bench):
    first, second = await bench.search(), await bench.search()

    assert first == second
    assert shown_ids(first) == [f"paper{number:03}" for number in range(10)]
    assert first.startswith("10 papers of 120 ICML 2026 papers, best first.")


async def test_a_smaller_top_k_is_a_prefix(bench):
    answers = [shown_ids(await bench.search(top_k=top_k)) for top_k in (5, 10, 20)]

    assert answers[0] == answers[1][:5] == answers[2][:5]
    assert answers[1] == answers[2][:10]


async def test_a_session_brings_new_papers_until_the_window_is_used_up_then_says_so(bench):
    session_id = await bench.open()

    rounds = [await bench.search(session_id=session_id, search_depth=25) for _ in range(4)]

    assert [len(shown_ids(text)) for text in rounds] == [10, 10, 5, 0]
    assert len({paper_id for text in rounds for paper_id in shown_ids(text)}) == 25
    assert "That was the rest of this window of 25 candidates" in rounds[2]
    assert rounds[3].startswith("0 new papers")
    assert "already returned" in rounds[3]
    assert shown_ids(await bench.search(session_id=await bench.open())) == shown_ids(rounds[0])


async def test_top_k_is_the_sessions_default_unless_given(bench):
    session_id = await bench.open(default_top_k=3)

    assert len(shown_ids(await bench.search(session_id=session_id))) == 3
    assert len(shown_ids(await bench.search(session_id=session_id, top_k=4))) == 4
    assert len(shown_ids(await bench.search())) == 10


async def test_the_window_is_one_depth_for_milvus_clamped_and_said(bench):
    await bench.search()
    text = await bench.search(search_depth=10**400)

    assert [depth for _, _, _, depth in bench.index.asked] == [100, 500]
    assert "search_depth clamped to 500" in text.splitlines()[0]
    assert "clamped" not in await bench.search(search_depth=500)


async def test_filters_reach_milvus_and_the_first_line(bench):
    text = await bench.search(area="applications", paper_type="Regular", spotlight_only=True)

    _, _, where, _ = bench.index.asked[-1]
    assert where.startswith('area in ["Applications->')
    assert where.endswith('and paper_type in ["regular"] and spotlight == true')
    assert 'filters: area "Applications" (2 areas), paper_type "regular", spotlight only' in text.splitlines()[0]


async def test_min_score_cuts_before_the_session(bench):
    session_id = await bench.open()

    text = await bench.search(session_id=session_id, min_score=0.997, top_k=50)
    none = await bench.search(min_score=1.0, area="Theory->Bandits")

    assert shown_ids(text) == ["paper000", "paper001", "paper002", "paper003"]
    assert "min_score 0.997" in text
    assert len(shown_ids(none)) == 1
    bench.index.answer = lambda depth: [Hit("paper000", 0.4)]
    assert (await bench.search(min_score=0.5)).startswith("0 papers: nothing in 120 ICML 2026 papers matches")


async def test_a_query_that_cannot_be_embedded_is_answered_by_words_and_says_why(bench):
    bench.embedding.reason = "timeout"

    text = await bench.search()

    assert bench.index.asked[-1][0] == "lexical"
    assert "ranked by words alone (BM25), because the query could not be embedded: timeout" in text.splitlines()[0]
    assert b'serve_lexical_answers_total{reason="timeout"} 1.0' in bench.metrics.page()


async def test_strict_hybrid_turns_that_into_an_error(make_bench):
    bench = make_bench(strict_hybrid=True)
    bench.embedding.reason = "quota"

    assert (await bench.search()).startswith("error[embedding_unavailable]: The query could not be embedded (quota).")
    assert bench.index.asked == []
    assert b"serve_lexical_answers_total{" not in bench.metrics.page()


@pytest.mark.parametrize("failure", [MilvusError("gone"), MilvusTimeout("late")])
async def test_a_failing_milvus_is_an_error_never_half_an_answer(bench, failure):
    def fail(depth: int) -> list[Hit]:
        raise failure

    works, bench.index.answer = bench.index.answer, fail
    session_id = await bench.open()

    assert (await bench.search(session_id=session_id)).startswith("error[index_unavailable]:")
    assert not await bench.ranking.probe()

    bench.index.answer = works
    assert await bench.ranking.probe()
    assert len(shown_ids(await bench.search(session_id=session_id))) == 10


async def test_an_engine_that_ended_is_reported_and_a_failing_one_is_not(bench):
    def fail(depth: int) -> list[Hit]:
        raise MilvusError("gone")

    bench.index.answer = fail
    await bench.search()
    assert bench.index.lost == []

    bench.index.alive = False
    assert (await bench.search()).startswith("error[index_unavailable]:")
    assert bench.index.lost == [True]


async def test_a_probe_reports_an_engine_that_ended_before_anybody_searched(bench):
    assert await bench.ranking.probe()

    bench.index.alive = False

    assert not await bench.ranking.probe()
    assert bench.index.lost == [True]


async def test_a_bug_is_internal_and_tells_nothing(bench):
    def fail(depth: int) -> list[Hit]:
        raise RuntimeError("secret path /srv/x")

    bench.index.answer = fail

    text = await bench.search()
    assert text.startswith("error[internal]:")
    assert "secret" not in text


async def test_a_call_past_its_deadline_is_overloaded(make_bench):
    bench = make_bench(deadline_s=0.2)
    release = threading.Event()

    def hang(depth: int) -> list[Hit]:
        release.wait(10)
        return []

    bench.index.answer = hang
    started = time.monotonic()
    text = await bench.search()
    release.set()

    assert text.startswith("error[overloaded]:")
    assert time.monotonic() - started < 2
    assert within(5, lambda: bench.workers.admitted == 0)


async def test_a_full_queue_is_overloaded_at_once_and_the_others_are_answered(make_bench):
    bench = make_bench(threads=1, queue=2)
    release = threading.Event()
    works = bench.index.answer

    def slow(depth: int) -> list[Hit]:
        release.wait(10)
        hits: list[Hit] = works(depth)
        return hits

    bench.index.answer = slow
    texts: list[str] = []

    async def one() -> None:
        texts.append(await bench.search())

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(one)
        await arrives(lambda: len(texts) == 7)
        release.set()

    assert sum(text.startswith("error[overloaded]") for text in texts) == 7
    assert sum(len(shown_ids(text)) == 10 for text in texts) == 3


async def test_a_cancelled_search_leaves_the_queue(make_bench):
    bench = make_bench(threads=1, queue=5)
    release = threading.Event()

    def slow(depth: int) -> list[Hit]:
        release.wait(10)
        return []

    bench.index.answer = slow
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(bench.search)
        await arrives(lambda: bench.workers.admitted == 4)
        group.cancel_scope.cancel()

    assert within(5, lambda: bench.workers.admitted == 1)
    release.set()
    assert within(5, lambda: bench.workers.admitted == 0)


async def test_session_errors_come_before_the_search_is_paid_for(bench):
    text = await bench.search(session_id="f" * 32)

    assert text.startswith("error[session_not_found]:")
    assert bench.index.asked == []


async def test_session_codes_reach_the_caller(bench, limits):
    closed, expired = await bench.open(), await bench.open()
    await bench.call("close_search_session", session_id=closed)
    for _ in range(limits.rounds):
        assert not (await bench.search(session_id=expired, top_k=1)).startswith("error")
    limited = await bench.search(session_id=expired)
    bench.clock.forward(limits.ttl_s + 1)

    assert (await bench.search(session_id=closed)).startswith("error[session_closed]:")
    assert limited.startswith("error[session_limit]: This session has 8 rounds")
    assert (await bench.search(session_id=expired)).startswith("error[session_expired]:")
    for _ in range(limits.capacity):
        await bench.open()
    assert (await bench.call("open_search_session")).startswith("error[session_limit]: This server holds 5 open")


async def test_get_papers_keeps_the_order_answers_duplicates_once_and_lists_the_unknown(bench):
    text = await bench.call(
        "get_papers",
        paper_ids=[
            "paper003",
            "https://openreview.net/forum?id=paper001",
            "nope",
            "paper003",
            "https://openreview.net/pdf?id=paper002&x=y#z",
            "PAPER003",
        ],
    )

    assert shown_ids(text) == ["paper003", "paper001", "paper002"]
    assert text.splitlines()[-1].endswith("nope, PAPER003")


async def test_an_id_that_looks_like_an_address_is_still_itself(make_bench, index):
    index.papers["i4?id=paper003"] = paper(200, paper_id="i4?id=paper003")

    text = await make_bench().call("get_papers", paper_ids=["i4?id=paper003"])

    assert shown_ids(text) == ["i4?id=paper003"]


async def test_get_papers_answers_many_unknown_ids_under_the_smallest_output_limit(make_bench):
    asked = [f"{number:060}" for number in range(50)]

    text = await make_bench(output_chars=2_000).call("get_papers", paper_ids=asked)

    assert text.startswith("0 papers.\nNot in this index")
    assert len(text) <= 2_000


async def test_get_papers_returns_seen_papers_and_records_the_found(bench):
    session_id = await bench.open()
    await bench.search(session_id=session_id, top_k=2)

    text = await bench.call("get_papers", paper_ids=["paper001", "paper002", "nope"], session_id=session_id)
    after = await bench.search(session_id=session_id, top_k=2)

    assert shown_ids(text) == ["paper001", "paper002"]
    assert "1 newly recorded as returned in this session" in text
    assert shown_ids(after) == ["paper003", "paper004"]
    assert "left out as already returned in this session: 3: paper000, paper001, paper002" in after


async def test_papers_that_did_not_fit_are_not_recorded(make_bench, index):
    for number in range(40):
        index.papers[f"paper{number:03}"]["title"] = "long title " * 15
    bench = make_bench(output_chars=4_000)
    session_id = await bench.open()

    first = await bench.search(session_id=session_id, top_k=40)
    second = await bench.search(session_id=session_id, top_k=40)

    assert 0 < len(shown_ids(first)) < 40
    assert "did not fit; the next round brings them" in first
    assert shown_ids(second)[0] == f"paper{len(shown_ids(first)):03}"
    assert max(len(first), len(second)) <= 4_000


async def test_the_rest_of_a_window_is_announced_only_when_it_was_shown(make_bench, limits, index):
    for stored in index.papers.values():
        stored["title"] = "long title " * 15
    nearly_full = make_bench(session_limits=limits._replace(papers=12))
    narrow = make_bench(output_chars=4_000)

    full = await nearly_full.search(session_id=await nearly_full.open(), search_depth=20, top_k=50)
    unfit = await narrow.search(session_id=await narrow.open(), search_depth=20, top_k=50)

    assert len(shown_ids(full)) == 12
    assert "That was the rest" not in full + unfit


async def test_the_rest_of_the_deepest_window_brings_no_advice_to_go_deeper(bench):
    session_id = await bench.open()
    bench.index.answer = lambda depth: [Hit("paper000", 0.4)]

    text = await bench.search(session_id=session_id, search_depth=500)

    assert "That was the rest of this window of 500 candidates; ask another query." in text


async def test_status_and_close_tell_the_progress(bench):
    session_id = await bench.open(label="graphs \u202e")
    await bench.search(session_id=session_id, top_k=2)

    status = await bench.call("search_session_status", session_id=session_id, include_papers=True)
    closed = await bench.call("close_search_session", session_id=session_id)

    assert status.startswith('Session "graphs": 2 papers returned in 1 round.')
    assert "[paper001] Title 1\n[paper000] Title 0" in status
    assert closed.startswith('Session "graphs" closed: 2 papers returned in 1 round')
    assert (await bench.call("search_session_status", session_id=session_id)).startswith("error[session_closed]")


async def test_the_rate_limit_reaches_the_caller_with_the_wait(make_bench):
    bench = make_bench(rate_limit=2)
    for _ in range(2):
        await bench.call("list_paper_areas", client="192.0.2.1")

    text = await bench.call("list_paper_areas", client="192.0.2.1")

    assert re.match(r"error\[rate_limited\]: .* Retry after 60 s\.", text)
    assert not (await bench.call("list_paper_areas", client="192.0.2.2")).startswith("error")
    assert not (await bench.call("list_paper_areas")).startswith("error")


async def test_list_paper_areas_lists_every_value(bench):
    text = await bench.call("list_paper_areas")

    assert text.startswith("120 ICML 2026 papers.")
    assert "Applications->Health / Medicine: 30" in text
    assert 'a"b\\: 30' in text
    assert "position 12, regular 108" in text


@pytest.mark.parametrize(
    ("name", "paper_id"),
    [
        ("abc", "abc"),
        (" abc\t\n", "abc"),
        ("[abc]", "abc"),
        ("<https://openreview.net/forum?id=aB>", "aB"),
        ("https://openreview.net/forum?id=aB_c-1", "aB_c-1"),
        ("http://openreview.net/pdf?id=aB&noteId=x", "aB"),
        ("openreview.net/forum?noteId=x&id=aB#reply", "aB"),
        ("https://openreview.net/forum?id=a%42", "aB"),
        ("https://openreview.net/forum?name=x", "https://openreview.net/forum?name=x"),
        ("https://openreview.net/forum?id=", "https://openreview.net/forum?id="),
        ("https://openreview.net]/forum?id=aB", "aB"),
        ("https://a\u2100b/forum?id=aB", "aB"),
        ("forum#reply?id=aB", "forum#reply?id=aB"),
    ],
)
async def test_addresses_name_ids(name, paper_id):
    assert named_id(name) == paper_id
