"""The DashScope adapter where a connection fails: what costs quota, and what does not."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from bench.emulator import Fault
from manifests.errors import InputRefused, ProviderBusy
from tests.contract.dashscope_stand import TEXTS, opened


def test_no_address_is_busy_and_costs_no_quota(service, tmp_path, monkeypatch):
    embedder = opened(service, tmp_path, base_url="http://dashscope.invalid/api/v1")

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ProviderBusy, match="cannot be reached"):
        embedder.embed_documents(TEXTS)

    assert embedder.ledger.usage().requests == 0
    assert embedder.tokens_spent == 0


def test_no_connection_is_busy_and_costs_no_quota(service, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    embedder = opened(service, tmp_path, base_url=f"http://127.0.0.1:{port}/api/v1")

    with pytest.raises(ProviderBusy, match="cannot be reached"):
        embedder.embed_documents(TEXTS)

    assert embedder.ledger.usage().requests == 0
    assert embedder.tokens_spent == 0


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port whose connections are each given to `answer` and closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def alert(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(b"\x15\x03\x03\x00\x02\x02\x28")  # TLS: fatal, handshake_failure


HANDSHAKES: dict[str, Callable[[socket.socket], object]] = {
    "plain HTTP": lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "refused": alert,
    "closed": lambda connection: connection.recv(65_536),
    "silent": lambda connection: [None for _ in iter(lambda: connection.recv(65_536), b"")],
}


@pytest.mark.parametrize("answer", HANDSHAKES.values(), ids=HANDSHAKES)
def test_a_tls_handshake_that_fails_is_busy_and_costs_neither_quota_nor_tokens(service, tmp_path, monkeypatch, answer):
    monkeypatch.setattr("manifests.embedding.dashscope.CONNECT_TIMEOUT_S", 0.5)
    with listening(answer) as port:
        embedder = opened(service, tmp_path, base_url=f"https://127.0.0.1:{port}/api/v1")

        with pytest.raises(ProviderBusy, match="cannot be reached"):
            embedder.embed_documents(TEXTS)

    assert embedder.ledger.usage().requests == 0
    assert embedder.tokens_spent == 0


def test_a_proxy_that_refuses_costs_neither_quota_nor_tokens(service, tmp_path, monkeypatch):
    refusing = HANDSHAKES["plain HTTP"]
    with listening(refusing) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        embedder = opened(service, tmp_path, base_url="https://dashscope.invalid/api/v1")

        with pytest.raises(ProviderBusy, match="cannot be reached"):
            embedder.embed_documents(TEXTS)

    assert embedder.ledger.usage().requests == 0
    assert embedder.tokens_spent == 0


def test_a_request_that_left_counts_however_its_connection_ends(service, tmp_path):
    with listening(lambda connection: connection.recv(1)) as port:
        embedder = opened(service, tmp_path, base_url=f"http://127.0.0.1:{port}/api/v1")

        with pytest.raises(ProviderBusy, match="broke"):
            embedder.embed_documents(TEXTS)

    assert embedder.ledger.usage().requests == 1
    assert embedder.tokens_spent > 0


def test_a_connection_closed_while_idle_is_one_request_and_busy(service, embedder):
    """The SDK would send again by itself, unknown to the ledger."""
    embedder.embed_documents(TEXTS)
    service.will(Fault(drop="before"))

    with pytest.raises(ProviderBusy):
        embedder.embed_documents(TEXTS)

    assert len(service.entries) == 2
    assert embedder.ledger.usage().requests == 2


def test_certificates_that_are_not_there_are_named_before_anything_is_sent(service, tmp_path, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "absent.pem"))

    with pytest.raises(InputRefused, match=r"REQUESTS_CA_BUNDLE names .*absent\.pem"):
        opened(service, tmp_path)


def test_a_netrc_and_proxies_of_the_environment_do_not_reach_a_service_on_this_machine(service, tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    assert opened(service, tmp_path).embed_documents(TEXTS).shape == (3, 1024)
