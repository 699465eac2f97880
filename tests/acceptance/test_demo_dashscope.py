"""`just demo-dashscope` ends when its server does not get ready."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from bench import demo_dashscope
from bench.emulator import emulator


def test_a_server_that_listens_and_never_answers_is_given_up_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def run(*_: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"]))
        return started[0]

    monkeypatch.setattr(demo_dashscope, "_run", run)
    monkeypatch.setattr(demo_dashscope, "READY_WITHIN_S", 1.0)
    with emulator() as service, socket.create_server(("127.0.0.1", 0)) as silent:
        exit_code = demo_dashscope._serve(service, silent.getsockname()[1], once=True)

    assert exit_code == 1
    assert started[0].returncode is not None
    assert started[0].returncode < 0
