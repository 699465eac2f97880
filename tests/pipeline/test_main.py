"""`python -m pipeline` and what users get wrong: one sentence and the exit code of its kind, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from manifests.files import file_sha256
from pipeline.__main__ import main
from pipeline.snapshot import Provenance
from pipeline.snapshot_write import write_snapshot
from tests.programs import REPOSITORY, Build

SAMPLE = str(Path(__file__).resolve().parents[2] / "snapshots" / "sample")


def one_paper(folder: Path, title: str) -> Path:
    provenance = Provenance(
        name=folder.name, title="T", source="s", url="", retrieved_at="2026-01-01T00:00:00Z", licence="none"
    )
    write_snapshot(folder, provenance, [{"id": "a", "title": title}])
    return folder


def told(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate", "--wor", "w"],
        ["store", "stats", "--stor", "s"],
        ["fetch", "file", "absent.csv", "--name", "N", "--titl", "T"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_flag_that_is_cut_short_is_unknown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert f"unrecognized arguments: {' '.join(arguments[-2:])}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["build", SAMPLE, "--provider", "dashscope"], 2, "DASHSCOPE_API_KEY"),
        (["build", SAMPLE, "--dimension", "7"], 2, "gives 384"),
        (["build", SAMPLE, "--milvus-uri", "elsewhere/milvus.db"], 2, "outside the work folder"),
        (["build", SAMPLE, "--manifest", "."], 2, "cannot be written as a file"),
        (["build", "nowhere"], 3, "nowhere"),
        (["build", "no\x1b[31mwhere\u202e"], 3, "error: no[31mwhere/snapshot.json: "),
        (["validate"], 2, "--manifest or --work"),
        (["validate", "--manifest", "absent.json"], 6, "just build-index"),
        (["validate", "--manifest", "absent.json", "--snapshot", "nowhere"], 3, "nowhere"),
        (["embed"], 2, "--work"),
        (["index", "--work", "nowhere"], 3, "load"),
        (["store", "verify", "--store", "nowhere"], 3, "no such folder"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_sentence_with_its_exit_code(
    arguments: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(arguments) == code

    heard = capsys.readouterr()
    assert said in heard.err
    assert heard.out == ""


@pytest.mark.parametrize("share", ["2", "-1", "nan"])
def test_a_query_reserve_that_is_no_share_is_a_usage_error(
    share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DASHSCOPE_API_KEY", "a-key")
    quotas = ["--requests-per-minute", "10", "--tokens-per-minute", "1000"]

    assert main(["build", SAMPLE, "--provider", "dashscope", *quotas, f"--query-reserve={share}"]) == 2
    assert "--query-reserve" in capsys.readouterr().err


def test_a_folder_name_is_a_name_and_no_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, own = one_paper(tmp_path / "other", "Another title"), one_paper(tmp_path / "own", "Its own title")
    store = ("--store", tmp_path / "store")
    told(capsys, "load", other, "--work", tmp_path / "Wa")
    told(capsys, "embed", "--work", tmp_path / "Wa", *store)
    told(capsys, "load", own, "--work", tmp_path / "W[ab]")

    assert told(capsys, "embed", "--work", tmp_path / "W[ab]", *store)["embedded"] == 1


def test_index_names_the_papers_without_vector_before_it_creates_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, store = tmp_path / "work", tmp_path / "store"
    told(capsys, "load", SAMPLE, "--work", work)
    before = sorted(work.iterdir())
    papers = sorted(json.loads(line)["id"] for line in (Path(SAMPLE) / "papers.jsonl").read_bytes().splitlines())

    assert main(["index", "--work", str(work), "--store", str(store), "--manifest", str(tmp_path / "m.json")]) == 3

    said = capsys.readouterr().err
    assert "150 of 150 papers have no vector" in said
    assert f"{papers[0]} (" in said
    assert "and 145 more" in said
    assert f"python -m pipeline embed --work {work}" in said
    assert {path.name for path in work.iterdir()} - {path.name for path in before} <= {".lock"}


def test_the_title_of_a_paper_without_vector_is_one_line_that_any_terminal_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "load", one_paper(tmp_path / "own", "Its\x1b[31m\nown"), "--work", tmp_path / "work")

    assert main(["index", "--work", str(tmp_path / "work"), "--store", str(tmp_path / "store")]) == 3
    assert "a (Its[31m own). Run" in capsys.readouterr().err


def test_a_damaged_collection_stays_where_it_is_while_vectors_are_missing(
    sample_build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Path(shutil.copytree(sample_build.work, tmp_path / "work", symlinks=True))
    [collection] = work.glob("papers_*.db")
    next(collection.rglob("*.parquet")).write_bytes(b"")
    places = ["--work", str(work), "--store", str(tmp_path / "store"), "--manifest", str(tmp_path / "m.json")]

    assert main(["index", *places]) == 3

    assert "have no vector" in capsys.readouterr().err
    assert collection.is_dir()


VALIDATE_ABSENT = ["validate", "--manifest", "absent.json"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["store", "stats", "--store", "."], 0),
        (VALIDATE_ABSENT, 6),
        ([*VALIDATE_ABSENT, "--json"], 6),
    ],
    ids=["done", "refused in words", "refused in JSON"],
)
def test_a_reader_that_had_enough_changes_no_exit_code(arguments: list[str], code: int, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        done = run_to(nobody, arguments, tmp_path)

    assert done.returncode == code, done.stderr
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_result_that_cannot_be_written_is_told_and_no_success(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run_to(full, ["store", "stats", "--store", "."], tmp_path)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: the result cannot be written to standard output: No space")


def test_a_build_whose_progress_nobody_reads_is_no_success(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pipeline", "load", SAMPLE, "--work", str(tmp_path / "work")]
    with os.fdopen(writing, "wb") as nobody:
        done = subprocess.run(command, cwd=REPOSITORY, stderr=nobody, stdout=nobody, check=False, timeout=60)

    assert done.returncode == 1


def run_to(stdout: BinaryIO, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """`python -m pipeline ARGUMENTS` in `folder`, its result going to `stdout`."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": ""},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )


def test_status_counts_distinct_texts_and_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "load", SAMPLE, "--work", tmp_path / "work")

    found = told(capsys, "status", "--work", tmp_path / "work", "--store", tmp_path / "store")

    assert found["vectors"] == {"texts": 148, "stored": 0}
    assert not (tmp_path / "store").exists()


def test_a_command_reads_each_file_whole_once_to_compare_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files: list[str] = []

    def noted(path: Path) -> str:
        files.append(path.name)
        return file_sha256(path)

    monkeypatch.setattr("pipeline.snapshot.file_sha256", noted)
    monkeypatch.setattr("pipeline.corpus.file_sha256", noted)
    work, store = ("--work", tmp_path / "work"), ("--store", tmp_path / "store")

    told(capsys, "load", SAMPLE, *work)
    told(capsys, "status", *work, *store)

    assert files.count("papers.jsonl") == 1
    assert files.count("papers.parquet") == 1


def test_a_user_without_a_home_may_say_where_vectors_and_minutes_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    work = ("--work", tmp_path / "work")
    told(capsys, "load", one_paper(tmp_path / "own", "Its title"), *work)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)

    shared = ("--store", tmp_path / "store", "--ledger", tmp_path / "ledger.db")
    assert told(capsys, "embed", *work, *shared)["embedded"] == 1
    assert main(["embed", *map(str, work)]) == 2
