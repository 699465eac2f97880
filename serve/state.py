"""The state database: one SQLite file for sessions, rate limits and query vectors.

Only this module knows its schema. Secrets are never stored: session ids, client addresses and queries go in as
keyed hashes. A file of another program, schema version or hash key is refused, never repaired.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from serve.errors import StateFailed, StateRefused

log = logging.getLogger(__name__)

APPLICATION_ID = 0x49504D53
SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 10.0
JOURNAL_ATTEMPTS = 50
KEY_BYTES = 32
KEY_BYTES_MIN = 16

# Times are whole epoch seconds (UTC). A closed or expired session keeps only its hash and times, so that it can be
# told apart from one that never was.
SCHEMA: dict[str, str] = {
    "meta": "CREATE TABLE meta (name TEXT PRIMARY KEY, content BLOB NOT NULL) STRICT",
    "session": (
        "CREATE TABLE session (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, label TEXT NOT NULL,"
        " default_top_k INTEGER, index_digest TEXT NOT NULL, opened_at INTEGER NOT NULL, used_at INTEGER NOT NULL,"
        " rounds INTEGER NOT NULL DEFAULT 0, ended_at INTEGER, ending TEXT) STRICT"
    ),
    "session_by_use": "CREATE INDEX session_by_use ON session (ended_at, used_at)",
    "seen": (
        "CREATE TABLE seen (session INTEGER NOT NULL REFERENCES session (id) ON DELETE CASCADE,"
        " paper_id TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (session, paper_id)) STRICT, WITHOUT ROWID"
    ),
    "client": (
        "CREATE TABLE client (hash BLOB PRIMARY KEY, calls BLOB NOT NULL, last REAL NOT NULL) STRICT, WITHOUT ROWID"
    ),
    "client_by_last": "CREATE INDEX client_by_last ON client (last)",
    "query_vector": (
        "CREATE TABLE query_vector (key BLOB PRIMARY KEY, vector BLOB NOT NULL, used INTEGER NOT NULL) STRICT"
    ),
    "query_vector_by_use": "CREATE INDEX query_vector_by_use ON query_vector (used)",
}


class State:
    """An open state database. Every method may be called from any thread; calls of one process take turns."""

    def __init__(self, connection: sqlite3.Connection, key: bytes) -> None:
        self._connection = connection
        self._key = key
        self._turn = threading.Lock()

    def keyed(self, purpose: str, *parts: str) -> bytes:
        """Keyed hash (32 bytes) of `parts`; equal texts of different purposes do not meet."""
        text = "\0".join((purpose, *parts))
        return hmac.digest(self._key, text.encode("utf-8", "surrogatepass"), hashlib.sha256)

    @contextlib.contextmanager
    def transaction(self, mode: Literal["DEFERRED", "IMMEDIATE"] = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """All of it is stored, or on any exception nothing. What only reads is `DEFERRED`: it waits for no writer.

        Raises:
            StateFailed: SQLite failed; the cause is logged.
        """
        with self._turn:
            try:
                self._connection.execute(f"BEGIN {mode}")
                try:
                    yield self._connection
                    self._connection.commit()
                except BaseException:  # also a cancelled or interrupted call stores nothing; raised again
                    self._connection.rollback()
                    raise
            except sqlite3.Error as error:
                log.error("state database failed: %s", error)  # noqa: TRY400 -- a full disk needs no traceback
                raise StateFailed(str(error)) from error

    def vector(self, key: bytes, *, rows_max: int) -> bytes | None:
        """The query vector kept under `key`.

        That it was used is noted once it is among the longer unused half: a popular query writes nothing.
        """
        with self.transaction("DEFERRED") as sql:
            row = sql.execute(
                "SELECT vector, (SELECT max(used) FROM query_vector) - used FROM query_vector WHERE key = ?", (key,)
            ).fetchone()
        if row is None:
            return None
        vector, newer = row
        if newer >= rows_max // 2:
            with self.transaction() as sql:
                sql.execute(
                    "UPDATE query_vector SET used = (SELECT max(used) + 1 FROM query_vector) WHERE key = ?", (key,)
                )
        return bytes(vector)

    def keep_vector(self, key: bytes, vector: bytes, *, rows_max: int) -> None:
        """Keep `vector` under `key`; beyond `rows_max` the ones longest unused go."""
        with self.transaction() as sql:
            sql.execute(
                "INSERT OR REPLACE INTO query_vector"
                " VALUES (?, ?, (SELECT coalesce(max(used), 0) + 1 FROM query_vector))",
                (key, vector),
            )
            sql.execute(
                "DELETE FROM query_vector WHERE key IN (SELECT key FROM query_vector ORDER BY used"
                " LIMIT max(0, (SELECT count(*) FROM query_vector) - ?))",
                (rows_max,),
            )

    def close(self) -> None:
        """Fold the write-ahead log back and release the file."""
        with self._turn:
            self._connection.close()


def open_state(path: Path, *, key: str | None) -> State:
    """Open the state database at `path`, creating it when there is none.

    Args:
        path: the SQLite file; its folder is created.
        key: `SERVE_HASH_KEY`; without it the key file `PATH.key` is read, or created with mode 0600.

    Raises:
        StateRefused: not SQLite, not ours, another schema version, another hash key, or not writable.
    """
    with ExitStack() as failed:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = failed.enter_context(contextlib.closing(_connect(path)))
            if not _is_empty(connection):
                _refuse_foreign(connection, path)
            secret = _given_key(key) if key else _key_file(path.with_name(path.name + ".key"))
            _prepare(connection, path, secret)
        except (OSError, sqlite3.Error) as error:
            cause = error.strerror if isinstance(error, OSError) else str(error)
            raise StateRefused(
                f"state {path}: {cause}; expected this program's SQLite file, or none yet, in a folder this user can"
                " write. Give another --state or SERVE_STATE"
            ) from error
        failed.pop_all()
    return State(connection, secret)


def _given_key(key: str) -> bytes:
    if len(key.encode()) < KEY_BYTES_MIN:
        raise StateRefused(f"SERVE_HASH_KEY has {len(key.encode())} bytes; give at least {KEY_BYTES_MIN} random ones")
    return hashlib.sha256(key.encode()).digest()


def _key_file(path: Path) -> bytes:
    """The key beside the state; written whole under another name first, so that two starts agree on one."""
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
    found = path.read_bytes()
    if len(found) != KEY_BYTES:
        raise StateRefused(
            f"key file {path} holds {len(found)} bytes, expected {KEY_BYTES}; restore it, or remove it with its state"
        )
    return found


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, key: bytes) -> None:
    """Create the tables in one transaction when the file is empty; check that the hash key is theirs."""
    check = hmac.digest(key, b"state", hashlib.sha256)
    _choose_journal(connection, path)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_empty(connection):
            for statement in SCHEMA.values():
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('key_check', ?)", (check,))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        stored = connection.execute("SELECT content FROM meta WHERE name = 'key_check'").fetchone()
    except BaseException:  # also Ctrl-C must not leave half a schema; raised again
        connection.rollback()
        raise
    connection.commit()
    if stored is None or not hmac.compare_digest(bytes(stored[0]), check):
        raise StateRefused(
            f"state {path} was written with another hash key; restore SERVE_HASH_KEY or the key file beside it,"
            " or give another --state (sessions start anew)"
        )


def _is_empty(connection: sqlite3.Connection) -> bool:
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return bool(tables == 0) and _pragma(connection, "application_id") == 0


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    application = _pragma(connection, "application_id")
    if application != APPLICATION_ID:
        raise StateRefused(
            f"state {path} belongs to another program (application id {application:#x}, expected"
            f" {APPLICATION_ID:#x}); give another --state"
        )
    version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:
        raise StateRefused(
            f"state {path} has schema version {version}, expected {SCHEMA_VERSION}; serve it with the program that"
            " wrote it, or give another --state (sessions start anew)"
        )
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    if found != SCHEMA:
        odd = sorted(name for name in found.keys() | SCHEMA.keys() if found.get(name) != SCHEMA.get(name))
        raise StateRefused(f"state {path} differs from its schema in {', '.join(odd)}; give another --state")


def _choose_journal(connection: sqlite3.Connection, path: Path) -> None:
    """WAL where the filesystem can; a rollback journal on network storage, where shared memory does not work."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    for _ in range(JOURNAL_ATTEMPTS):
        if mode == "wal":
            break
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_READONLY:
                raise
            # Busy: another start is switching right now, and SQLite does not wait for that by itself.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                break
            time.sleep(0.1)
    if mode == "wal":
        # Survives kill -9 at any instant; only a power cut may forget the last moments.
        connection.execute("PRAGMA synchronous = NORMAL")
    else:
        log.warning("state %s: no write-ahead log on this filesystem, using journal mode %s", path, mode)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
