"""The file of the ledger: its tables, the row of an account, how it is opened, and the clock its times are of."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from manifests.errors import ForeignDatabase

APPLICATION_ID = 0x49504C67
SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 5.0
# Of the usage of texts to what they were estimated at; a stored one beyond it comes from an absurd answer.
RATIO_MAX = 4.0
SCHEMA = """
CREATE TABLE account (
    name TEXT PRIMARY KEY, boot TEXT NOT NULL, last REAL NOT NULL, hold REAL NOT NULL, strikes INTEGER NOT NULL,
    pace REAL NOT NULL, ramp REAL NOT NULL, admitted REAL NOT NULL, request_tat REAL NOT NULL,
    token_tat REAL NOT NULL, query_tat REAL NOT NULL, ratio REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE reservation (
    id INTEGER PRIMARY KEY, account TEXT NOT NULL, until REAL NOT NULL, tokens INTEGER NOT NULL
);
CREATE INDEX reservation_by_end ON reservation (account, until, tokens);
"""


@dataclass
class Account:
    """The row of one account, its columns in their order.

    Attributes:
        name: endpoint and model.
        boot: the run of the machine that the times are of; they are seconds of the ledger's clock.
        last: when the row was last changed; time never goes back behind it.
        hold: until when nobody may send, because the provider refused for its quota.
        strikes: refusals for the quota since the last answer with usage; each doubles the next hold.
        pace: share of the full rate in force, from 0.2 to 1; a refusal lowers it, every answer raises it a little.
        ramp: when the present ramp began or, under a hold, begins: from there the rate rises to the full one.
        admitted: when the last document request was admitted; long before now, the next one begins a ramp.
        request_tat: theoretical arrival time (see ledger.py) of the next document request, by requests.
        token_tat: the same by tokens; a document request waits for the later of the two.
        query_tat: the same for queries, by requests alone.
        ratio: the worst ratio of reported to estimated tokens seen of late, 0 before any; it multiplies estimates.
    """

    name: str
    boot: str
    last: float
    hold: float = 0.0
    strikes: int = 0
    pace: float = 1.0
    ramp: float = 0.0
    admitted: float = -math.inf
    request_tat: float = 0.0
    token_tat: float = 0.0
    query_tat: float = 0.0
    ratio: float = 0.0

    def bound(self, horizon: float) -> None:
        """Nothing counts longer than a window, so nobody need wait past `horizon`, whatever a provider reported."""
        self.request_tat = min(self.request_tat, horizon)
        self.token_tat = min(self.token_tat, horizon)
        self.query_tat = min(self.query_tat, horizon)
        self.ratio = min(self.ratio, RATIO_MAX)


def open_ledger_file(path: Path) -> sqlite3.Connection:
    """The ledger file, made if absent (mode 0600), in WAL mode where the filesystem can.

    Raises:
        ForeignDatabase: another program's file, another version, not SQLite, or not writable.
    """
    refusal = "Name another file with --ledger, which this user can write"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as exc:
        raise ForeignDatabase(f"{path} cannot be opened as a ledger ({exc}). {refusal}") from exc
    try:
        found = _prepare(db)
    except sqlite3.Error as exc:
        db.close()
        raise ForeignDatabase(f"{path} cannot be used as a ledger ({exc}). {refusal}") from exc
    if found != (APPLICATION_ID, SCHEMA_VERSION):
        db.close()
        raise ForeignDatabase(
            f"{path} is not a ledger of this version: found application {found[0]}, version {found[1]}; "
            f"expected {APPLICATION_ID}, {SCHEMA_VERSION}. {refusal}"
        )
    return db


def _prepare(db: sqlite3.Connection) -> tuple[int, int]:
    """Make the tables in an empty file; return application id and version. A foreign file stays as it is."""
    empty = _pragma(db, "schema_version") == 0  # read first: another program may be making the tables right now
    found = (_pragma(db, "application_id"), _pragma(db, "user_version"))
    if found != (APPLICATION_ID, SCHEMA_VERSION) and not empty:
        return found
    with contextlib.suppress(sqlite3.OperationalError):  # another program is switching it at this moment
        db.execute("PRAGMA journal_mode = WAL")
    # In WAL mode NORMAL survives kill -9; only a power cut may forget the last instants, and takes minutes.
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("BEGIN IMMEDIATE")
    if _pragma(db, "schema_version") == 0:
        for statement in SCHEMA.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")
    return _pragma(db, "application_id"), _pragma(db, "user_version")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def machine_clock() -> float:
    """Seconds that every program of this machine agrees on and no one can set; sleep of the machine counts."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def machine_boot() -> str:
    """A name for this run of the machine, where the system has one: the clock starts anew with each."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text(encoding="ascii").strip() if boot.exists() else ""
