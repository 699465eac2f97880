"""The only speaker to OpenReview's HTTP API, v2 and v1: login, pace, retries, and its failures as ours.

What is relied on (read in openreview-py 2.9.1 and in public notes of 2026):
- `GET /notes` takes `sort=id`, `limit` (at most 1,000), `after=ID` or `offset=N`, and gives `{"notes": [...]}`; v2 adds
  `count` when asked with `count=true` or with an `offset`, v1 always.
- `POST /login` with id and password gives a token that both versions accept.
- Requests without a login are mostly turned away: 403 `ChallengeRequiredError`, or 200 with an HTML page.
- A busy server answers 429 with `Retry-After` or `ratelimit-reset` (seconds from now).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import requests
import tenacity

from manifests.retry_after import asked_wait_s
from manifests.visible import visible
from pipeline.errors import SourceBusy, SourceError, SourceRefused
from pipeline.fetch.openreview_access import Access

Api = Literal["v2", "v1"]

USER_AGENT = "icml-paper-search (python -m pipeline fetch openreview)"

CONNECT_S, READ_S, ANSWER_S = 10.0, 60.0, 300.0
# A page of 1,000 notes with abstracts is about 5 MB.
ANSWER_BYTES_MAX = 128 << 20
MESSAGE_CHARS_MAX = 300
BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


@dataclass(frozen=True)
class Limits:
    """How politely and how long: requests a minute, tries of one request, the longest single wait (seconds)."""

    requests_per_minute: float = 60
    attempts: int = 6
    wait_s_max: float = 300


class Page(NamedTuple):
    """One answer of `/notes`; `total` is what the API counts for the query, None when it did not say."""

    notes: list[dict[str, Any]]
    total: int | None


class OpenReview:
    """A session with OpenReview. Logs in at the first request when the access has a login.

    Raises (every method):
        SourceBusy: still busy after the attempts, or it asks to wait longer than `wait_s_max`.
        SourceRefused: login, access, base URL, or an answer that is not the API's.
    """

    def __init__(
        self,
        access: Access,
        limits: Limits,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.access = access
        self.requests = 0
        self._limits = limits
        self._sleep = sleep
        self._clock = clock
        self._waiting = waiting
        self._session = requests.Session()
        self._session.headers.update({"User-Agent": USER_AGENT, "Accept": "application/json"})
        # Also keeps `requests` from putting a login of ~/.netrc in the place of ours.
        self._session.auth = self._sign
        self._token: str | None = None
        self._next_at = 0.0

    def group(self, venue_id: str) -> dict[str, Any] | None:
        """The group of a venue, None when there is none or it is not public."""
        try:
            groups = self._get("v2", "/groups", {"id": venue_id}).get("groups")
        except SourceRefused as refusal:
            if refusal.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        first = groups[0] if isinstance(groups, list) and groups else None
        return first if isinstance(first, dict) else None

    def notes(self, api: Api, query: Mapping[str, str]) -> Page:
        """One page of notes; a query that names an unknown invitation gives none."""
        try:
            answer = self._get(api, "/notes", query)
        except SourceRefused as refusal:
            if refusal.status == HTTPStatus.NOT_FOUND:
                return Page([], 0)
            raise
        notes, count = answer.get("notes"), answer.get("count")
        if not isinstance(notes, list) or not all(
            isinstance(note, dict) and isinstance(note.get("id"), str) for note in notes
        ):
            raise SourceRefused(
                f"{self.base_url(api)}/notes answered {str(answer)[:80]!r}; expected a list of notes, each with an id: "
                "check the base URL"
            )
        return Page(notes, count if isinstance(count, int) and not isinstance(count, bool) else None)

    def count(self, api: Api, query: Mapping[str, str]) -> int:
        """How many notes the API counts for a query."""
        total = self.notes(api, {**query, "limit": "1", "offset": "0", "count": "true"}).total
        if total is None:
            raise SourceRefused(
                f"{self.base_url(api)}/notes gave no count for {dict(query)}; without it nobody can tell whether "
                "notes are missing: check the base URL"
            )
        return total

    def base_url(self, api: Api) -> str:
        """The base URL of one version of the API."""
        base = self.access.v2 if api == "v2" else self.access.v1
        if base is None:
            raise SourceRefused(
                "this venue is asked of API v1, whose base URL is not known: set OPENREVIEW_API_BASEURL (v1) too"
            )
        return base

    def _get(self, api: Api, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        url = self.base_url(api) + path
        if self.access.password and not self._token:
            self._token = self._log_in()
        try:
            return self._patiently(lambda: self._ask("GET", url, params=dict(query)))
        except SourceRefused as refusal:
            if refusal.status != HTTPStatus.UNAUTHORIZED or not self._token:
                raise
        # A token lives for an hour; a long wait outlives it.
        self._token = None
        self._token = self._log_in()
        return self._patiently(lambda: self._ask("GET", url, params=dict(query)))

    def _log_in(self) -> str:
        login = {"id": self.access.username, "password": self.access.password}
        url = self.access.v2 + "/login"
        try:
            answer = self._patiently(lambda: self._ask("POST", url, json=login))
        except SourceRefused as refusal:
            if refusal.status is None or refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            raise SourceRefused(
                "OpenReview refused the login of OPENREVIEW_USERNAME and OPENREVIEW_PASSWORD: "
                + self._unsaid(str(refusal)),
                status=HTTPStatus.FORBIDDEN,
            ) from None
        token = answer.get("token")
        if isinstance(token, str) and token:
            return token
        if answer.get("mfaPending"):
            raise SourceRefused("this OpenReview account asks for a second factor; use an account without one")
        raise SourceRefused(f"{url} gave no token; check the base URL")

    def _unsaid(self, text: str) -> str:
        return text.replace(self.access.password, "[password]") if self.access.password else text

    def _patiently(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._worth_waiting),
            wait=self._wait_s,
            stop=tenacity.stop_after_attempt(self._limits.attempts),
            sleep=self._sleep,
            before_sleep=self._tell,
            reraise=True,
        )
        try:
            return retrying(ask)
        except SourceBusy as busy:
            raise SourceBusy(
                f"{busy}; {self._given_up(busy, retrying)}. Pages that came are kept: the same command goes on",
                retry_after_s=busy.retry_after_s,
            ) from busy

    def _given_up(self, busy: SourceBusy, retrying: tenacity.Retrying) -> str:
        if not self._worth_waiting(busy):
            longest = _duration(self._limits.wait_s_max)
            return f"it asks to wait {_duration(busy.retry_after_s or 0)} (here at most {longest} are waited)"
        return f"tried {retrying.statistics['attempt_number']} times"

    def _worth_waiting(self, error: BaseException) -> bool:
        return isinstance(error, SourceBusy) and (error.retry_after_s or 0) <= self._limits.wait_s_max

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, SourceBusy) and error.retry_after_s is not None:
            return error.retry_after_s
        jittered = tenacity.wait_exponential_jitter(initial=1, max=60)(state)
        return min(jittered, self._limits.wait_s_max)

    def _tell(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        wait_s = state.next_action.sleep if state.next_action else 0.0
        self._waiting(f"waiting {wait_s:.0f} s ({error})")

    def _ask(self, method: str, url: str, **arguments: Any) -> dict[str, Any]:
        self._pace()
        self.requests += 1
        try:
            response = self._session.request(
                method, url, timeout=(CONNECT_S, READ_S), stream=True, allow_redirects=False, **arguments
            )
            with response:
                body = self._body(response)
        except requests.exceptions.SSLError as error:
            raise SourceRefused(f"{_host(url)}: no TLS connection ({_reason(error)})") from error
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
            raise SourceRefused(f"{url!r} is no URL that can be asked ({_reason(error)})") from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise SourceBusy(f"{_host(url)}: no whole answer ({_reason(error)})") from error
        return self._understood(response, body, url)

    def _pace(self) -> None:
        now = self._clock()
        if now < self._next_at:
            self._sleep(self._next_at - now)
        self._next_at = max(now, self._next_at) + 60 / self._limits.requests_per_minute

    def _body(self, response: requests.Response) -> bytes:
        body, deadline = bytearray(), self._clock() + ANSWER_S
        for piece in response.iter_content(1 << 16):
            body += piece
            if len(body) > ANSWER_BYTES_MAX:
                raise SourceRefused(
                    f"{_host(response.url)} answers more than {ANSWER_BYTES_MAX:,} bytes to one request"
                )
            if self._clock() > deadline:
                raise SourceBusy(f"{_host(response.url)}: the answer took longer than {ANSWER_S:.0f} s")
        return bytes(body)

    def _understood(self, response: requests.Response, body: bytes, url: str) -> dict[str, Any]:
        status, subject = response.status_code, f"{_host(url)}: HTTP {response.status_code}"
        if status in BUSY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise SourceBusy(f"{subject} {_message(body)}".rstrip(), retry_after_s=_retry_after_s(response.headers))
        html = "html" in response.headers.get("Content-Type", "").lower() or body.lstrip()[:1] == b"<"
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN} or (status == HTTPStatus.OK and html):
            raise self._no_access(status, "a web page that checks the browser" if html else _message(body), url)
        if status != HTTPStatus.OK:
            raise SourceRefused(f"{subject} {_message(body)}; check the base URL and the venue id", status=status)
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise SourceBusy(f"{_host(url)}: the answer of {len(body):,} bytes is not whole JSON ({error})") from error
        if not isinstance(answer, dict):
            raise SourceRefused(
                f"{_host(url)} answered {str(answer)[:80]!r}; expected a JSON object: check the base URL"
            )
        return answer

    def _no_access(self, status: int, message: str, url: str) -> SourceError:
        remedy = (
            "the account has no access to this"
            if self.access.password
            else "OpenReview turns away requests without a login: set OPENREVIEW_USERNAME and OPENREVIEW_PASSWORD"
        )
        return SourceRefused(f"{_host(url)}: HTTP {status} {message}; {remedy}", status=status)

    def _sign(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.netloc}{parts.path}"


def _reason(error: Exception) -> str:
    return visible(str(error))[:MESSAGE_CHARS_MAX] or type(error).__name__


def _message(body: bytes) -> str:
    """What an error answer says, in one bounded line."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        text = " ".join(str(answer[key]) for key in ("name", "message") if answer.get(key))
    else:
        text = body.decode("utf-8", "replace")
    return visible(text)[:MESSAGE_CHARS_MAX]


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait: `Retry-After`, else `ratelimit-reset`; None when neither can be read."""
    asked = (asked_wait_s(headers.get(name, "")) for name in ("Retry-After", "ratelimit-reset"))
    return next((seconds for seconds in asked if seconds is not None), None)


def _duration(seconds: float) -> str:
    """`86400` as `24 h`, `301` as `5 min 1 s`: whole seconds, without parts that are nothing."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    parts = (minutes // 60, "h"), (minutes % 60, "min"), (rest, "s")
    return " ".join(f"{amount} {unit}" for amount, unit in parts if amount) or "0 s"
