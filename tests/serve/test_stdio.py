"""The end of a stdio server: whatever closing meets, the program ends, with its exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.programs import REPOSITORY

PROGRAM = """
import asyncio, signal, threading
from serve import stdio

lock = threading.Lock()

def close_waits_for_the_step_that_was_interrupted():
    with lock:
        print("closed", flush=True)

def close_fails():
    raise RuntimeError("closing failed")

def close_never_ends():
    threading.Event().wait()

async def serve():
    stdio.end_on_signals({close}, lambda number: 128 + number)
    with lock:
        signal.raise_signal(signal.SIGTERM)
        print("step ended", flush=True)
    await asyncio.sleep(60)

stdio.CLOSE_S = 2.0
asyncio.run(serve())
"""


@pytest.mark.parametrize(
    ("close", "says"),
    [
        ("close_waits_for_the_step_that_was_interrupted", "step ended\nclosed\n"),
        ("close_fails", "step ended\n"),
        ("close_never_ends", "step ended\n"),
    ],
)
def test_a_signal_ends_the_program_whatever_closing_meets(close, says):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{close}", close)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (143, says)
    assert ("closing failed" in done.stderr) == (close == "close_fails")
