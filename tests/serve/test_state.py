"""The state database: refusals, transactions, keyed hashes, bounds."""

from __future__ import annotations

import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from serve.errors import StateFailed, StateRefused
from serve.state import SCHEMA, State, open_state


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "serve.db"


def test_a_new_state_has_wal_a_private_file_and_a_private_key(path):
    open_state(path, key=None).close()
    names = sorted(file.name for file in path.parent.iterdir())
    connection = sqlite3.connect(path)
    mode = connection.execute("PRAGMA journal_mode").fetchone()
    connection.close()

    assert mode == ("wal",)
    assert names == ["serve.db", "serve.db.key"]
    key = path.with_name("serve.db.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_second_opening_hashes_alike_and_another_key_does_not(path, tmp_path):
    first = open_state(path, key=None)
    again = open_state(path, key=None)
    other = open_state(tmp_path / "other.db", key="another key of 20+ bytes")

    assert first.keyed("client", "10.0.0.1") == again.keyed("client", "10.0.0.1")
    assert first.keyed("client", "10.0.0.1") != other.keyed("client", "10.0.0.1")
    assert first.keyed("client", "10.0.0.1") != first.keyed("session", "10.0.0.1")
    for state in (first, again, other):
        state.close()


def damaged(path: Path, damage: str) -> None:
    open_state(path, key=None).close()
    connection = sqlite3.connect(path)
    connection.execute(damage)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("PRAGMA user_version = 2", "schema version 2, expected 1"),
        ("PRAGMA application_id = 7", "another program"),
        ("ALTER TABLE session ADD COLUMN colour TEXT", "differs from its schema in session"),
        ("DROP TABLE seen", "differs from its schema in seen"),
    ],
)
def test_another_schema_is_refused_by_name(path, damage, message):
    damaged(path, damage)

    with pytest.raises(StateRefused, match=message) as refused:
        open_state(path, key=None)

    assert refused.value.exit_code == 6


def test_a_database_of_another_program_is_refused_and_left_as_it_was(tmp_path):
    path = tmp_path / "theirs.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(StateRefused, match="another program"):
        open_state(path, key=None)

    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database\n" * 500)

    with pytest.raises(StateRefused, match="not a database"):
        open_state(path, key=None)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(StateRefused):
        open_state(tmp_path, key=None)


def test_another_hash_key_is_refused(path):
    open_state(path, key=None).close()

    with pytest.raises(StateRefused, match="another hash key"):
        open_state(path, key="k" * 32)


def test_a_short_hash_key_and_a_damaged_key_file_are_refused(path):
    with pytest.raises(StateRefused, match="at least 16"):
        open_state(path, key="short")

    open_state(path, key=None).close()
    path.with_name("serve.db.key").write_bytes(b"cut")
    with pytest.raises(StateRefused, match="holds 3 bytes, expected 32"):
        open_state(path, key=None)


def test_parallel_first_starts_agree_on_one_key(path):
    opened: list[State] = []
    threads = [threading.Thread(target=lambda: opened.append(open_state(path, key=None))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(opened) == 8
    assert len({state.keyed("client", "a") for state in opened}) == 1
    for state in opened:
        state.close()


def test_a_failed_transaction_stores_nothing(path):
    state = open_state(path, key=None)

    with pytest.raises(StateFailed), state.transaction() as sql:
        sql.executemany("INSERT INTO meta VALUES ('a', ?)", [(b"1",), (b"2",)])

    with state.transaction() as sql:
        assert sql.execute("SELECT count(*) FROM meta WHERE name = 'a'").fetchone() == (0,)
    state.close()


def test_a_commit_that_fails_stores_nothing_and_the_next_transaction_works(path):
    state = open_state(path, key=None)
    state._connection.execute("PRAGMA journal_mode = DELETE")  # as on network storage: there a reader blocks a commit
    state._connection.execute("PRAGMA busy_timeout = 0")

    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM meta").fetchall()
        with pytest.raises(StateFailed), state.transaction() as sql:
            sql.execute("INSERT INTO meta VALUES ('a', ?)", (b"1",))

    with state.transaction() as sql:
        assert sql.execute("SELECT count(*) FROM meta WHERE name = 'a'").fetchone() == (0,)
    state.close()


def test_query_vectors_are_bounded_and_the_longest_unused_goes(path):
    state = open_state(path, key=None)
    for name in (b"a", b"b", b"c"):
        state.keep_vector(name, name * 4, rows_max=3)
    assert state.vector(b"a", rows_max=3) == b"aaaa"

    state.keep_vector(b"d", b"dddd", rows_max=3)

    assert state.vector(b"b", rows_max=3) is None
    assert [state.vector(name, rows_max=3) for name in (b"a", b"c", b"d")] == [b"aaaa", b"cccc", b"dddd"]
    state.close()


def test_a_popular_query_vector_is_read_without_a_write_and_still_stays(path):
    state = open_state(path, key=None)
    for name in (b"a", b"b", b"c", b"d"):
        state.keep_vector(name, name * 4, rows_max=4)
    with state.transaction() as sql:
        before = sql.execute("SELECT * FROM query_vector").fetchall()

    assert state.vector(b"c", rows_max=4) == b"cccc"
    with state.transaction() as sql:
        assert sql.execute("SELECT * FROM query_vector").fetchall() == before

    assert state.vector(b"a", rows_max=4) == b"aaaa"
    state.keep_vector(b"e", b"eeee", rows_max=4)
    assert state.vector(b"a", rows_max=4) == b"aaaa"
    state.close()


def test_the_tables_are_strict_and_complete():
    assert {"meta", "session", "seen", "client", "query_vector"} <= SCHEMA.keys()
    assert all("STRICT" in sql for sql in SCHEMA.values() if sql.startswith("CREATE TABLE"))
