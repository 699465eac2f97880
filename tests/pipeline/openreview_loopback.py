"""A small OpenReview on loopback: groups, login and notes of API v2 (/v2) and v1 (/v1), with faults on demand.

It keeps the rules the fetcher relies on, strict ones included: `limit` over 1,000 is refused, v2 counts only when
asked, an unknown group is 404, a venue's notes are only on the host of its version.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

VENUE = "ICML.cc/2026/Conference"
TOKEN = "token-of-the-loopback"
USERNAME, PASSWORD = "someone@example.org", "correct horse battery staple"


class Loopback:
    def __init__(self) -> None:
        self.groups: dict[str, dict[str, Any]] = {}
        self.notes: dict[str, list[dict[str, Any]]] = {"v2": [], "v1": []}
        self.login_required = False
        self.valid_tokens = {TOKEN}
        self.knows_after = True
        self.knows_offset = True
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.pages = 0
        self.logins = 0
        self.counted_extra = 0
        # (status, headers, body) or "cut" / "truncated", for the next answers of /notes that list a page
        self.faults: list[Any] = []
        # called with the number of pages listed so far, before each page
        self.before_page: Callable[[int], None] = lambda pages: None
        self.url = ""

    def environment(self, *, login: bool = False) -> dict[str, str]:
        bases = {"OPENREVIEW_API_BASEURL_V2": f"{self.url}/v2", "OPENREVIEW_API_BASEURL": f"{self.url}/v1"}
        return bases | ({"OPENREVIEW_USERNAME": USERNAME, "OPENREVIEW_PASSWORD": PASSWORD} if login else {})

    def found(self, api: str, query: dict[str, str]) -> list[dict[str, Any]]:
        def matches(note: dict[str, Any]) -> bool:
            for key, wanted in query.items():
                if key == "invitation":
                    has = note["invitations"] if api == "v2" else [note["invitation"]]
                    if wanted not in has:
                        return False
                elif key.startswith("content."):
                    value = note["content"].get(key.removeprefix("content."))
                    value = value.get("value") if isinstance(value, dict) else value
                    if value != wanted:
                        return False
            return True

        return sorted(filter(matches, self.notes[api]), key=lambda note: note["id"])


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, loopback: Loopback) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.loopback = loopback


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body leave together; two small packets cost 40 ms each time.
    wbufsize = -1

    @property
    def loopback(self) -> Any:
        return self.server.loopback  # type: ignore[attr-defined]

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        login = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.loopback.logins += 1
        if login["id"] == USERNAME and login["password"] == PASSWORD:
            self.answer(200, {"token": TOKEN, "user": {"profile": {"id": "~Some_One1"}}})
        else:
            self.answer(400, {"name": "InvalidLogin", "message": "Invalid username or password", "status": 400})

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        self.loopback.requests.append((parts.path, dict(query)))
        if not (self.loopback.login_required and self.token() not in self.loopback.valid_tokens):
            api, _, path = parts.path.lstrip("/").partition("/")
            if path == "groups" and api == "v2":
                return self.group(query["id"])
            if path == "notes" and api in self.loopback.notes:
                return self.page(api, query)
            return self.answer(404, {"name": "NotFoundError", "message": f"no route {parts.path}"})
        if self.token():
            return self.answer(401, {"name": "TokenExpiredError", "message": "Token has expired"})
        return self.answer(403, {"name": "ChallengeRequiredError", "message": "Challenge required"})

    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def group(self, group_id: str) -> None:
        if group_id in self.loopback.groups:
            return self.answer(200, {"groups": [self.loopback.groups[group_id]], "count": 1})
        return self.answer(404, {"name": "NotFoundError", "message": f"Group Not Found: {group_id}"})

    def page(self, api: str, query: dict[str, str]) -> None:
        limit = int(query.pop("limit", "1000"))
        if limit > 1000:
            return self.answer(400, {"name": "ValidationError", "message": "limit must be <= 1000"})
        listing = limit > 1
        if listing and self.loopback.faults and self.fault(self.loopback.faults.pop(0)):
            return None
        if listing:
            self.loopback.before_page(self.loopback.pages)
            self.loopback.pages += 1
        after, offset, count = query.pop("after", None), query.pop("offset", None), query.pop("count", None)
        query.pop("sort", None)
        notes = self.loopback.found(api, query)
        answer: dict[str, Any] = {}
        if api == "v1" or offset is not None or count == "true":
            answer["count"] = len(notes) + self.loopback.counted_extra
        if after is not None and self.loopback.knows_after:
            notes = [note for note in notes if note["id"] > after]
        if offset is not None and self.loopback.knows_offset:
            notes = notes[int(offset) :]
        return self.answer(200, {"notes": notes[:limit], **answer})

    def fault(self, fault: Any) -> bool:
        if fault is None:
            return False
        if fault == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b'{"notes": [')
            self.close_connection = True
        elif fault == "truncated":
            self.answer(200, b'{"notes": [{"id": "')
        else:
            status, headers, body = fault
            self.answer(status, body, headers)
        return True

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        # A client that was killed does not read its answer.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(content)


@contextmanager
def running(loopback: Loopback) -> Iterator[Loopback]:
    server = _Server(loopback)
    loopback.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield loopback
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def note_id(number: int) -> str:
    """Ten characters, case-sensitive, in no order of their numbers, as OpenReview's are."""
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    state, text = number * 2_654_435_761 % 2**32 + 2**33 * number, ""
    for _ in range(10):
        state, rest = divmod(state, 62)
        text += alphabet[rest]
    return text


