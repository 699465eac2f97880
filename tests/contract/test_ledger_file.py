"""The ledger's file: private, its own, and shared by programs that are killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manifests.errors import ForeignDatabase, QuotaExhausted
from tests.contract.ledger_stand import Clock, Provider, open_ledger

REPO = Path(__file__).resolve().parents[2]


def test_the_file_is_private(tmp_path):
    open_ledger(tmp_path / "deep" / "ledger.db", Clock())

    assert stat.S_IMODE((tmp_path / "deep" / "ledger.db").stat().st_mode) == 0o600


def test_a_foreign_database_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE cats (name TEXT)")
    db.close()
    before = path.read_bytes()

    with pytest.raises(ForeignDatabase, match="--ledger") as caught:
        open_ledger(path, Clock())

    assert caught.value.exit_code == 6
    assert path.read_bytes() == before


def test_a_ledger_of_another_version_is_refused(tmp_path):
    path = tmp_path / "ledger.db"
    open_ledger(path, Clock()).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()

    with pytest.raises(ForeignDatabase, match="version 99"):
        open_ledger(path, Clock())


@pytest.mark.parametrize("damage", ["garbage", "folder"])
def test_a_file_that_is_no_database_is_refused(tmp_path, damage):
    path = tmp_path / "ledger.db"
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"no database at all" * 1_000)

    with pytest.raises(ForeignDatabase):
        open_ledger(path, Clock())


def test_nothing_is_sent_when_the_ledger_cannot_be_written(tmp_path):
    ledger = open_ledger(tmp_path / "ledger.db", Clock())
    ledger.reserve(10, timeout_s=0)
    ledger._db.execute("PRAGMA query_only = 1")

    with pytest.raises(QuotaExhausted, match="cannot be written"):
        ledger.reserve(10, timeout_s=100)


def test_an_answer_that_cannot_be_recorded_does_not_lose_the_vectors(tmp_path, caplog):
    clock = Clock()
    ledger = open_ledger(tmp_path / "ledger.db", clock)
    reservation = ledger.reserve(10, timeout_s=0)
    ledger._db.execute("PRAGMA query_only = 1")

    ledger.settle(reservation, tokens=10)

    assert "could not be recorded" in caplog.text
    ledger._db.execute("PRAGMA query_only = 0")
    clock.now += 100.0
    assert ledger.usage().requests == 1


PROGRAM = """
import random, sys, threading, time
from pathlib import Path
from manifests.ledger import Ledger, Limits, machine_clock

path, out, seed, window = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
ledger = Ledger(Path(path), "a|b", Limits(30, 6_000), window_s=window, in_flight_s=1.0)
draw = random.Random(seed)

def work():
    while True:
        estimate = draw.randint(50, 400)
        reservation = ledger.reserve(estimate, timeout_s=100)
        sent = machine_clock()
        with open(out, "a") as log:  # one write: whole even if killed right after
            log.write(f"{sent} {estimate}\\n")
        time.sleep(draw.uniform(0.01, 0.1))
        ledger.settle(reservation, tokens=estimate)

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(60)
"""


@pytest.mark.slow
def test_three_programs_killed_at_random_stay_under_the_limits_together(tmp_path):
    window_s, draw = 2.0, random.Random(11)
    log = tmp_path / "sent"

    def start(seed: int) -> subprocess.Popen[bytes]:
        arguments = [str(tmp_path / "ledger.db"), str(log), str(seed), str(window_s)]
        with (tmp_path / "complaints").open("ab") as complaints:
            return subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments],
                env={**os.environ, "PYTHONPATH": str(REPO)},
                stderr=complaints,
            )

    programs = [start(seed) for seed in range(3)]
    try:
        for turn in range(8):
            time.sleep(draw.uniform(0.8, 1.6))
            victim = programs[turn % 3]
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            programs[turn % 3] = start(10 + turn)
        time.sleep(2.0)
    finally:
        for program in programs:
            program.kill()
            program.wait()

    provider = Provider()
    for line in log.read_text().splitlines():
        sent, tokens = line.split()
        provider.counted.append((float(sent), int(tokens)))
    assert (tmp_path / "complaints").read_text() == ""
    assert len(provider.counted) > 60
    assert provider.peak(window_s)[0] <= 30
    assert provider.peak(window_s)[1] <= 6_000
