"""`validate`: what it compared, and what it could not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manifests.contract import read_manifest
from manifests.embedding.spec import Vectors
from pipeline.__main__ import main
from pipeline.corpus import read_corpus
from pipeline.embedding_store import EmbeddingStore
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
    store = altered(sample_build, tmp_path, lambda vectors: vectors + noise.normal(0, 0.01, vectors.shape))
    places = ("--manifest", sample_build.manifest, "--work", sample_build.work, "--store", store)

    assert told(capsys, "validate", *places)["ok"]


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