def v2_note(number: int, *, venue: str = "ICML 2026 regular", venueid: str = VENUE, **content: Any) -> dict[str, Any]:
    paper_id = note_id(number)
    values = {
        "title": f"Paper {number} on the Rényi gap",
        "authors": [f"Ada {number}", "Fang DONG(董方)"],
        "authorids": [f"~Ada_{number}1", "~Fang_DONG1"],
        "keywords": ["learning", "gaps"],
        "abstract": f"We study gap {number} & its $\\ell_\\infty$ friends.",
        "primary_area": "deep_learning->large_language_models",
        "pdf": f"/pdf/{number:040x}.pdf",
        "venue": venue,
        "venueid": venueid,
        "paperhash": f"ada|paper_{number}",
        "_bibtex": "@inproceedings{...}",
    } | content
    return {
        "id": paper_id,
        "forum": paper_id,
        "number": number,
        "version": 2,
        "domain": VENUE,
        "license": "CC BY 4.0",
        "invitations": [f"{VENUE}/-/Submission", f"{VENUE}/-/Post_Submission"],
        "readers": ["everyone"],
        "signatures": [f"{VENUE}/Submission{number}/Authors"],
        "cdate": 1_769_052_070_527 + number,
        "tmdate": 1_779_052_070_527 + number,
        "content": {key: {"value": value} for key, value in values.items() if value is not ...},
    }


def v1_note(number: int, *, venue: str = "NeurIPS 2022 Accept", **content: Any) -> dict[str, Any]:
    """A blind submission of API v1: bare values, one invitation, and the bare venue even on a rejected paper."""
    paper_id = note_id(number)
    values = {
        "title": f"Older paper {number}",
        "authors": [f"Emmy {number}"],
        "authorids": [f"~Emmy_{number}1"],
        "keywords": ["rings"],
        "TL;DR": "",
        "abstract": f"On ring {number}.",
        "pdf": f"/pdf/{number:040x}.pdf",
        "venue": venue,
        "venueid": "NeurIPS.cc/2022/Conference",
    } | content
    return {
        "id": paper_id,
        "original": f"orig{number}",
        "forum": paper_id,
        "replyto": None,
        "number": number,
        "invitation": "NeurIPS.cc/2022/Conference/-/Blind_Submission",
        "tmdate": 1_669_052_070_527 + number,
        "content": {key: value for key, value in values.items() if value is not ...},
    }


def v2_group(venue_id: str = VENUE) -> dict[str, Any]:
    return {
        "id": venue_id,
        "domain": venue_id,
        "content": {
            "title": {"value": "Forty-Third International Conference on Machine Learning"},
            "subtitle": {"value": "ICML 2026"},
            "submission_id": {"value": f"{venue_id}/-/Submission"},
            "submission_venue_id": {"value": f"{venue_id}/Submission"},
        },
    }


def v1_group(venue_id: str) -> dict[str, Any]:
    return {"id": venue_id, "domain": None, "web": "// a script of the old site"}
