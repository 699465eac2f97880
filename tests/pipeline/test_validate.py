"""`validate`: what it compared, and what it could not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from manifests.contract import read_manifest
from manifests.embedding.spec import Vectors
from manifests.files import file_sha256
from pipeline.__main__ import main
from pipeline.corpus import read_corpus
from pipeline.embedding_store import EmbeddingStore
from pipeline.store_folder import lock
from tests.pipeline.snapshots import write_files
from tests.programs import SAMPLE, Build, run_build


@pytest.fixture
def index_alone(sample_build: Build, tmp_path: Path) -> tuple[str, ...]:
    """The options that validate a published index as a deployer has it: without Parquet and snapshot."""
    work = Path(
        shutil.copytree(
            sample_build.work, tmp_path / "work", symlinks=True, ignore=shutil.ignore_patterns("papers.parquet")
        )
    )
    return (
        "validate",
        "--manifest",
        str(sample_build.manifest),
        "--work",
        str(work),
        "--store",
        str(tmp_path / "none"),
    )


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_is_not_at_hand_is_told_as_not_compared(
    index_alone: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = told(capsys, *index_alone)

    assert verdict["ok"]
    assert [each["what"] for each in verdict["not_compared"]] == ["papers.parquet", "snapshot", "vectors"]
    assert main([*index_alone]) == 0
    said = capsys.readouterr().out
    assert "everything it pins" not in said
    assert "not compared: papers.parquet (" in said
    assert "snapshot (" in said


def test_with_everything_at_hand_nothing_is_left_out(sample_build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    places = ("--manifest", sample_build.manifest, "--work", sample_build.work, "--store", sample_build.store)

    verdict = told(capsys, "validate", *places)

    assert (verdict["ok"], verdict["not_compared"]) == (True, [])


def test_behind_a_manifest_that_cannot_be_read_nothing_counts_as_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text("{}")

    verdict = told(capsys, "validate", "--manifest", manifest, code=6)

    assert [each["what"] for each in verdict["not_compared"]] == ["papers.parquet", "snapshot", "collection", "vectors"]
    assert main(["validate", "--manifest", str(manifest)]) == 6
    assert "not compared: papers.parquet (" in capsys.readouterr().err


def test_a_milvus_that_does_not_answer_hides_no_difference_that_was_found(
    sample_build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"unix:{tmp_path}/nobody.sock"
    check = ("validate", "--manifest", sample_build.manifest, "--milvus-uri", nobody)
    damaged = Path(shutil.copytree(sample_build.work, tmp_path / "work", symlinks=True))
    (damaged / "papers.parquet").write_bytes(b"")

    sound = told(capsys, *check, "--work", sample_build.work, code=5)
    verdict = told(capsys, *check, "--work", damaged, code=6)

    assert (sound["ok"], sound["differences"]) == (False, [])
    assert [each["what"] for each in sound["not_compared"]] == ["collection", "vectors"]
    assert [each["what"] for each in verdict["differences"]] == [str(damaged / "papers.parquet")]
    assert main([*map(str, check), "--work", str(damaged)]) == 6
    said = capsys.readouterr().err
    assert "1 difference(s)" in said
    assert nobody in said


def test_without_the_model_the_rest_is_compared_and_the_model_is_a_difference(
    sample_build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ("--manifest", sample_build.manifest, "--work", sample_build.work, "--store", sample_build.store)

    verdict = told(capsys, "validate", *places, "--model", tmp_path / "absent", code=6)

    [difference] = verdict["differences"]
    assert difference["what"] == "embedding model of queries"
    assert str(tmp_path / "absent") in difference["found"]
    assert verdict["not_compared"] == []


def altered(sample_build: Build, folder: Path, change: Callable[[Vectors], Vectors]) -> Path:
    """A store that holds other vectors of the same texts."""
    spec = read_manifest(sample_build.manifest).embedding
    keys = list(dict.fromkeys(read_corpus(sample_build.work).text_sha256s()))
    vectors = EmbeddingStore(sample_build.store, spec, create=False).vectors(keys)
    with EmbeddingStore(folder, spec) as store:
        store.append(keys, change(vectors))
    return folder


def first_two_swapped(vectors: Vectors) -> Vectors:
    return np.concatenate([vectors[1::-1], vectors[2:]])


def test_vectors_of_other_papers_pass_the_gate_and_are_named_by_validate(
    sample_build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = run_build(SAMPLE, tmp_path, store=altered(sample_build, tmp_path / "wrong", first_two_swapped))
    check = ("validate", "--manifest", wrong.manifest, "--work", wrong.work, "--store", sample_build.store)

    verdict = told(capsys, *check, code=6)

    assert wrong.manifest.read_bytes() == sample_build.manifest.read_bytes()
    [difference] = verdict["differences"]
    papers = read_corpus(sample_build.work).scan().select("paper_id", "text_sha256").collect()
    two_texts = papers["text_sha256"].unique(maintain_order=True)[:2]
    swapped = papers.filter(papers["text_sha256"].is_in(two_texts.implode()))["paper_id"].to_list()
    assert difference["what"] == f"vectors of {len(swapped)} paper(s)"
    assert all(f"{paper_id} (cosine 0." in difference["found"] for paper_id in swapped)
    assert "remove the collection" in difference["expected"]
    [collection] = wrong.work.glob("papers_*.db")
    shutil.rmtree(collection)
    run_build(SAMPLE, tmp_path, store=sample_build.store)
    assert told(capsys, *check)["not_compared"] == []


def test_vectors_that_another_processor_rounded_are_the_same(
    sample_build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(7)
    store = altered(
        sample_build, tmp_path, lambda vectors: vectors + noise.normal(0, 0.01, vectors.shape).astype(np.float32)
    )
    places = ("--manifest", sample_build.manifest, "--work", sample_build.work, "--store", store)

    assert told(capsys, "validate", *places)["ok"]


def test_a_store_that_is_being_pruned_is_told_as_not_compared(
    sample_build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Path(shutil.copytree(sample_build.store, tmp_path / "store"))
    places = ("--work", sample_build.work, "--store", store)
    pruning = lock(store, exclusive=True)

    verdict = told(capsys, "validate", "--manifest", sample_build.manifest, *places)
    facts = told(capsys, "status", *places)
    os.close(pruning)

    assert verdict["ok"]
    assert [each["what"] for each in verdict["not_compared"]] == ["vectors"]
    assert "held by `store prune`" in verdict["not_compared"][0]["why"]
    assert "held by `store prune`" in facts["vectors"]


def test_an_absent_incomplete_or_damaged_store_is_told_as_not_compared(
    sample_build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ("validate", "--manifest", sample_build.manifest, "--work", sample_build.work)
    damaged = Path(shutil.copytree(sample_build.store, tmp_path / "damaged"))
    next(damaged.rglob("part-*")).write_bytes(b"")
    incomplete = Path(shutil.copytree(sample_build.store, tmp_path / "incomplete"))
    next(incomplete.rglob("part-*")).unlink()

    for store, why in (
        (tmp_path / "absent", "150 of 150 papers have none in"),
        (incomplete, "papers have none in"),
        (damaged, "the embedding store is damaged"),
    ):
        verdict = told(capsys, *check, "--store", store)
        assert verdict["ok"]
        [left_out] = verdict["not_compared"]
        assert left_out["what"] == "vectors"
        assert why in left_out["why"]
    assert not (tmp_path / "absent").exists()


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot with one paper less than the sample."""
    records = (SAMPLE / "papers.jsonl").read_bytes().splitlines(keepends=True)[1:]
    return write_files(tmp_path_factory.mktemp("newer"), b"".join(records), len(records))


