"""`python -m serve` as it starts, and one search from the terminal: answers, refusals, exit codes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import httpx2
import pytest

from manifests.contract import Manifest, read_manifest, write_manifest
from tests.acceptance.served import QUERY, call, command
from tests.programs import REPOSITORY

pytestmark = pytest.mark.anyio


def search_from_the_terminal(build, state, *options):
    arguments = command(build, state)
    return refusal("search", QUERY, *arguments[3:], *options)


async def test_one_search_from_the_terminal_is_the_tools_own_text(sample_build, sample_server, tmp_path):
    options = ("--top-k", "4", "--area", "applications", "--spotlight")
    done = await asyncio.to_thread(search_from_the_terminal, sample_build, tmp_path / "state.db", *options)
    async with httpx2.AsyncClient(timeout=60) as http:
        text = await call(
            http, sample_server.url, "search_papers", query=QUERY, top_k=4, area="applications", spotlight_only=True
        )

    assert (done.returncode, done.stdout, done.stderr) == (0, text + "\n", "")


def refusal(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "serve", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_unknown_area_from_the_terminal_is_exit_code_2(sample_build, tmp_path):
    done = search_from_the_terminal(sample_build, tmp_path / "state.db", "--area", "Aplications")

    assert done.returncode == 2
    assert done.stderr.startswith("error[unknown_area]")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (("corpus", "rows"), 151, "digest"),
        (("embedding", "dimension"), 512, "digest"),
    ],
)
def test_a_manifest_that_was_edited_is_refused(sample_build, tmp_path, key, value, says):
    manifest = json.loads(sample_build.manifest.read_text(encoding="utf-8"))
    manifest[key[0]][key[1]] = value
    edited = tmp_path / "manifest.json"
    edited.write_text(json.dumps(manifest), encoding="utf-8")

    done = refusal("--manifest", str(edited), "--milvus-uri", sample_build.uri, "--state", str(tmp_path / "s.db"))

    assert done.returncode == 6
    assert says in done.stderr


@pytest.mark.parametrize(
    ("part", "changed", "says"),
    [
        ("embedding", {"dimension": 512}, ("dimension", "512", "384")),
        ("embedding", {"weights_sha256": "0" * 64}, ("weights", "0" * 64)),
        ("collection", {"name": "papers_000000000000"}, ("papers_000000000000",)),
        ("corpus", {"rows": 151}, ("151", "150")),
        ("corpus", {"ids_sha256": "1" * 64}, ("ids", "1" * 64)),
        ("corpus", {"content_sha256": "2" * 64}, ("collection name",)),
    ],
)
def test_a_sound_manifest_of_another_index_is_refused_by_name(sample_build, tmp_path, part, changed, says):
    manifest = read_manifest(sample_build.manifest)
    facts = {name: getattr(manifest, name) for name in type(manifest).model_fields if name not in {"format", "digest"}}
    facts[part] = facts[part].model_copy(update=changed)
    other = tmp_path / "manifest.json"
    write_manifest(Manifest.sealed(**facts), other)

    done = refusal("--manifest", str(other), "--milvus-uri", sample_build.uri, "--state", str(tmp_path / "s.db"))

    assert done.returncode == 6, done.stderr
    assert [word for word in says if word not in done.stderr] == [], done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_index_and_a_foreign_state_are_refused_by_name(sample_build, tmp_path):
    absent = refusal(
        *("--manifest", str(sample_build.manifest), "--milvus-uri", str(tmp_path / "absent.db")),
        *("--state", str(tmp_path / "s.db"), "--port", "0"),
    )
    foreign = refusal(
        *("--manifest", str(sample_build.manifest), "--milvus-uri", sample_build.uri),
        *("--state", str(sample_build.manifest), "--port", "0"),
    )

    assert absent.returncode in {5, 6}
    assert "absent.db" in absent.stderr
    assert foreign.returncode == 6
    assert "not a database" in foreign.stderr


def test_a_milvus_server_that_is_not_up_is_exit_code_5_after_bounded_retries(sample_build, tmp_path):
    done = refusal(
        *("--manifest", str(sample_build.manifest), "--milvus-uri", "http://127.0.0.1:9"),
        *("--state", str(tmp_path / "s.db"), "--port", "0", "--milvus-wait", "2"),
    )

    assert done.returncode == 5
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminal_that_knows_ascii_only_gets_the_answer_too(sample_build, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")

    done = search_from_the_terminal(sample_build, tmp_path / "state.db")

    assert (done.returncode, done.stderr) == (0, "")
    assert "?" in done.stdout
