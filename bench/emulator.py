"""DashScope on loopback: its embedding call, its minute quotas, its faults; a record of every request.

    python -m bench.emulator --port 8765 --requests-per-minute 600 --tokens-per-minute 300000

Quotas are enforced in every sliding window, as the strictest reading of the documentation has it, and optionally
in every second. Vectors are signed feature hashes of the words: texts that share words are near each other.
`GET /emulator/report` tells peak usage in any window and texts bought more than once; a test holds the object.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from bench.emulated_answer import Mangled, count_tokens, dimension_of, embeddings, texts_of
from bench.emulated_quota import Meter, Quota

PATH = "/api/v1/services/embeddings/text-embedding/text-embedding"
BATCH_MAX = {"text-embedding-v1": 25, "text-embedding-v2": 25}
BATCH_MAX_OTHERS = 10
TEXT_TOKENS_MAX = 8_192
DIMENSIONS = (64, 128, 256, 512, 768, 1_024, 1_536, 2_048)
Drip = Literal["status", "headers", "body", "chunks"]
DRIP_S = 0.1
AS_COUNTED = "as counted"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
DRIPS: dict[Drip, tuple[bytes, bytes]] = {
    "status": (b"HTTP/1.1 200 ", b"O"),
    "headers": (_HEAD + b"X-Slow: ", b"a"),
    "body": (_HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
    "chunks": (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}
# A text with this word is refused by content inspection.
UNSEEMLY = "unseemly-for-inspection"


@dataclass(frozen=True)
class Fault:
    """What happens instead of, or to, one answer.

    `drip`: from there on one byte every `DRIP_S`, until the client goes away. `usage`: what is reported in place of
    what was counted. `counts`: whether the quota is charged all the same.
    """

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    mangle: Mangled | None = None
    delay_s: float = 0.0
    drop: Literal["before", "after"] | None = None
    drip: Drip | None = None
    usage: Any = AS_COUNTED
    counts: bool = True


def refusal(status: int, code: str, message: str = "refused by script", **headers: str) -> Fault:
    """An error as the service words it; headers by name with `_` for `-`."""
    body = json.dumps({"code": code, "message": message, "request_id": "emulated"}).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Fault(status, body, names, counts=status != 429)


@dataclass(frozen=True)
class Entry:
    """One request as received: no key, no text, only hashes of the texts."""

    at: float
    status: int
    model: str
    text_type: str
    dimension: int
    tokens: int
    texts: tuple[str, ...]


class Emulator:
    """The service on a free port of loopback, until `stop`.

    Attributes:
        entries: every request so far, with the status it got.
        latency_s: how long an answer takes; the request is counted at a random instant of that.
    """

    def __init__(
        self, quota: Quota | None = None, *, port: int = 0, latency_s: float = 0.0, api_key: str | None = None
    ) -> None:
        self.quota = quota or Quota()
        self.latency_s = latency_s
        self.entries: list[Entry] = []
        self.meter = Meter(self.quota)
        self._api_key = api_key
        self._faults: deque[Fault] = deque()
        self._standing: Fault | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._draw = random.Random(5)
        self._server = _Server(("127.0.0.1", port), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def base_url(self) -> str:
        """What the SDK is given."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/api/v1"

    @property
    def refused(self) -> int:
        """Requests that were above a limit."""
        with self._lock:
            return sum(entry.status == 429 for entry in self.entries)

    def start(self) -> Emulator:
        """Answer from now on."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End every connection and release the port."""
        self._stopped.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def will(self, *faults: Fault) -> None:
        """The next requests meet these, first in first out."""
        with self._lock:
            self._faults.extend(faults)

    def always(self, fault: Fault | None) -> None:
        """Every request meets this one until told otherwise."""
        with self._lock:
            self._standing = fault

    def bought(self) -> Counter[str]:
        """How often each text (its sha256) was embedded and paid for."""
        with self._lock:
            return Counter(text for entry in self.entries if entry.status == 200 for text in entry.texts)

    def report(self) -> dict[str, Any]:
        """Peak usage in any window beside the limits, refusals, and texts bought more than once."""
        bought = self.bought()
        with self._lock:
            requests, tokens = self.meter.peak()
            minutes = self.meter.minutes()
            return {
                "requests": len(self.entries),
                "tokens": sum(tokens for _, tokens in self.meter.counted),
                "peak": {"requests": requests, "tokens": tokens},
                "peak_second": self.meter.peak(self.quota.window_s / 60)[0],
                "limits": dataclasses.asdict(self.quota),
                "minutes": minutes,
                "statuses": dict(Counter(str(entry.status) for entry in self.entries)),
                "texts": len(bought),
                "texts_bought_again": sum(times - 1 for times in bought.values()),
            }

    def drip(self, connection: socket.socket, until: Drip) -> None:
        """The beginning of an answer at once, then a byte now and then for as long as anybody reads."""
        begun, bytes_then = DRIPS[until]
        with contextlib.suppress(OSError):
            connection.sendall(begun)
            while not self._stopped.wait(DRIP_S):
                connection.sendall(bytes_then)

    def answer(self, asked: dict[str, Any], authorization: str) -> tuple[int, bytes, dict[str, str]] | Drip | None:
        """Status, body and headers for one request; where it drips from; None to break the connection."""
        with self._lock:
            fault = self._faults.popleft() if self._faults else (self._standing or Fault())
        texts = texts_of(asked)
        tokens = sum(map(count_tokens, texts))
        if fault.drop == "before":
            return self._record(asked, tokens, None)
        before = self.latency_s * self._draw.random()
        self._stopped.wait(before)
        problem = self._refuse(asked, texts, authorization) if fault.body is None else None
        over = None
        if problem is None and fault.counts:
            with self._lock:
                over = self.meter.admit(time.monotonic(), tokens)
        self._stopped.wait(self.latency_s - before + fault.delay_s)
        if over:
            problem = 429, over, "Requests rate limit exceeded, please try again later."
        if fault.drop == "after":
            return self._record(asked, tokens, None)
        if fault.drip:
            self._record(asked, tokens, None)
            return fault.drip
        if problem:
            status, code, message = problem
            body = json.dumps({"code": code, "message": message, "request_id": "emulated"}).encode()
            return self._record(asked, tokens, (status, body, {}))
        usage = {"total_tokens": tokens} if fault.usage == AS_COUNTED else fault.usage
        body = fault.body if fault.body is not None else embeddings(asked, texts, usage, fault.mangle)
        return self._record(asked, tokens, (fault.status, body, fault.headers))

    def _refuse(self, asked: dict[str, Any], texts: list[str], authorization: str) -> tuple[int, str, str] | None:
        """What the service refuses by itself: status, code, message."""
        key, model = authorization.removeprefix("Bearer "), str(asked.get("model"))
        batch_max = BATCH_MAX.get(model, BATCH_MAX_OTHERS)
        parameter = 400, "InvalidParameter"
        checks = [
            (not key or key != (self._api_key or key), (401, "InvalidApiKey", "Invalid API-key provided.")),
            (not model.startswith("text-embedding-v"), (404, "ModelNotFound", f"Model can not be found: {model}")),
            (not texts, (*parameter, "input.texts is empty")),
            (not all(text.strip() for text in texts), (*parameter, "input.texts should not hold an empty text")),
            (len(texts) > batch_max, (*parameter, f"batch size should not be larger than {batch_max}.")),
            (
                any(count_tokens(text) > TEXT_TOKENS_MAX for text in texts),
                (*parameter, f"Range of input length should be [1, {TEXT_TOKENS_MAX}]"),
            ),
            (dimension_of(asked) not in DIMENSIONS, (*parameter, "Value error, dimension is invalid")),
            (
                any(UNSEEMLY in text for text in texts),
                (400, "DataInspectionFailed", "Input data may contain inappropriate content."),
            ),
        ]
        return next((problem for failed, problem in checks if failed), None)

    def _record(
        self, asked: dict[str, Any], tokens: int, answered: tuple[int, bytes, dict[str, str]] | None
    ) -> tuple[int, bytes, dict[str, str]] | None:
        texts = tuple(hashlib.sha256(text.encode()).hexdigest() for text in texts_of(asked))
        text_type = str(asked.get("parameters", {}).get("text_type", ""))
        status = answered[0] if answered else 0
        entry = Entry(time.monotonic(), status, str(asked.get("model")), text_type, dimension_of(asked), tokens, texts)
        with self._lock:
            self.entries.append(entry)
        return answered