@pytest.fixture(scope="module")
def rebuilt(sample_build: Build, newer: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The newer snapshot, built into the folder that holds the sample's build."""
    folder = tmp_path_factory.mktemp("rebuilt")
    shutil.copytree(sample_build.work, folder / "work", symlinks=True)
    shutil.copytree(sample_build.store, folder / "store")
    return run_build(newer, folder)


def test_behind_an_older_manifest_the_corpus_of_the_newer_build_is_not_compared(
    sample_build: Build, rebuilt: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    older = ("validate", "--manifest", sample_build.manifest, "--work", rebuilt.work, "--store", rebuilt.store)

    verdict = told(capsys, *older)
    with_snapshot = told(capsys, *older, "--snapshot", SAMPLE)
    newest = told(capsys, "validate", "--manifest", rebuilt.manifest, *older[3:])

    assert verdict["ok"]
    assert [each["what"] for each in verdict["not_compared"]] == ["papers.parquet", "snapshot"]
    assert "of another snapshot" in verdict["not_compared"][0]["why"]
    assert [each["what"] for each in with_snapshot["not_compared"]] == ["papers.parquet"]
    assert (newest["ok"], newest["not_compared"]) == (True, [])


def test_behind_an_older_manifest_a_damaged_corpus_is_a_difference(
    sample_build: Build, rebuilt: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Path(shutil.copytree(rebuilt.work, tmp_path / "work", symlinks=True))
    older = ("validate", "--manifest", sample_build.manifest, "--work", work, "--store", rebuilt.store)
    parquet, facts = work / "papers.parquet", work / "corpus.json"
    whole = parquet.read_bytes()

    parquet.write_bytes(whole[:-9])
    damaged = told(capsys, *older, code=6)
    pl.read_parquet(whole).tail(-1).write_parquet(parquet)
    corpus = json.loads(facts.read_bytes())
    facts.write_text(json.dumps(corpus | {"parquet_sha256": file_sha256(parquet)}), encoding="utf-8")
    edited = told(capsys, *older, code=6)

    assert [each["what"] for each in damaged["differences"]] == [str(parquet)]
    assert "papers.parquet content sha256" in [each["what"] for each in edited["differences"]]


def test_the_newest_build_of_a_folder_must_have_its_own_corpus(
    sample_build: Build, rebuilt: Build, newer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for build, other in ((sample_build, newer), (rebuilt, SAMPLE)):
        work = Path(shutil.copytree(build.work, tmp_path / other.name, symlinks=True))
        assert main(["load", str(other), "--work", str(work)]) == 0

        verdict = told(capsys, "validate", "--manifest", build.manifest, "--work", work, "--store", build.store, code=6)

        assert "papers.parquet content sha256" in [each["what"] for each in verdict["differences"]]
