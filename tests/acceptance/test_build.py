"""The build as a maintainer meets it: again, elsewhere, interrupted at every stage, on a full disk, twice at once."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from manifests.artifact import Artifact
from manifests.contract import read_manifest
from manifests.files import file_sha256
from manifests.lite import folder_digests
from tests.programs import REPOSITORY, SAMPLE, Build, run_build, run_pipeline


def places(folder: Path) -> list[str | Path]:
    return [
        *("--work", folder / "work", "--manifest", folder / "manifest.json"),
        *("--store", folder / "store", "--ledger", folder / "ledger.db"),
    ]


def die_at(point: str, folder: Path, snapshot: Path = SAMPLE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.dying", point, "build", str(snapshot), *map(str, places(folder))],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def stored_texts(folder: Path) -> int:
    if not (folder / "store").is_dir():
        return 0
    told = run_pipeline("store", "stats", "--store", folder / "store", "--json")
    return sum(spec["vectors"] for spec in json.loads(told.stdout)["specs"])


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test alone, of a path short enough for a socket."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_the_artifact_tells_how_long_each_stage_took(sample_build: Build) -> None:
    (built,) = Artifact.read(sample_build.work).collections.values()

    assert list(built.seconds) == ["embed", "index", "load", "validate"]
    assert all(seconds > 0 for seconds in built.seconds.values())


def test_the_same_command_again_finds_everything_up_to_date_and_writes_nothing(sample_build: Build) -> None:
    folder = sample_build.work.parent
    before = folder_digests(folder), {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}

    again = run_pipeline("build", SAMPLE, *places(folder), "--json")

    told = json.loads(again.stdout)
    assert (again.returncode, told["embedded"], told["reused"]) == (0, 0, 150)
    assert "up to date" in again.stderr
    assert told["digest"] == sample_build.result["digest"]
    lock = sample_build.work / ".lock"
    after = folder_digests(folder), {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert after[0] == before[0]
    assert {path for path in after[1] if after[1][path] != before[1][path]} <= {lock}


def test_the_result_says_what_was_built_and_what_it_cost(sample_build: Build) -> None:
    result = sample_build.result

    assert set(result) == {
        "name", "digest", "manifest", "papers", "rejected", "embedded", "reused", "seconds", "peak_rss_mb",
    }  # fmt: skip
    assert (result["name"], result["papers"], result["rejected"]) == ("sample", 150, 0)
    assert result["embedded"] + result["reused"] == 150
    assert set(result["seconds"]) == {"load", "embed", "index", "validate", "publish"}
    assert result["digest"] == read_manifest(sample_build.manifest).digest


def test_another_folder_locale_time_zone_and_hash_seed_give_the_same_bytes(sample_build: Build, tmp_path: Path) -> None:
    other = run_build(
        SAMPLE,
        tmp_path,
        store=sample_build.store,
        LC_ALL="C",
        LANG="tr_TR",
        TZ="Pacific/Kiritimati",
        PYTHONHASHSEED="7",
    )

    assert other.manifest.read_bytes() == sample_build.manifest.read_bytes()
    assert other.result["embedded"] == 0


def test_a_shuffled_snapshot_gives_the_same_corpus_and_the_same_collection(sample_build: Build, tmp_path: Path) -> None:
    shuffled = tmp_path / "shuffled"
    shuffled.mkdir()
    lines = (SAMPLE / "papers.jsonl").read_bytes().splitlines(keepends=True)
    random.Random(7).shuffle(lines)
    (shuffled / "papers.jsonl").write_bytes(b"".join(lines))
    card = json.loads((SAMPLE / "snapshot.json").read_bytes())
    card["files"] = {"papers.jsonl": file_sha256(shuffled / "papers.jsonl")}
    (shuffled / "snapshot.json").write_text(json.dumps(card), encoding="utf-8")

    built = run_build(shuffled, tmp_path, store=sample_build.store)

    one, other = read_manifest(sample_build.manifest), read_manifest(built.manifest)
    assert other.corpus == one.corpus
    assert other.collection == one.collection
    assert other.snapshot.sha256 != one.snapshot.sha256


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("pipeline.corpus:_install", id="load", marks=pytest.mark.slow),
        pytest.param("pipeline.embedding_store:write_part:2", id="embed"),
        pytest.param("manifests.milvus:Milvus.seal", id="index-rows-inserted", marks=pytest.mark.slow),
        pytest.param("pipeline.index:_record", id="index-before-the-rename", marks=pytest.mark.slow),
        pytest.param("pipeline.build:open_index", id="validate", marks=pytest.mark.slow),
        pytest.param("pipeline.publish:switch_link", id="publish-before-the-link", marks=pytest.mark.slow),
        pytest.param("manifests.contract:write_atomically", id="publish-before-the-manifest"),
        pytest.param(
            "manifests.contract:write_atomically:1:kill-before-rename",
            id="publish-inside-the-write",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_build_killed_anywhere_never_validates_and_resumes_to_the_same_digest(
    sample_build: Build, tmp_path: Path, point: str
) -> None:
    if not point.startswith(("pipeline.corpus", "pipeline.embedding_store")):
        shutil.copytree(sample_build.store, tmp_path / "store")
    killed = die_at(point, tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    alone = run_pipeline("validate", *places(tmp_path)[:4])
    assert alone.returncode in (3, 6), alone.stderr
    kept = stored_texts(tmp_path)

    resumed = run_build(SAMPLE, tmp_path)

    assert resumed.result["digest"] == sample_build.result["digest"]
    assert resumed.manifest.read_bytes() == sample_build.manifest.read_bytes()
    assert resumed.result["embedded"] == sample_build.result["embedded"] - kept
    assert not list(resumed.work.glob(".building-*"))


REBUILDING = {
    "rows-inserted": "manifests.milvus:Milvus.seal",
    "before-the-first-rename": "pipeline.index:install:1:kill-before-rename-2",
    "between-the-renames": "pipeline.index:install:1:kill-before-rename-3",
    "before-the-old-one-is-removed": "pipeline.index:settle",
    "before-the-link-leads-back": "pipeline.work:switch_link",
}


@pytest.mark.slow
@pytest.mark.parametrize("point", REBUILDING.values(), ids=REBUILDING)
def test_a_rebuild_killed_anywhere_leaves_a_collection_that_can_be_served_and_the_same_command_finishes(
    sample_build: Build,
    tmp_path: Path,
    scratch: Path,
    point: str,
) -> None:
    work = copied(sample_build, tmp_path)
    name = read_manifest(sample_build.manifest).collection.name
    published = folder_digests(work / f"{name}.db")
    artifact = (work / "artifact.json").read_bytes()
    (work / "artifact.json").unlink()

    killed = die_at(point, tmp_path)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    recorded = (work / "artifact.json").exists()
    if not recorded:  # the old one is as it was: with its digests back it may be served
        assert folder_digests(work / f"{name}.db") == published
        (work / "artifact.json").write_bytes(artifact)
    alone = run_pipeline("validate", *places(tmp_path)[:4])
    assert alone.returncode == 0, alone.stderr
    if not recorded:
        (work / "artifact.json").unlink()
    resumed = run_build(SAMPLE, tmp_path)
    assert resumed.result["digest"] == sample_build.result["digest"]
    assert run_pipeline("validate", *places(tmp_path)[:4]).returncode == 0
    assert sorted(path.name for path in work.iterdir() if "papers_" in path.name) == [f"{name}.db"]
    assert (work / "milvus.db").readlink() == Path(f"{name}.db")
    assert not list(scratch.iterdir())


UNREADABLE = {"truncated": lambda content: content[: len(content) // 2], "not-text": lambda _: b"\xff\0"}


@pytest.mark.parametrize("spoil", UNREADABLE.values(), ids=UNREADABLE)
def test_a_build_restores_an_artifact_that_cannot_be_read(
    sample_build: Build, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    artifact = copied(sample_build, tmp_path) / "artifact.json"
    artifact.write_bytes(spoil(artifact.read_bytes()))

    refused = run_pipeline("validate", *places(tmp_path)[:4])
    seen = run_pipeline("status", "--work", artifact.parent, "--json")
    again = run_build(SAMPLE, tmp_path)

    assert refused.returncode == 6
    assert "build again to restore it" in refused.stderr
    assert "build again to restore it" in json.loads(seen.stdout)["collections"]
    assert again.result["digest"] == sample_build.result["digest"]
    assert set(Artifact.read(artifact.parent).collections) == {read_manifest(again.manifest).collection.name}
    assert run_pipeline("validate", *places(tmp_path)[:4]).returncode == 0


def test_a_folder_in_the_place_of_the_artifact_is_refused_with_6_before_anything_is_embedded(
    sample_build: Build, tmp_path: Path
) -> None:
    work = copied(sample_build, tmp_path)
    (work / "artifact.json").unlink()
    (work / "artifact.json").mkdir()
    shutil.rmtree(tmp_path / "store")

    validated = run_pipeline("validate", *places(tmp_path)[:4])
    (tmp_path / "manifest.json").unlink()
    built = run_pipeline("build", SAMPLE, *places(tmp_path))

    assert (validated.returncode, built.returncode) == (6, 6)
    for refused in (validated, built):
        assert "artifact.json: expected a file; move what is there away, found something else" in refused.stderr
    assert not (tmp_path / "store").exists() or stored_texts(tmp_path) == 0


def test_a_damaged_collection_stays_until_the_one_built_beside_it_is_complete(
    sample_build: Build, tmp_path: Path
) -> None:
    work = copied(sample_build, tmp_path)
    folder = work / f"{read_manifest(sample_build.manifest).collection.name}.db"
    segment = next(folder.rglob("data/*.parquet"))
    segment.write_bytes(segment.read_bytes()[:-1])
    damaged = folder_digests(folder)

    killed = die_at("pipeline.index:_record", tmp_path)
    before = folder_digests(folder)
    again = run_build(SAMPLE, tmp_path)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "building it again beside it" in killed.stderr
    assert before == damaged
    assert again.result["digest"] == sample_build.result["digest"]
    assert run_pipeline("validate", *places(tmp_path)[:4]).returncode == 0
    assert sorted(path.name for path in work.iterdir() if "papers_" in path.name) == [folder.name]


def copied(build: Build, folder: Path) -> Path:
    """The published sample in `folder`, with its store; the work folder there."""
    shutil.copytree(build.work, folder / "work", symlinks=True)
    shutil.copytree(build.store, folder / "store")
    shutil.copyfile(build.manifest, folder / "manifest.json")
    return folder / "work"


def test_ctrl_c_leaves_a_resumable_state_and_says_so(tmp_path: Path) -> None:
    interrupted = die_at("pipeline.embedding_store:write_part:2:interrupt", tmp_path)

    assert interrupted.returncode == 130
    assert "interrupted" in interrupted.stderr
    assert "Traceback" not in interrupted.stderr
    assert stored_texts(tmp_path) > 0


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("pipeline.tally:Tally.take", id="load", marks=pytest.mark.slow),
        pytest.param("pipeline.embedding_store:write_part:2", id="embed", marks=pytest.mark.slow),
        pytest.param("manifests.milvus:Milvus.seal", id="index"),
        pytest.param("pipeline.build:open_index", id="validate", marks=pytest.mark.slow),
        pytest.param("manifests.contract:write_atomically", id="publish", marks=pytest.mark.slow),
    ],
)
def test_sigterm_ends_it_in_one_line_with_143_and_the_same_command_goes_on(
    sample_build: Build,
    tmp_path: Path,
    scratch: Path,
    point: str,
) -> None:

    terminated = die_at(f"{point}:1:terminate" if point.count(":") == 1 else f"{point}:terminate", tmp_path)

    assert terminated.returncode == 143, terminated.stderr
    assert terminated.stderr.splitlines()[-1].startswith("terminated; ")
    assert "Traceback" not in terminated.stderr
    assert "error" not in terminated.stderr
    assert not list(scratch.glob("papers-*"))
    assert not (tmp_path / "manifest.json").exists()
    resumed = run_build(SAMPLE, tmp_path)
    assert resumed.result["digest"] == sample_build.result["digest"]
    assert not list(resumed.work.glob(".building-*"))


@pytest.mark.parametrize(
    "point",
    ["pipeline.embedding_store:write_atomically:2", "manifests.contract:write_atomically", "pipeline.index:sync_tree"],
)
def test_a_full_disk_is_one_clear_sentence_and_loses_nothing(sample_build: Build, tmp_path: Path, point: str) -> None:
    refused = die_at(f"{point}:1:disk-full" if point.count(":") == 1 else f"{point}:disk-full", tmp_path)

    assert refused.returncode == 1, refused.stderr
    assert "disk is full" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert run_build(SAMPLE, tmp_path).result["digest"] == sample_build.result["digest"]


def test_a_second_build_in_the_same_folder_is_told_who_holds_it(tmp_path: Path) -> None:
    work = tmp_path / "work"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(work)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"

    second = run_pipeline("build", SAMPLE, *places(tmp_path))
    told = json.loads(run_pipeline("status", "--work", work, "--json").stdout)
    holder.communicate()

    assert second.returncode == 7
    assert f"pid {holder.pid} (the first build" in second.stderr
    assert f"pid {holder.pid}" in told["held_by"]
    assert json.loads(run_pipeline("status", "--work", work, "--json").stdout)["held_by"] is None


HOLD = """
import sys
from pathlib import Path
from pipeline.work import held
with held(Path(sys.argv[1]), "the first build"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_an_older_index_stays_until_prune_and_serves_its_own_manifest(sample_build: Build, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    shutil.copytree(SAMPLE, newer)
    lines = (newer / "papers.jsonl").read_bytes().splitlines(keepends=True)[:-1]
    (newer / "papers.jsonl").write_bytes(b"".join(lines))
    card = json.loads((newer / "snapshot.json").read_bytes())
    card |= {"papers": len(lines), "files": {"papers.jsonl": file_sha256(newer / "papers.jsonl")}}
    (newer / "snapshot.json").write_text(json.dumps(card), encoding="utf-8")
    work = tmp_path / "work"
    shutil.copytree(sample_build.work, work, symlinks=True)

    built = run_build(newer, tmp_path, store=sample_build.store)
    older = run_pipeline("validate", "--manifest", sample_build.manifest, "--milvus-uri", work / "milvus.db", "--json")
    pruned = run_pipeline("prune", "--work", work, "--manifest", built.manifest, "--json")
    gone = run_pipeline("validate", "--manifest", sample_build.manifest, "--milvus-uri", work / "milvus.db", "--json")

    assert json.loads(older.stdout)["ok"], older.stdout
    old_name = read_manifest(sample_build.manifest).collection.name
    assert json.loads(pruned.stdout)["removed"] == [f"{old_name}.db"]
    assert gone.returncode == 6
    newest = run_pipeline("validate", "--manifest", built.manifest, "--work", work)
    assert newest.returncode == 0, newest.stderr
