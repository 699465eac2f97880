"""The ledger of provider minutes: what a provider has counted in the last 60 seconds, shared by all programs here.

A request is reserved before it leaves and counts until 60 seconds after its answer, whatever minute the provider
draws: any 60 seconds of the provider's clock that hold the request's counting lie inside that span. So no agreement
of clocks is needed, and a reservation whose outcome nobody learned (timeout, `kill -9`) simply counts longest.
On top of that bound a pacer spreads requests and tokens over the seconds, gently after a pause. It is the generic cell
rate algorithm (GCRA, ITU-T I.371, as virtual scheduling): each request moves the theoretical arrival time (`…_tat`) of
the next by what it takes of the window, and the next may come earlier than that by no more than the burst.

The row of an account is named by endpoint and model alone. Quotas belong to a root account over all its keys, so
the API key is no part of the name, not even hashed. A second root account gets a ledger file of its own.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from manifests.errors import QuotaExhausted
from manifests.ledger_file import Account, machine_boot, machine_clock, open_ledger_file

log = logging.getLogger(__name__)

# The two clocks may differ by this much over one window (500 ppm is 30 ms, plus the rounding of floats).
MARGIN_S = 0.05
# Above 1 so that the hard bound decides in the long run and a late thread can catch up; below 1 it would cost.
PACE = 1.03
PACE_MIN = 0.2
# Time lost by a busy machine is made up for at this pace, while usage is behind what it could be by that share.
PACE_BEHIND = 1.15
BEHIND = 0.01
PACE_AFTER_REFUSAL = 0.8
STRIKES_MAX = 10
# Shares of the window: burst a document or query may take at once, ramp after a pause, the pause itself, first hold.
# RAMP_START is the share of the full rate that a ramp begins with.
BURST_DOCUMENTS = 0.25 / 60
BURST_QUERIES = 1 / 60
RAMP = 4 / 60
RAMP_AFTER = 10 / 60
RAMP_START = 0.2
HOLD_FIRST = 2 / 60
# An estimate is reserved as (estimate + SMALL) x worst ratio seen x HEADROOM, until usage corrects it.
SMALL_TOKENS = 16
RATIO_UNKNOWN = 1.3
RATIO_DECAY = 0.002
HEADROOM = 1.1
# A waiting caller looks again at least this often: another program may have settled early.
RECHECK_S = 0.5


@dataclass(frozen=True)
class Limits:
    """The account's quota. `query_reserve` (0 to 1) is the share that documents leave free for queries."""

    requests_per_minute: int
    tokens_per_minute: int
    query_reserve: float = 0.0

    def __post_init__(self) -> None:
        if self.requests_per_minute < 1 or self.tokens_per_minute < 1 or not 0 <= self.query_reserve < 1:
            raise ValueError(
                f"limits of {self.requests_per_minute} requests and {self.tokens_per_minute} tokens a minute with "
                f"a query reserve of {self.query_reserve}; expected at least 1, at least 1, and from 0 to below 1"
            )


@dataclass(frozen=True)
class Reservation:
    """Room taken for one request: `tokens` are counted for an estimate of `estimate`, from `sent` on.

    `token_s` is what the pacer took for each of them, and gives back for each that was not used.
    """

    id: int
    estimate: int
    tokens: int
    sent: float
    token_s: float = 0.0


@dataclass(frozen=True)
class Usage:
    """What counts at this moment, in flight included, and for how long the provider asked everybody to wait."""

    requests: int
    tokens: int
    hold_s: float


class _Room(NamedTuple):
    """Requests and tokens of one window: allowed, or counted."""

    requests: int
    tokens: int


