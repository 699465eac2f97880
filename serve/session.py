"""Search sessions: which papers a client has had, so that the next round brings others.

Deduplication and recording are one transaction: two parallel searches of a session never return the same paper, and
what was answered is remembered whatever happens to this program afterwards.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple

from serve.errors import ErrorCode, ToolFailure
from serve.state import State

ID_BYTES = 16
# Ended sessions remembered by their hash, so that closed and expired can be told apart from unknown.
ENDED_KEPT_S = 7 * 86_400
ENDED_KEPT_MAX = 100_000
# Sessions buried in one call: a burst of expiries must not hold up one caller.
BURIED_AT_ONCE = 50
PAPERS_LISTED_MAX = 200


class SessionLimits(NamedTuple):
    """Idle seconds a session lives, open sessions, rounds and papers of one session."""

    ttl_s: float
    capacity: int
    rounds: int
    papers: int


class Session(NamedTuple):
    """What is known of a live session: `index_digest` of the index of its last answer, times in epoch seconds."""

    row: int
    label: str
    default_top_k: int | None
    index_digest: str
    opened_at: int
    used_at: int
    rounds: int
    papers: int


class Page(NamedTuple):
    """One round: the papers to show in rank order, and those of the ranking that were returned before.

    `index_changed` says that the session's last answer came from another index: told once, by this one. `full` says
    that the session now holds as many papers as it may.
    """

    papers: list[str]
    left_out: list[str]
    index_changed: bool
    full: bool


class Recorded(NamedTuple):
    """How many of the papers were new to the session, and `index_changed` as in `Page`."""

    new: int
    index_changed: bool


class Sessions:
    """The sessions of one state database. Blocking; may be called from any thread.

    Every method that takes a session id raises `ToolFailure`: `session_not_found`, `session_closed` or
    `session_expired`; those that add to it also `session_limit`.
    """

    def __init__(self, state: State, limits: SessionLimits, now: Callable[[], float], index_digest: str) -> None:
        self._state = state
        self._index_digest = index_digest
        self.limits = limits
        self._now = now

    def open(self, label: str, default_top_k: int | None) -> str:
        """A new session's id: 128 random bits, of which only a hash is kept."""
        session_id = secrets.token_hex(ID_BYTES)
        now = int(self._now())
        with self._state.transaction() as sql:
            self._bury(sql, now)
            live = sql.execute(
                "SELECT count(*) FROM session WHERE ended_at IS NULL AND used_at > ?", (self._idle_since(now),)
            ).fetchone()[0]
            if live >= self.limits.capacity:
                raise ToolFailure(
                    ErrorCode.SESSION_LIMIT,
                    f"This server holds {live:,} open sessions, the most allowed. Close one with"
                    " close_search_session, retry later, or search without session_id.",
                )
            sql.execute(
                "INSERT INTO session (hash, label, default_top_k, index_digest, opened_at, used_at)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (self._hash(session_id), label, default_top_k, self._index_digest, now, now),
            )
        return session_id

    def look(self, session_id: str) -> Session:
        """The session as it is; not a use of it."""
        with self._state.transaction("DEFERRED") as sql:
            return self._live(sql, session_id)

    def check_room(self, session_id: str) -> Session:
        """The session, if another round may begin: asked before a search is paid for."""
        session = self.look(session_id)
        self._refuse_full(session)
        return session

    def page(self, session_id: str, ranking: Sequence[str], fitting: Callable[[list[str]], int], top_k: int) -> Page:
        """The first `top_k` papers of `ranking` not returned before, now recorded as returned.

        Args:
            fitting: how many of these papers, from the first, the answer can show; the others stay new.
        """
        with self._state.transaction() as sql:
            session = self._live(sql, session_id)
            self._refuse_full(session)
            seen = self._seen(sql, session)
            room = min(top_k, self.limits.papers - session.papers)
            papers = [paper_id for paper_id in ranking if paper_id not in seen][:room]
            papers = papers[: fitting(papers)]
            self._record(sql, session, papers)
            sql.execute("UPDATE session SET rounds = rounds + 1 WHERE id = ?", (session.row,))
        left_out = [paper_id for paper_id in ranking if paper_id in seen]
        full = session.papers + len(papers) >= self.limits.papers
        return Page(papers, left_out, session.index_digest != self._index_digest, full)

    def record(self, session_id: str, paper_ids: Sequence[str]) -> Recorded:
        """Record `paper_ids` as returned."""
        with self._state.transaction() as sql:
            session = self._live(sql, session_id)
            seen = self._seen(sql, session)
            new = [paper_id for paper_id in paper_ids if paper_id not in seen]
            if session.papers + len(new) > self.limits.papers:
                raise _full(session.papers, "papers returned", self.limits.papers)
            self._record(sql, session, new)
        return Recorded(len(new), session.index_digest != self._index_digest)

    def returned(self, session_id: str) -> tuple[Session, list[str]]:
        """The session and the papers last returned in it, newest first, at most `PAPERS_LISTED_MAX`."""
        with self._state.transaction("DEFERRED") as sql:
            session = self._live(sql, session_id)
            rows = sql.execute(
                "SELECT paper_id FROM seen WHERE session = ? ORDER BY position DESC LIMIT ?",
                (session.row, PAPERS_LISTED_MAX),
            ).fetchall()
        return session, [row[0] for row in rows]

    def close(self, session_id: str) -> Session:
        """End the session and forget its label and papers; the session as it was."""
        now = int(self._now())
        with self._state.transaction() as sql:
            session = self._live(sql, session_id)
            _end(sql, session.row, now, "closed")
            self._bury(sql, now)
        return session

    def bury(self) -> None:
        """Forget what expired: asked at the start."""
        with self._state.transaction() as sql:
            self._bury(sql, int(self._now()))

    def live(self) -> int:
        """How many sessions are open."""
        with self._state.transaction("DEFERRED") as sql:
            return int(
                sql.execute(
                    "SELECT count(*) FROM session WHERE ended_at IS NULL AND used_at > ?",
                    (self._idle_since(int(self._now())),),
                ).fetchone()[0]
            )

    def _hash(self, session_id: str) -> bytes:
        return self._state.keyed("session", session_id)

    def _idle_since(self, now: int) -> int:
        return int(now - self.limits.ttl_s)

    def _live(self, sql: sqlite3.Connection, session_id: str) -> Session:
        row = sql.execute(
            "SELECT id, label, default_top_k, index_digest, opened_at, used_at, rounds,"
            " (SELECT count(*) FROM seen WHERE session = session.id), ending FROM session WHERE hash = ?",
            (self._hash(session_id),),
        ).fetchone()
        if row is None:
            raise _gone(ErrorCode.SESSION_NOT_FOUND)
        *known, ending = row
        session = Session(*known)
        if ending == "closed":
            raise _gone(ErrorCode.SESSION_CLOSED)
        if ending is not None or session.used_at <= self._idle_since(int(self._now())):
            raise _gone(ErrorCode.SESSION_EXPIRED)
        return session

    def _refuse_full(self, session: Session) -> None:
        if session.rounds >= self.limits.rounds:
            raise _full(session.rounds, "rounds", self.limits.rounds)
        if session.papers >= self.limits.papers:
            raise _full(session.papers, "papers returned", self.limits.papers)

    def _seen(self, sql: sqlite3.Connection, session: Session) -> set[str]:
        return {row[0] for row in sql.execute("SELECT paper_id FROM seen WHERE session = ?", (session.row,))}

    def _record(self, sql: sqlite3.Connection, session: Session, papers: Sequence[str]) -> None:
        sql.executemany(
            "INSERT INTO seen VALUES (?, ?, ?)",
            [(session.row, paper_id, position) for position, paper_id in enumerate(papers, start=session.papers)],
        )
        sql.execute(
            "UPDATE session SET used_at = ?, index_digest = ? WHERE id = ?",
            (int(self._now()), self._index_digest, session.row),
        )

    def _bury(self, sql: sqlite3.Connection, now: int) -> None:
        idle = sql.execute(
            "SELECT id FROM session WHERE ended_at IS NULL AND used_at <= ? ORDER BY used_at LIMIT ?",
            (self._idle_since(now), BURIED_AT_ONCE),
        ).fetchall()
        for (row,) in idle:
            _end(sql, row, now, "expired")
        sql.execute("DELETE FROM session WHERE ended_at <= ?", (now - ENDED_KEPT_S,))
        sql.execute(
            "DELETE FROM session WHERE id IN (SELECT id FROM session WHERE ended_at IS NOT NULL ORDER BY ended_at"
            " LIMIT max(0, (SELECT count(*) FROM session WHERE ended_at IS NOT NULL) - ?))",
            (ENDED_KEPT_MAX,),
        )


def _end(sql: sqlite3.Connection, row: int, now: int, ending: str) -> None:
    sql.execute("DELETE FROM seen WHERE session = ?", (row,))
    sql.execute("UPDATE session SET ended_at = ?, ending = ?, label = '' WHERE id = ?", (now, ending, row))


def _gone(code: ErrorCode) -> ToolFailure:
    return ToolFailure(code, f"{code.meaning} {code.advice}")


def _full(reached: int, what: str, limit: int) -> ToolFailure:
    return ToolFailure(
        ErrorCode.SESSION_LIMIT,
        f"This session has {reached:,} {what}, and at most {limit:,} are allowed. Close it and open a new session.",
    )
