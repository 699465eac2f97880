"""What can be known of the image without building it; scripts/image_check.sh builds and runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import serve
from tests.programs import REPOSITORY

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
SERVER = json.loads((REPOSITORY / "server.json").read_text(encoding="utf-8"))


def test_the_dockerfile_is_clean() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), "Dockerfile"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_the_labels_equal_server_json() -> None:
    labels = dict(re.findall(r'^(?:LABEL| +) ?([a-z.]+)="([^"$]*)"', DOCKERFILE, re.MULTILINE))

    assert labels["io.modelcontextprotocol.server.name"] == SERVER["name"]
    assert labels["org.opencontainers.image.title"] == SERVER["title"]
    assert labels["org.opencontainers.image.description"] == SERVER["description"]
    assert labels["org.opencontainers.image.source"] == SERVER["repository"]["url"]


def test_one_version_everywhere() -> None:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]["version"]
    argument = re.search(r"^ARG VERSION=(\S+)", DOCKERFILE, re.MULTILINE)

    assert argument
    assert {project, serve.VERSION, SERVER["version"], argument[1]} == {project}
    assert SERVER["packages"][0]["identifier"].endswith(f":{project}")


def test_no_digest_of_the_base_is_invented() -> None:
    assert "sha256:" not in DOCKERFILE
    assert "ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm\n" in DOCKERFILE


@pytest.mark.parametrize("feature", ["<<", "--link", "--parents", "--exclude", "--network", "# syntax"])
def test_only_what_docker_and_buildah_both_take(feature: str) -> None:
    instructions = [line for line in DOCKERFILE.splitlines() if not line.startswith("#  ") and "Holds for" not in line]
    code = [line for line in instructions if not line.startswith("# ")] + [
        line for line in instructions if line.startswith("# syntax")
    ]

    assert [line for line in code if feature in line] == []


def test_an_index_that_was_never_built_is_refused_with_what_to_run(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", REPOSITORY / "scripts" / "image_index.sh", tmp_path, "icml2026", tmp_path / "srv"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "just build-index icml2026" in done.stderr


def test_the_index_of_a_build_is_laid_out_with_its_manifest(tmp_path: Path) -> None:
    context = tmp_path / "context"
    (context / "builds/x/papers_0123.db/collections").mkdir(parents=True)
    (context / "builds/x/papers_0123.db/collections/part").write_text("part", encoding="utf-8")
    (context / "builds/x/papers_old.db").mkdir()
    (context / "builds/x/artifact.json").write_text("{}", encoding="utf-8")
    (context / "builds/x/milvus.db").symlink_to("papers_0123.db")
    (context / "manifests").mkdir()
    (context / "manifests/x.json").write_text("manifest", encoding="utf-8")

    subprocess.run(
        ["sh", REPOSITORY / "scripts" / "image_index.sh", context, "x", tmp_path / "srv"],
        check=True,
        capture_output=True,
    )

    laid = sorted(str(path.relative_to(tmp_path / "srv")) for path in (tmp_path / "srv").rglob("*") if path.is_file())
    assert laid == ["index/artifact.json", "index/papers_0123.db/collections/part", "manifest.json"]
    assert (tmp_path / "srv/index/milvus.db").readlink() == Path("papers_0123.db")


def engine(folder: Path, name: str, *, answers: bool) -> None:
    """A container engine that repeats its arguments, and says `info` only where it `answers`."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    info = "exit 0" if answers else "echo 'Cannot connect to the daemon' >&2; exit 1"
    program.write_text(f'#!/bin/sh\n[ "$1" = info ] && {{ {info}; }}\necho "{name} $*"\n', encoding="utf-8")
    program.chmod(0o755)


def image(engines: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`just image x` where only `engines` come first in the PATH."""
    return subprocess.run(
        [REPOSITORY / "scripts" / "image.sh", "x"],
        env={"PATH": f"{engines}:{os.environ['PATH']}"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("answering", ["docker", "podman", "buildah"])
def test_the_image_is_built_by_the_first_engine_that_answers(tmp_path: Path, answering: str) -> None:
    engines = ("docker", "podman", "buildah")
    for name in engines:
        engine(tmp_path / "bin", name, answers=engines.index(name) >= engines.index(answering))

    done = image(tmp_path / "bin")
    asked = image(tmp_path / "bin", ENGINE="docker --context other")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{answering} build --build-arg INDEX=x")
    assert asked.stdout.startswith("docker --context other build")


def test_where_no_engine_answers_each_that_is_there_is_named(tmp_path: Path) -> None:
    for name in ("docker", "podman", "buildah"):
        engine(tmp_path / "bin", name, answers=False)

    done = image(tmp_path / "bin")

    assert (done.returncode, done.stdout) == (2, "")
    assert "'docker info' fails, 'podman info' fails, 'buildah info' fails" in done.stderr
    assert "just serve" in done.stderr