class Ledger:
    """Requests and tokens of one account; safe for threads and for several programs on one file.

    `window_s` other than 60 is for tests that scale time. `in_flight_s` bounds how long a request may take: a
    reservation that nobody settles counts so much longer.
    """

    def __init__(
        self,
        path: Path,
        account: str,
        limits: Limits,
        *,
        window_s: float = 60.0,
        in_flight_s: float = 45.0,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.path = path
        self.account = account
        self.limits = limits
        self.window_s = window_s
        self._in_flight_s = in_flight_s
        self._clock = clock or machine_clock
        self._boot = "" if clock else machine_boot()
        self._stopped = threading.Event()
        self._sleep = sleep or self._stopped.wait
        self._lock = threading.RLock()
        self._lanes = {False: threading.Lock(), True: threading.Lock()}
        self._db = open_ledger_file(path)

    def reserve(self, estimate: int, *, timeout_s: float, query: bool = False) -> Reservation:
        """Take room for one request of about `estimate` tokens, waiting up to `timeout_s` for it.

        Documents leave `query_reserve` of the limits free; queries may use all and wait behind no document.

        Raises:
            QuotaExhausted: no room in time, a request larger than the limit, or a ledger that cannot be
                written. Nothing may be sent.
        """
        deadline = self._clock() + timeout_s
        lane = self._lanes[query]
        if not lane.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise self._exhausted(estimate, wait_s=timeout_s, timeout_s=timeout_s)
        try:
            while not self._stopped.is_set():
                outcome = self._admit(estimate, query=query)
                if isinstance(outcome, Reservation):
                    return outcome
                if outcome > deadline - self._clock():
                    raise self._exhausted(estimate, wait_s=outcome, timeout_s=timeout_s)
                self._sleep(min(outcome, RECHECK_S))
        finally:
            lane.release()
        raise QuotaExhausted("the program is stopping; nothing was sent", wait_s=0.0)

    def settle(self, reservation: Reservation, *, tokens: int | None) -> None:
        """The answer is here: count until a window from now, with the usage reported or else the estimate.

        No usage is believed beyond a whole minute's tokens.
        """
        tokens = None if tokens is None else min(tokens, self.limits.tokens_per_minute)

        def change(account: Account, now: float) -> None:
            self._end(reservation, account, now, reservation.tokens if tokens is None else tokens)
            if tokens is not None:
                seen = tokens / (reservation.estimate + SMALL_TOKENS)
                account.ratio = max(seen, account.ratio - RATIO_DECAY * (account.ratio - seen))
                account.strikes = 0
                account.pace = min(1.0, account.pace + 0.01)

        self._record(change)

    def throttle(self, reservation: Reservation, *, retry_after_s: float | None) -> None:
        """The provider refused for its quota: the request counts, its tokens do not, and every program waits.

        The wait is what the provider asked for, else two seconds, doubling while refusals follow each other;
        never over one window, so that a mistaken "come back tomorrow" outlives no minute.
        """

        def change(account: Account, now: float) -> None:
            self._end(reservation, account, now, 0)
            account.strikes = min(account.strikes + 1, STRIKES_MAX)
            pause = self.window_s * HOLD_FIRST * 2 ** (account.strikes - 1)
            account.hold = max(account.hold, now + min(self.window_s, retry_after_s or pause))
            account.ramp = max(account.ramp, account.hold)
            account.pace = max(PACE_MIN, account.pace * PACE_AFTER_REFUSAL)

        self._record(change)

    def forget(self, reservation: Reservation) -> None:
        """The request never left this machine (no address, no connection): give its room back."""

        def change(account: Account, now: float) -> None:
            self._end(reservation, account, now, 0)
            self._db.execute("DELETE FROM reservation WHERE id = ?", (reservation.id,))

        self._record(change)

    def usage(self) -> Usage:
        """Requests and tokens that count now, of every program that shares the file.

        Only reads, so it waits for no other program. The first request after a restart of the machine starts the time.
        """
        with self._lock:
            self._db.execute("BEGIN")  # account and reservations of one moment
            try:
                account, shift = self._read()
                return Usage(*self._counted(account.last - shift), max(0.0, account.hold - account.last))
            finally:
                self._db.execute("COMMIT")

    def stop(self) -> None:
        """Wake every waiting caller; each raises `QuotaExhausted`, as does every later one."""
        self._stopped.set()

    def close(self) -> None:
        """Stop, then close the file."""
        self.stop()
        with self._lock:
            self._db.close()

    def _admit(self, estimate: int, *, query: bool) -> Reservation | float:
        """A reservation, committed, or the seconds until there may be room."""
        share = 1.0 if query else 1.0 - self.limits.query_reserve
        room = _Room(
            max(1, math.floor(self.limits.requests_per_minute * share)),
            math.floor(self.limits.tokens_per_minute * share),
        )
        if estimate > room.tokens:
            raise QuotaExhausted(
                f"a request of about {estimate:,} tokens can never fit under {room.tokens:,} tokens a minute; "
                "raise --tokens-per-minute or send smaller batches",
                wait_s=math.inf,
            )
        try:
            with self._transaction() as (account, now):
                tokens = min(room.tokens, _expected(estimate, account.ratio))
                counted = self._counted(now)
                wait = max(
                    account.hold - now,
                    self._pace_wait(account, now, query=query),
                    self._room_wait(now, counted.requests + 1 - room.requests, counted.tokens + tokens - room.tokens),
                )
                if wait > 0:
                    return wait
                reservation = Reservation(secrets.randbits(62), estimate, tokens, now)
                return self._insert(account, reservation, room, counted, query=query)
        except sqlite3.Error as exc:
            raise QuotaExhausted(
                f"the ledger {self.path} cannot be written ({exc}); nothing was sent. Free space or fix its "
                "permissions, then run the same command again",
                wait_s=0.0,
            ) from exc

    def _pace_wait(self, account: Account, now: float, *, query: bool) -> float:
        """Seconds until the pacer lets one more go. Queries have one of their own: a build does not delay them."""
        if query:
            return account.query_tat - self.window_s * BURST_QUERIES - now
        return max(account.request_tat, account.token_tat) - self.window_s * BURST_DOCUMENTS - now

    def _room_wait(self, now: float, excess_requests: int, excess_tokens: int) -> float:
        """Seconds until so many reservations have ended that this much less is counted."""
        if excess_requests <= 0 and excess_tokens <= 0:
            return 0.0
        ending = self._db.execute(
            "SELECT until, tokens FROM reservation WHERE account = ? ORDER BY until", (self.account,)
        )
        for until, freed in ending:
            excess_requests -= 1
            excess_tokens -= freed
            if excess_requests <= 0 and excess_tokens <= 0:
                return max(0.0, float(until) - now)
        return self.window_s

    def _counted(self, now: float) -> _Room:
        row = self._db.execute(
            "SELECT COUNT(*), COALESCE(SUM(tokens), 0) FROM reservation WHERE account = ? AND until > ?",
            (self.account, now),
        ).fetchone()
        return _Room(int(row[0]), int(row[1]))

    def _insert(
        self, account: Account, reservation: Reservation, room: _Room, counted: _Room, *, query: bool
    ) -> Reservation:
        """Count it and move its pacer."""
        now = reservation.sent
        self._write(reservation.id, now + self._in_flight_s + self.window_s + MARGIN_S, reservation.tokens)
        if query:
            account.query_tat = max(account.query_tat, now) + self.window_s / (PACE * account.pace * room.requests)
            return reservation
        if now - account.admitted > self.window_s * RAMP_AFTER:
            account.ramp = max(account.ramp, now)
        account.admitted = now
        used = max(counted.requests / room.requests, counted.tokens / room.tokens)
        behind = used < min(1.0, (now - account.ramp) / self.window_s) - BEHIND
        whole_s = self.window_s / ((PACE_BEHIND if behind else PACE) * account.pace)
        token_s = whole_s / room.tokens
        request_slot_s = self._ramped(whole_s / room.requests, account, now)
        account.request_tat = max(account.request_tat, now) + request_slot_s
        tokens_slot_s = self._ramped(token_s * reservation.tokens, account, now)
        account.token_tat = max(account.token_tat, now) + tokens_slot_s
        return replace(reservation, token_s=token_s)

    def _ramped(self, slot: float, account: Account, now: float) -> float:
        """`slot`, longer while the ramp after a pause lasts, but never by more than what is left of the ramp."""
        ramp_s = self.window_s * RAMP
        left = account.ramp + ramp_s - now
        if left <= 0:
            return slot
        rate = RAMP_START + (1 - RAMP_START) * max(0.0, 1 - left / ramp_s)
        return min(slot / rate, slot + left)

    def _end(self, reservation: Reservation, account: Account, now: float, tokens: int) -> None:
        """Count to a window after the answer, and give the pacer back what the estimate was too high."""
        self._write(reservation.id, max(reservation.sent, now) + self.window_s + MARGIN_S, tokens)
        account.token_tat += (tokens - reservation.tokens) * reservation.token_s

    def _write(self, reservation_id: int, until: float, tokens: int) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO reservation (id, account, until, tokens) VALUES (?, ?, ?, ?)",
            (reservation_id, self.account, until, tokens),
        )

    def _record(self, change: Callable[[Account, float], None]) -> None:
        """Write down an answer. If that fails, the reservation stands and counts longest: only logged."""
        try:
            with self._transaction() as (account, now):
                change(account, now)
        except sqlite3.Error as exc:
            log.warning("ledger %s: an answer could not be recorded (%s); it counts longer", self.path, exc)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[tuple[Account, float]]:
        """The account, its ended reservations removed, and the time; all of it written on leaving."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                account, shift = self._read()
                if shift:
                    self._db.execute(
                        "UPDATE reservation SET until = until + ? WHERE account = ?", (shift, self.account)
                    )
                self._db.execute(
                    "DELETE FROM reservation WHERE account = ? AND until <= ?", (self.account, account.last)
                )
                yield account, account.last
                account.bound(account.last + self.window_s)
                self._db.execute("REPLACE INTO account VALUES (?,?,?,?,?,?,?,?,?,?,?,?)", astuple(account))
                self._db.execute("COMMIT")
            except BaseException:  # also Ctrl-C must not leave a transaction open; raised again
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _read(self) -> tuple[Account, float]:
        """The account as of now, and by how many seconds its stored reservations end later.

        After a restart of the machine the time it was off counts as no time at all.
        """
        now = self._clock()
        row = self._db.execute("SELECT * FROM account WHERE name = ?", (self.account,)).fetchone()
        if row is None:
            return Account(self.account, self._boot, now), 0.0
        account = Account(*row)
        shift = 0.0
        if account.boot != self._boot or now < account.last - 1.0:
            shift = now - account.last
            account.hold += shift
            account.ramp += shift
            account.admitted += shift
            account.request_tat += shift
            account.token_tat += shift
            account.query_tat += shift
            account.boot, account.last = self._boot, now
        account.last = max(account.last, now)
        account.bound(account.last + self.window_s)
        return account, shift

    def _exhausted(self, estimate: int, *, wait_s: float, timeout_s: float) -> QuotaExhausted:
        return QuotaExhausted(
            f"no room for a request of about {estimate:,} tokens under {self.limits.requests_per_minute:,} requests "
            f"and {self.limits.tokens_per_minute:,} tokens a minute for {wait_s:.1f} s (allowed wait {timeout_s:.1f} "
            "s); nothing was sent. Run the same command later, or lower the use of the other programs",
            wait_s=wait_s,
        )


def _expected(estimate: int, ratio: float) -> int:
    """Tokens to reserve: the estimate by the worst ratio of usage to estimate seen of late (0: none yet)."""
    return math.ceil((estimate + SMALL_TOKENS) * (ratio * HEADROOM if ratio else RATIO_UNKNOWN))
