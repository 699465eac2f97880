"""Sessions: no paper twice, every limit with its code, ended ones told apart, nothing readable stored."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing

import pytest

from serve import session as session_module
from serve.errors import ErrorCode, ToolFailure
from serve.session import SessionLimits, Sessions
from serve.state import open_state

RANKING = [f"p{number}" for number in range(30)]


def all_fit(papers: list[str]) -> int:
    return len(papers)


def code_of(call, *arguments) -> ErrorCode:
    with pytest.raises(ToolFailure) as refused:
        call(*arguments)
    return refused.value.code


def page(sessions: Sessions, session_id: str, top_k: int = 10, ranking=RANKING):
    return sessions.page(session_id, ranking, all_fit, top_k)


def test_rounds_bring_new_papers_until_the_ranking_is_used_up(sessions):
    session_id = sessions.open("", None)

    rounds = [page(sessions, session_id) for _ in range(4)]

    assert [papers for papers, *_ in rounds] == [RANKING[:10], RANKING[10:20], RANKING[20:], []]
    assert [len(left_out) for _, left_out, *_ in rounds] == [0, 10, 20, 30]
    assert sessions.look(session_id).rounds == 4
    assert page(sessions, sessions.open("", None)).papers == RANKING[:10]


def test_a_session_is_looked_at_while_another_program_writes(sessions, state, tmp_path):
    session_id = sessions.open("", None)
    page(sessions, session_id, 2)
    with state.transaction() as sql:
        sql.execute("PRAGMA busy_timeout = 0")

    with closing(sqlite3.connect(tmp_path / "serve.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        looked, (returned, papers), live = sessions.look(session_id), sessions.returned(session_id), sessions.live()

    assert looked == returned
    assert papers == ["p1", "p0"]
    assert live == 1


def test_what_does_not_fit_stays_new(sessions):
    session_id = sessions.open("", None)

    first = sessions.page(session_id, RANKING, lambda papers: 3, 10)
    second = page(sessions, session_id)

    assert first.papers == RANKING[:3]
    assert second.papers == RANKING[3:13]


def test_recorded_papers_are_left_out(sessions):
    session_id = sessions.open("", None)

    assert sessions.record(session_id, ["p1", "p3"]).new == 2
    assert sessions.record(session_id, ["p3", "p4"]).new == 1
    assert page(sessions, session_id, 3).papers == ["p0", "p2", "p5"]


def test_parallel_searches_of_one_session_never_return_a_paper_twice(state, clock, tmp_path):
    # Two connections, as of two processes: only an immediate transaction lets their reads and writes take turns.
    other_state = open_state(tmp_path / "serve.db", key=None)
    limits = SessionLimits(3_600, 5, 1_000, 5_000)
    both = [Sessions(state, limits, clock, "digest-one"), Sessions(other_state, limits, clock, "digest-one")]
    ranking = [f"p{number}" for number in range(500)]
    session_id = both[0].open("", None)
    got: list[str] = []
    refused: list[ToolFailure] = []

    def slowly(papers: list[str]) -> int:
        time.sleep(0.005)
        return len(papers)

    def survey(sessions: Sessions) -> None:
        try:
            for _ in range(5):
                got.extend(sessions.page(session_id, ranking, slowly, 5).papers)
        except ToolFailure as failure:
            refused.append(failure)

    threads = [threading.Thread(target=survey, args=(sessions,)) for sessions in both * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other_state.close()

    assert refused == []
    assert sorted(got) == sorted(ranking[:200])


def test_two_processes_share_a_session(state, limits, clock, tmp_path):
    other_state = open_state(tmp_path / "serve.db", key=None)
    other = Sessions(other_state, limits, clock, "digest-one")
    first = Sessions(state, limits, clock, "digest-one")
    session_id = first.open("", None)

    assert page(first, session_id).papers + page(other, session_id).papers == RANKING[:20]
    other_state.close()


def test_a_session_that_goes_on_over_another_index_is_told_once(state, limits, clock):
    before = Sessions(state, limits, clock, "digest-one")
    session_id = before.open("", None)
    assert not page(before, session_id).index_changed

    after = Sessions(state, limits, clock, "digest-two")

    assert page(after, session_id).index_changed
    assert not page(after, session_id).index_changed
    assert not after.record(session_id, ["q1"]).index_changed
    assert before.record(session_id, ["q2"]).index_changed


def test_capacity_is_refused_and_room_comes_from_closing_and_expiry(sessions, limits, clock):
    opened = [sessions.open("", None) for _ in range(limits.capacity)]
    assert code_of(sessions.open, "", None) is ErrorCode.SESSION_LIMIT

    sessions.close(opened[0])
    sessions.open("", None)
    assert code_of(sessions.open, "", None) is ErrorCode.SESSION_LIMIT

    clock.forward(limits.ttl_s)
    assert sessions.live() == 0
    sessions.open("", None)


def test_searching_keeps_a_session_alive_and_looking_does_not(sessions, limits, clock):
    session_id = sessions.open("", None)
    for _ in range(3):
        clock.forward(limits.ttl_s - 1)
        page(sessions, session_id, 1)

    clock.forward(limits.ttl_s - 1)
    sessions.look(session_id)
    clock.forward(1)

    assert code_of(sessions.look, session_id) is ErrorCode.SESSION_EXPIRED


def test_rounds_are_bounded(sessions, limits):
    session_id = sessions.open("", None)
    for _ in range(limits.rounds):
        page(sessions, session_id, 1, [])

    assert code_of(sessions.check_room, session_id) is ErrorCode.SESSION_LIMIT
    assert code_of(page, sessions, session_id) is ErrorCode.SESSION_LIMIT


def test_papers_are_bounded(sessions, limits):
    session_id = sessions.open("", None)
    ranking = [f"q{number}" for number in range(100)]

    first = page(sessions, session_id, 50, ranking)
    assert (len(first.papers), first.full) == (50, False)
    last = page(sessions, session_id, 50, ranking)
    assert (len(last.papers), last.full) == (limits.papers - 50, True)
    assert code_of(sessions.check_room, session_id) is ErrorCode.SESSION_LIMIT
    assert code_of(sessions.record, session_id, ["new"]) is ErrorCode.SESSION_LIMIT
    assert sessions.record(session_id, ["q1"]).new == 0


def test_closed_expired_and_unknown_are_told_apart(sessions, limits, clock):
    closed, expired = sessions.open("", None), sessions.open("", None)
    sessions.close(closed)
    clock.forward(limits.ttl_s + 1)
    sessions.open("", None)

    for call in (sessions.look, sessions.close, lambda session_id: page(sessions, session_id)):
        assert code_of(call, closed) is ErrorCode.SESSION_CLOSED
        assert code_of(call, expired) is ErrorCode.SESSION_EXPIRED
        assert code_of(call, "0" * 32) is ErrorCode.SESSION_NOT_FOUND


def test_the_end_of_a_session_forgets_its_label_and_papers(state, sessions, limits, clock):
    for _ in range(2):
        session_id = sessions.open("secret survey", None)
        page(sessions, session_id)
    sessions.close(session_id)
    clock.forward(limits.ttl_s + 1)
    sessions.bury()

    with state.transaction() as sql:
        assert sql.execute("SELECT DISTINCT label FROM session").fetchall() == [("",)]
        assert sql.execute("SELECT count(*) FROM seen").fetchone() == (0,)


def test_ended_sessions_are_forgotten_in_time_and_in_number(state, sessions, clock, monkeypatch):
    monkeypatch.setattr(session_module, "ENDED_KEPT_MAX", 3)
    for _ in range(6):
        sessions.close(sessions.open("", None))
        clock.forward(1)
    with state.transaction() as sql:
        assert sql.execute("SELECT count(*) FROM session").fetchone() == (3,)

    clock.forward(session_module.ENDED_KEPT_S)
    sessions.bury()
    with state.transaction() as sql:
        assert sql.execute("SELECT count(*) FROM session").fetchone() == (0,)


def test_the_id_is_random_and_not_stored(state, sessions, tmp_path):
    ids = {sessions.open("", None) for _ in range(5)}

    assert {len(bytes.fromhex(session_id)) for session_id in ids} == {16}
    assert len(ids) == 5
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for session_id in ids:
        assert session_id.encode() not in stored
        assert bytes.fromhex(session_id) not in stored


def test_the_papers_last_returned_come_newest_first(sessions):
    session_id = sessions.open("a label", 7)
    page(sessions, session_id, 3)
    page(sessions, session_id, 2)

    session, papers = sessions.returned(session_id)

    assert papers == ["p4", "p3", "p2", "p1", "p0"]
    assert (session.label, session.default_top_k, session.rounds, session.papers) == ("a label", 7, 2, 5)