@contextlib.contextmanager
def emulator(quota: Quota | None = None, **options: Any) -> Iterator[Emulator]:
    """A running emulator for one `with`."""
    running = Emulator(quota, **options).start()
    try:
        yield running
    finally:
        running.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], service: Emulator) -> None:
        super().__init__(address, _Handler)
        self.service = service
        self._open: set[socket.socket] = set()
        self._abrupt: set[socket.socket] = set()

    def reset(self, connection: socket.socket) -> None:
        """Let the client see a reset in place of an answer: a close that lingers for no time sends one."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._abrupt.add(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        if request in self._abrupt:
            self._abrupt.discard(request)
            request.close()
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_GET(self) -> None:
        if self.path != "/emulator/report":
            self._write(404, b"{}", {})
            return
        self._write(200, json.dumps(self.server.service.report()).encode(), {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/emulator/always":
            asked = json.loads(body)
            self.server.service.always(Fault(**asked) if asked else None)
            self._write(200, b"{}", {})
            return
        if self.path != PATH:
            self._write(404, b'{"code":"InvalidURL","message":"url error"}', {})
            return
        answered = self.server.service.answer(json.loads(body), self.headers.get("Authorization", ""))
        if answered is None:
            self.server.reset(self.connection)
            self.close_connection = True
            return
        if isinstance(answered, str):
            self.server.service.drip(self.connection, answered)
            self.close_connection = True
            return
        self._write(*answered)

    def _write(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """The record is kept in `entries`; nothing is printed."""


def main() -> None:
    """Serve until interrupted; then print the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.emulator", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0: any free one, printed on the first line")
    parser.add_argument("--requests-per-minute", type=int, default=600)
    parser.add_argument("--tokens-per-minute", type=int, default=300_000)
    parser.add_argument("--window", type=float, default=60.0, help="seconds of a minute")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds an answer takes")
    parser.add_argument("--per-second", action="store_true", help="also enforce a sixtieth in every second")
    flags = parser.parse_args()
    quota = Quota(flags.requests_per_minute, flags.tokens_per_minute, flags.window, flags.per_second)
    with emulator(quota, port=flags.port, latency_s=flags.latency) as running:
        print(running.base_url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        print(json.dumps(running.report(), indent=1), flush=True)


if __name__ == "__main__":
    main()
