"""The same code against a Milvus that is reached over the network: Lite's own gRPC server on loopback stands in."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pymilvus import MilvusClient

from manifests.contract import read_manifest
from manifests.embedding.spec import Vectors
from manifests.errors import IndexRefused, MilvusError
from manifests.gate import open_index
from manifests.lite import LiteEngine
from manifests.milvus import CALL_TIMEOUT_S, Milvus
from pipeline.embedding_store import EmbeddingStore
from pipeline.index import index
from pipeline.progress import silent
from pipeline.work import Target
from tests.programs import SAMPLE, Build, run_build, run_pipeline


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running server."""
    port = free_port()
    folder = tmp_path_factory.mktemp("server")
    command = [sys.executable, "-u", "-m", "milvus_lite", "server", "--data-dir", str(folder), "--host", "127.0.0.1"]
    program = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert "listening" in program.stdout.readline()
    yield f"http://127.0.0.1:{port}"
    program.terminate()
    program.communicate()


def test_a_build_to_a_server_gives_the_same_manifest_and_validates(
    sample_build: Build, server: str, tmp_path: Path
) -> None:
    built = run_build(SAMPLE, tmp_path, "--milvus-uri", server, store=sample_build.store)
    again = run_build(SAMPLE, tmp_path, "--milvus-uri", server, store=sample_build.store)
    told = run_pipeline(
        "validate", "--manifest", built.manifest, "--work", built.work, "--milvus-uri", server, "--json"
    )

    assert built.manifest.read_bytes() == sample_build.manifest.read_bytes()
    assert set(again.result["seconds"]) == {"load"}
    assert json.loads(told.stdout)["ok"], told.stderr
    assert not list(built.work.glob("*.db"))


def test_the_gate_gives_each_call_on_a_server_as_long_as_the_index_stage_does(
    sample_build: Build, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_build(SAMPLE, tmp_path, "--milvus-uri", server, store=sample_build.store)
    manifest = read_manifest(sample_build.manifest)
    calls = ("describe_collection", "list_indexes", "query_iterator", "get")
    limits: dict[str, float] = {}

    def told(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            limits[name] = options["timeout"]
            return call(*arguments, **options)

        return noted

    for name in calls:
        monkeypatch.setattr(MilvusClient, name, told(name, getattr(MilvusClient, name)))

    open_index(manifest, server, query_spec=manifest.embedding).close()

    assert limits == dict.fromkeys(calls, CALL_TIMEOUT_S)


def drop(server: str, name: str) -> None:
    client = MilvusClient(server)
    client.drop_collection(name)
    client.close()


def test_a_collection_left_unfinished_on_the_server_is_built_again(
    sample_build: Build, server: str, tmp_path: Path
) -> None:
    drop(server, read_manifest(sample_build.manifest).collection.name)
    built = run_build(SAMPLE, tmp_path, "--milvus-uri", server, store=sample_build.store)
    name = read_manifest(built.manifest).collection.name
    client = MilvusClient(server)
    client.load_collection(name)
    client.delete(name, filter='area == "Unspecified"')
    client.flush(name)
    client.close()
    built.manifest.unlink()

    run_build(SAMPLE, tmp_path, "--milvus-uri", server, store=sample_build.store)

    told = run_pipeline("validate", "--manifest", built.manifest, "--work", built.work, "--milvus-uri", server)
    assert told.returncode == 0, told.stderr


def test_a_build_that_was_killed_goes_on_and_no_other_build_takes_its_collection(
    sample_build: Build, server: str, tmp_path: Path
) -> None:
    manifest, papers = read_manifest(sample_build.manifest), sample_build.work / "papers.parquet"
    name = manifest.collection.name
    drop(server, name)
    mine, other = (Target(tmp_path / which, server, None) for which in ("mine", "other"))

    def killed(_: Sequence[str]) -> Vectors:
        raise KeyboardInterrupt

    with EmbeddingStore(sample_build.store, manifest.embedding, create=False) as store:
        with pytest.raises(KeyboardInterrupt):
            index(papers, killed, manifest, mine, silent)
        with pytest.raises(
            IndexRefused, match=r"incomplete collection: expected begun by a build in .*other; wait for"
        ):
            index(papers, store.vectors, manifest, other, silent)
        with Milvus(server) as milvus:
            assert (milvus.collections(), milvus.count(name)) == ([name], 0)

        assert index(papers, store.vectors, manifest, mine, silent)
        assert not index(papers, store.vectors, manifest, other, silent)


def test_a_server_behind_a_unix_socket_is_a_server(sample_build: Build, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="unix-") as sockets:
        engine = LiteEngine(tmp_path / "server.db", Path(sockets))
        try:
            uri = engine.wait_ready().uri
            built = run_build(SAMPLE, tmp_path, "--milvus-uri", uri, store=sample_build.store)
            told = run_pipeline("validate", "--manifest", built.manifest, "--work", built.work, "--milvus-uri", uri)
        finally:
            engine.close()

    assert uri.startswith("unix:")
    assert told.returncode == 0, told.stderr
    absent = f"unix:{tmp_path}/absent.sock"
    nobody = run_pipeline("validate", "--manifest", built.manifest, "--work", built.work, "--milvus-uri", absent)
    assert nobody.returncode == 5, nobody.stderr
    assert absent in nobody.stderr


def test_nobody_at_the_address_is_exit_5_after_the_bounded_wait(sample_build: Build, tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"

    told = run_pipeline("validate", "--manifest", sample_build.manifest, "--work", tmp_path, "--milvus-uri", nobody)

    assert told.returncode == 5, told.stderr
    assert nobody in told.stderr
    assert "Traceback" not in told.stderr
    manifest = read_manifest(sample_build.manifest)
    with pytest.raises(MilvusError):
        open_index(manifest, nobody, query_spec=manifest.embedding, wait_s=1)


def test_a_build_finds_nobody_at_the_address_before_it_embeds(tmp_path: Path) -> None:
    nobody, store = f"http://127.0.0.1:{free_port()}", tmp_path / "store"
    places = ("--work", tmp_path / "work", "--manifest", tmp_path / "manifest.json", "--store", store)

    told = run_pipeline("build", SAMPLE, *places, "--milvus-uri", nobody)

    assert told.returncode == 5, told.stderr
    assert nobody in told.stderr
    assert "embed: started" not in told.stderr
    assert not list(store.rglob("part-*"))
