"""The adapter through the real SDK against the emulated service: a row of the fault table a test."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from typing import Any, get_args

import numpy as np
import pytest

from bench.emulated_quota import Quota
from bench.emulator import UNSEEMLY, Drip, Fault, emulator, refusal
from manifests.embedding.dashscope import CONNECT_TIMEOUT_S, DashScopeEmbedder, dashscope_spec
from manifests.errors import InputRefused, ProviderBusy, ProviderRefused, QuotaExhausted, TextRefused
from manifests.ledger import Ledger, Limits
from tests.contract.dashscope_stand import KEY, TEXTS, opened

BILLING = "Your account is in arrears: access denied, please pay your overdue bill and top up."


def test_documents_and_queries_ask_for_their_own_text_type(service, embedder):
    documents = embedder.embed_documents(TEXTS)
    query = embedder.embed_query("graphs", timeout_s=3)

    assert (documents.shape, documents.dtype, query.shape) == ((3, 1024), np.float32, (1024,))
    assert int(np.argmax(documents @ query)) == 0
    assert [entry.text_type for entry in service.entries] == ["document", "query"]


def test_usage_reported_by_the_service_is_what_is_counted(service, embedder):
    embedder.embed_documents(TEXTS)

    usage = embedder.ledger.usage()
    assert (usage.requests, usage.tokens) == (1, service.report()["tokens"])
    assert embedder.tokens_spent == usage.tokens
    assert embedder.usage_note() == f"1/100,000 requests, {usage.tokens}/100,000,000 tokens a minute"


ABSURD_USAGES: list[Any] = [
    *({"total_tokens": tokens} for tokens in (10**12, 2**63, 10**300, 2_000, 2, 0, -5, 27.0, "27", True, None, [27])),
    {},
    None,
    "27",
    [],
]


@pytest.mark.parametrize("usage", ABSURD_USAGES, ids=str)
def test_a_usage_that_cannot_be_is_counted_as_estimated_and_the_vectors_are_kept(service, embedder, caplog, usage):
    service.will(Fault(usage=usage))

    assert embedder.embed_documents(TEXTS).shape == (3, 1024)

    assert 3 <= embedder.ledger.usage().tokens == embedder.tokens_spent <= 100
    assert caplog.text.count("usage") == 1


@pytest.mark.parametrize("tokens", [10**12, 2**63, 50_000, 0])
def test_an_absurd_usage_delays_nobody(service, tmp_path, tokens):
    embedder = opened(service, tmp_path, limits=Limits(6_000, 20_000))
    service.will(Fault(usage={"total_tokens": tokens}), Fault(usage={"total_tokens": tokens}))
    embedder.embed_documents(TEXTS)
    embedder.embed_query("graphs", timeout_s=2)
    started = time.monotonic()

    again = opened(service, tmp_path, limits=Limits(6_000, 20_000))
    for number in range(5):
        again.embed_query(f"query {number}", timeout_s=2)
        again.embed_documents([f"paper {number}"])

    assert time.monotonic() - started < 2


BUSY = [
    ("429", refusal(429, "Throttling.RateQuota"), "busy"),
    ("429-unknown-code", refusal(429, "Whatever"), "busy"),
    ("429-worded-as-billing", refusal(429, "Throttling.AllocationQuota", BILLING), "busy"),
    ("throttling-under-400", refusal(400, "Throttling", BILLING), "busy"),
    ("408", refusal(408, "RequestTimeOut"), "busy"),
    ("500", refusal(500, "InternalError.Algo"), "busy"),
    ("500-null", Fault(500, b"null"), "busy"),
    ("502-html", Fault(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"}), "busy"),
    ("503", refusal(503, "ServiceUnavailable"), "busy"),
    ("truncated-json", Fault(200, b'{"output": {"embeddings": [{"text_index": 0, "embe'), "busy"),
    ("html", Fault(200, b"<html></html>", {"Content-Type": "text/html"}), "busy"),
    ("null", Fault(200, b"null"), "busy"),
    ("list", Fault(200, b"[]"), "busy"),
    ("number", Fault(200, b"17"), "busy"),
    ("empty", Fault(200, b""), "busy"),
    ("business-error-as-200", Fault(200, b'{"code": "Arrearage", "message": "pay"}'), "busy"),
    ("short-batch", Fault(mangle="short"), "busy"),
    ("duplicate-index", Fault(mangle="duplicate_index"), "busy"),
    ("missing-index", Fault(mangle="missing_index"), "busy"),
    ("nan", Fault(mangle="nan"), "busy"),
    ("infinity", Fault(mangle="infinity"), "busy"),
    ("zero", Fault(mangle="zero"), "busy"),
    ("wrong-dimension", Fault(mangle="dimension"), "busy"),
    ("text-for-numbers", Fault(mangle="text"), "busy"),
    ("true-for-numbers", Fault(mangle="true"), "busy"),
    ("null-for-numbers", Fault(mangle="null"), "busy"),
    ("lists-for-numbers", Fault(mangle="list"), "busy"),
    ("beyond-float32", Fault(mangle="too_large"), "busy"),
    ("beyond-float64", Fault(mangle="huge"), "busy"),
    ("norm-underflows", Fault(mangle="norm_underflows"), "busy"),
    ("norm-overflows", Fault(mangle="norm_overflows"), "busy"),
    ("a-number-of-5000-digits", Fault(200, b'{"output": ' + b"9" * 5_000 + b"}"), "busy"),
    ("not-utf-8", Fault(200, b'{"output": "\xff"}'), "busy"),
    ("lone-surrogate", Fault(200, b'{"output": "\\ud800", "code": "\\ud800", "message": "\\ud800"}'), "busy"),
    ("deep", Fault(200, b"[" * 200_000), "busy"),
    ("500-lone-surrogate", Fault(500, b'{"code": "\\ud800", "message": "\\ud800"}'), "busy"),
    ("500-terminal-codes", Fault(500, b'{"code": "\\u001b[2J", "message": "\\u001b[2J\\u202e\\n"}'), "busy"),
    ("500-not-utf-8", Fault(500, b'{"code": "\xff", "message": "\xfe"}'), "busy"),
    ("500-code-is-a-list", Fault(500, b'{"code": [1], "message": {"a": 1}}'), "busy"),
    ("reset-before-counting", Fault(drop="before"), "busy"),
    ("reset-after-counting", Fault(drop="after"), "busy"),
]


@pytest.mark.parametrize(("fault", "reason"), [row[1:] for row in BUSY], ids=[row[0] for row in BUSY])
def test_what_may_succeed_later_is_busy_after_exactly_one_request(service, embedder, fault, reason):
    service.will(fault)

    with pytest.raises(ProviderBusy) as caught:
        embedder.embed_documents(TEXTS)

    assert caught.value.reason == reason
    assert str(caught.value).isprintable()
    assert len(service.entries) == 1
    assert embedder.ledger.usage().requests == 1


REFUSED = [
    ("arrearage", refusal(400, "Arrearage", "slow down and try again later")),
    ("invalid-parameter", refusal(400, "InvalidParameter")),
    ("invalid-key", refusal(401, "InvalidApiKey")),
    ("access-denied", refusal(403, "AccessDenied.Unpurchased")),
    ("no-such-model", refusal(404, "ModelNotFound")),
    ("redirect", Fault(302, b"", {"Location": "http://127.0.0.1:9/login"})),
]


@pytest.mark.parametrize("fault", [row[1] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_will_not_succeed_later_is_refused_after_exactly_one_request(service, embedder, fault):
    service.will(fault)

    with pytest.raises(ProviderRefused) as caught:
        embedder.embed_documents(TEXTS)

    assert caught.value.exit_code == 4
    assert len(service.entries) == 1


def test_reversed_order_with_right_indexes_is_put_right(service, embedder):
    expected = embedder.embed_documents(TEXTS)
    service.will(Fault(mangle="reversed"))

    assert np.array_equal(embedder.embed_documents(TEXTS), expected)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("86400", 86_400.0),
        ("1e308", 366 * 86_400.0),
        ("soon", None),
        ("-3", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_retry_after_is_handed_on_when_it_can_be_read(service, embedder, header, seconds):
    service.will(refusal(429, "Throttling.RateQuota", Retry_After=header))

    with pytest.raises(ProviderBusy) as caught:
        embedder.embed_documents(TEXTS)

    assert caught.value.retry_after_s == seconds


def test_retry_after_may_be_a_date(service, embedder):
    service.will(refusal(429, "Throttling.RateQuota", Retry_After="Fri, 31 Dec 2100 23:59:59 GMT"))

    with pytest.raises(ProviderBusy) as caught:
        embedder.embed_documents(TEXTS)

    assert (caught.value.retry_after_s or 0) > 86_400


def test_a_429_makes_every_user_of_the_ledger_wait(service, embedder):
    service.will(refusal(429, "Throttling.RateQuota", Retry_After="5"))
    with pytest.raises(ProviderBusy):
        embedder.embed_documents(TEXTS)

    with pytest.raises(QuotaExhausted):
        embedder.embed_query("graphs", timeout_s=1)

    assert len(service.entries) == 1
    assert embedder.ledger.usage().tokens == 0


@pytest.mark.parametrize("delay_s", [0.5, 3.0])
def test_a_hanging_service_is_a_timeout_and_counts_longest(service, tmp_path, delay_s):
    embedder = opened(service, tmp_path, read_timeout_s=0.2)
    service.will(Fault(delay_s=delay_s))

    with pytest.raises(ProviderBusy) as caught:
        embedder.embed_documents(TEXTS)

    assert caught.value.reason == "timeout"
    ended = embedder.ledger._db.execute("SELECT until - ? FROM reservation", (embedder.ledger._clock(),)).fetchone()
    assert ended[0] > 100


@pytest.mark.parametrize("drip", get_args(Drip))
@pytest.mark.parametrize("query", [False, True], ids=["documents", "query"])
def test_an_answer_that_drips_ends_at_the_deadline_wherever_it_drips(service, tmp_path, drip, query):
    """Each byte arrives within the read timeout; only a deadline over the whole ends it."""
    embedder = opened(service, tmp_path, read_timeout_s=0.5)
    service.will(Fault(drip=drip))
    started = time.monotonic()

    with pytest.raises(ProviderBusy) as caught:
        embedder.embed_query("graphs", timeout_s=1.0) if query else embedder.embed_documents(TEXTS)

    assert caught.value.reason == "timeout"
    assert time.monotonic() - started < CONNECT_TIMEOUT_S + 0.5 + 1.0
    assert embedder.embed_documents(TEXTS).shape == (3, 1024)


def test_a_patient_query_waits_for_room_as_a_document_does(service, tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", "account", Limits(1, 100_000), window_s=1.0, in_flight_s=1.0)
    embedder = DashScopeEmbedder(dashscope_spec(), api_key=KEY, ledger=ledger, base_url=service.base_url)
    embedder.embed_query("graphs", timeout_s=2.0)

    with pytest.raises(QuotaExhausted):
        embedder.embed_query("graphs", timeout_s=2.0)
    assert embedder.embed_query("graphs", timeout_s=2.0, patient=True).shape == (1024,)


def test_a_query_is_read_no_longer_than_a_document_however_long_it_may_take(service, tmp_path):
    embedder = opened(service, tmp_path, read_timeout_s=0.2)
    service.will(Fault(delay_s=3.0))
    started = time.monotonic()

    with pytest.raises(ProviderBusy) as caught:
        embedder.embed_query("graphs", timeout_s=60.0)

    assert caught.value.reason == "timeout"
    assert time.monotonic() - started < 2.5


def test_an_answer_that_cannot_be_read_is_logged_once_with_its_cause(service, embedder, caplog):
    service.will(Fault(200, b"null"), Fault(200, b"null"), Fault(200, b"<html>"))

    for _ in range(3):
        with pytest.raises(ProviderBusy) as caught:
            embedder.embed_documents(TEXTS)
        assert isinstance(caught.value.__cause__, TypeError | ValueError)

    [record] = [record for record in caplog.records if "cannot be read" in record.message]
    assert record.exc_info[0] is TypeError


def test_an_sdk_that_takes_other_arguments_is_no_busy_provider(service, embedder, monkeypatch):
    call = embedder._embedding.call

    def renamed(*, model_name: str, **others: object) -> object:
        return call(model=model_name, **others)

    monkeypatch.setattr(embedder._embedding, "call", renamed)

    with pytest.raises(TypeError, match="model"):
        embedder.embed_documents(TEXTS)
    assert service.entries == []


def test_a_stopped_embedder_sends_nothing(service, tmp_path):
    embedder = opened(service, tmp_path, limits=Limits(1, 10_000))
    embedder.embed_documents(["one"])
    refusals: list[QuotaExhausted] = []

    def wait() -> None:
        try:
            embedder.embed_documents(["two"])
        except QuotaExhausted as exc:
            refusals.append(exc)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    embedder.stop()
    waiting.join(timeout=5)

    assert len(refusals) == 1
    assert len(service.entries) == 1


def test_a_change_of_model_changes_the_vectors_and_the_fingerprint(service, tmp_path):
    four = opened(service, tmp_path, "text-embedding-v4")
    three = opened(service, tmp_path, "text-embedding-v3")

    assert four.spec.fingerprint != three.spec.fingerprint
    assert not np.allclose(four.embed_documents(TEXTS), three.embed_documents(TEXTS))


@pytest.mark.parametrize(("model", "dimension"), [("text-embedding-v4", 1_000), ("text-embedding-v3", 2_048)])
def test_a_dimension_the_model_does_not_give_is_refused(model, dimension):
    with pytest.raises(InputRefused, match=str(dimension)):
        dashscope_spec(model, dimension)


@pytest.mark.parametrize("key", ["", "  ", "sk-with\nnewline", "sk-ünicode", "two words"])
def test_a_key_no_request_can_carry_is_refused_without_showing_it(service, tmp_path, key):
    with pytest.raises(ProviderRefused) as caught:
        opened(service, tmp_path, api_key=key)

    assert not key.strip() or key not in str(caught.value)


@pytest.mark.parametrize("base_url", ["dashscope.aliyuncs.com", "ftp://a/api", "https://user:pw@host/api", ""])
def test_a_base_url_that_is_none_is_refused(service, tmp_path, base_url):
    with pytest.raises(InputRefused) as caught:
        opened(service, tmp_path, base_url=base_url)

    assert "pw" not in str(caught.value)


def test_the_key_is_in_no_message_log_or_file(service, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    embedder = opened(service, tmp_path)
    messages = [repr(embedder), str(vars(embedder.spec))]
    faults = [row[1] for row in BUSY] + [row[1] for row in REFUSED]
    quoting = refusal(401, "InvalidApiKey", f"Incorrect API key provided: {KEY} or sk-3f9c****cret, {'x' * 9_000}")
    for fault in [*faults, quoting]:
        service.will(fault)
        with pytest.raises((ProviderBusy, ProviderRefused)) as caught:
            embedder._embed(["attention over graphs"]) if fault.mangle else embedder.embed_documents(TEXTS)
        messages += [str(caught.value), repr(caught.value)]
        embedder.ledger._db.execute("UPDATE account SET hold = 0, request_tat = 0, token_tat = 0")
    assert any("[key]" in message for message in messages)
    assert max(map(len, messages)) < 1_000
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

    for secret in (KEY, KEY[:12], "3f9c"):
        assert secret not in " ".join(messages)
        assert secret not in caplog.text
        assert secret.encode() not in stored


def test_a_query_is_in_no_message_log_or_file(service, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    embedder = opened(service, tmp_path)
    query = f"zebrafish whisperings {UNSEEMLY}"
    service.will(refusal(400, "InvalidParameter", f"bad text: {query}"), refusal(500, "X", f"cannot do {query}"))
    for kind in (ProviderRefused, ProviderBusy, TextRefused):
        with pytest.raises(kind) as caught:
            embedder.embed_query(query, timeout_s=3)
        assert "zebrafish" not in str(caught.value)

    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "zebrafish" not in caplog.text
    assert b"zebrafish" not in stored


def test_the_sdk_is_imported_only_when_an_embedder_is_opened():
    program = (
        "import sys, manifests.embedding.dashscope as d; d.dashscope_spec();"
        "print(sorted({'dashscope', 'requests', 'tiktoken'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_the_emulator_enforces_minutes_and_reports_peaks(tmp_path):
    with emulator(Quota(3, 1_000)) as strict:
        generous = opened(strict, tmp_path)
        for _ in range(3):
            generous.embed_documents(["one text"])
        with pytest.raises(ProviderBusy):
            generous.embed_documents(["one text"])

        report = strict.report()

    assert strict.refused == 1
    assert report["peak"] == {"requests": 3, "tokens": 6}
    assert json.loads(json.dumps(report)) == {**report, "minutes": []}
