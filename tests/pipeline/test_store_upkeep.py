"""`store prune`, `verify` and `stats`: what is damaged, what is needed, and what may go."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from manifests.errors import InputRefused
from pipeline.embedding_store import EmbeddingStore, write_part
from pipeline.errors import SpecDamaged, StoreDamaged
from pipeline.store_upkeep import prune_store, stats
from pipeline.store_verify import verify
from tests.pipeline.embed_stand import SPEC
from tests.pipeline.store_stand import cut_short, fill, keys, manifest, parts, rows
from tests.programs import Build, run_pipeline


def test_a_part_that_is_gone_is_missed_by_the_manifest_that_needs_it(tmp_path: Path):
    fill(tmp_path, range(4), range(4, 6))
    published, corpus = manifest(tmp_path / "m.json", "d"), tmp_path / "papers.parquet"
    with EmbeddingStore(tmp_path, SPEC) as store:
        store.reference(published, "d", keys(range(6)))
    assert verify(tmp_path) == ([], [])
    next(part for part in parts(tmp_path) if len(pl.read_parquet(part)) == 4).unlink()

    found = verify(tmp_path)

    assert (found.ok, found.damaged, found.incomplete) == (False, [], [(str(published), 6, 4)])
    assert "pipeline embed --work" in found.incomplete[0].reason
    fill(tmp_path, range(4))
    with EmbeddingStore(tmp_path, SPEC) as store:
        store.reference(corpus, "d", keys(range(8)))
    unfinished = verify(tmp_path)
    assert (unfinished.ok, unfinished.incomplete) == (True, [(str(corpus), 8, 2)])
    assert "its build is not finished" in unfinished.incomplete[0].reason


def emptied_spec(spec: Path) -> None:
    spec.write_bytes(b"")


def other_spec(spec: Path) -> None:
    spec.write_text(spec.read_text().replace("scripted", "other"))


@pytest.mark.parametrize("damage", [emptied_spec, other_spec, Path.unlink], ids=["emptied", "another's", "absent"])
def test_a_spec_file_that_is_not_its_folders_is_named_by_all_and_its_vectors_left_alone(tmp_path: Path, damage):
    fill(tmp_path, range(4))
    spec = tmp_path / SPEC.fingerprint / "spec.json"
    damage(spec)

    found = verify(tmp_path)

    assert (found.ok, [each.path for each in found.damaged]) == (False, [spec])
    for count in (stats, prune_store):
        with pytest.raises(SpecDamaged, match=str(spec)) as refusal:
            count(tmp_path)
        assert refusal.value.exit_code == 6
    assert len(parts(tmp_path)) == 1
    spec.unlink(missing_ok=True)
    fill(tmp_path, range(4))
    assert verify(tmp_path) == ([], [])


def test_prune_keeps_what_a_published_manifest_needs_and_merges_it(tmp_path: Path):
    fill(tmp_path, range(4), range(4, 8), range(8, 12))
    published = manifest(tmp_path / "m.json", "d")
    with EmbeddingStore(tmp_path, SPEC) as store:
        store.reference(published, "d", keys([1, 5, 9]))

    [planned] = prune_store(tmp_path, dry_run=True)
    assert len(parts(tmp_path)) == 3
    [pruned] = prune_store(tmp_path)

    assert (planned.kept, planned.removed, planned.parts) == (pruned.kept, pruned.removed, pruned.parts) == (3, 9, 1)
    assert pruned.needed_by == [str(published)]
    assert len(parts(tmp_path)) == 1
    with EmbeddingStore(tmp_path, SPEC) as store:
        assert np.array_equal(store.vectors(keys([9, 1, 5])), rows([9, 1, 5]))
        assert store.missing(keys([0])) == keys([0])
    [again] = prune_store(tmp_path)
    assert (again.kept, again.removed) == (3, 0)


def test_prune_keeps_the_vectors_of_a_manifest_that_is_missing_until_it_is_forgotten(tmp_path: Path):
    store = tmp_path / "store"
    fill(store, range(4))
    published = manifest(tmp_path / "published" / "m.json", "d")
    with EmbeddingStore(store, SPEC) as opened:
        opened.reference(published, "older", keys([0, 1]))
        opened.reference(published, "d", keys([1, 2]))
    published.parent.rename(tmp_path / "elsewhere")

    [planned] = prune_store(store, dry_run=True)
    [kept] = prune_store(store)
    [planned_away] = prune_store(store, dry_run=True, forget=[published])
    [forgotten] = prune_store(store, forget=[published.parent])

    for found in (planned, kept):
        assert (found.kept, found.removed, found.lost, found.needed_by) == (3, 1, 0, [])
        assert [(each.path, each.texts) for each in found.missing] == [(str(published), 3)]
    assert (planned_away.kept, planned_away.removed, planned_away.missing) == (0, 3, [])
    assert (forgotten.kept, forgotten.removed, forgotten.missing) == (0, 3, [])
    assert parts(store) == []


def test_only_what_is_missing_can_be_forgotten(tmp_path: Path):
    fill(tmp_path, range(4))
    published, gone = manifest(tmp_path / "m.json", "d"), tmp_path / "gone.json"
    with EmbeddingStore(tmp_path, SPEC) as store:
        store.reference(published, "d", keys([0, 1]))
        store.reference(gone, "e", keys([2, 3]))

    for path in (published, tmp_path / "mistyped.json"):
        with pytest.raises(InputRefused, match=f"--forget {path}") as refusal:
            prune_store(tmp_path, forget=[gone, path])
        assert str(gone) in str(refusal.value)
    assert len(parts(tmp_path)) == 1
    [pruned] = prune_store(tmp_path, forget=[tmp_path])
    assert (pruned.kept, pruned.removed, pruned.needed_by) == (2, 2, [str(published)])


def test_going_back_to_an_older_manifest_keeps_its_vectors(tmp_path: Path):
    fill(tmp_path, range(6))
    published = manifest(tmp_path / "m.json", "older")
    with EmbeddingStore(tmp_path, SPEC) as store:
        store.reference(published, "older", keys(range(4)))
        store.reference(published, "newer", keys(range(2, 6)))

    [pruned] = prune_store(tmp_path)

    assert pruned.kept == 4
    with EmbeddingStore(tmp_path, SPEC) as store:
        assert store.missing(keys(range(6))) == keys([4, 5])


def test_a_manifest_that_cannot_be_read_keeps_everything_it_ever_needed(tmp_path: Path):
    fill(tmp_path, range(6))
    published = manifest(tmp_path / "m.json", "older")
    with EmbeddingStore(tmp_path, SPEC) as store:
        store.reference(published, "older", keys(range(4)))
        store.reference(published, "newer", keys(range(2, 6)))
    published.write_text("{")

    [pruned] = prune_store(tmp_path)

    assert pruned.kept == 6


def test_a_reference_that_cannot_be_read_is_named_and_stops_prune(tmp_path: Path):
    fill(tmp_path, range(4))
    with EmbeddingStore(tmp_path, SPEC) as store:
        store.reference(manifest(tmp_path / "m.json", "d"), "d", keys(range(4)))
    [reference] = (tmp_path / SPEC.fingerprint / "references").iterdir()
    reference.write_bytes(b"nonsense")

    assert [damage.path for damage in verify(tmp_path).damaged] == [reference]
    with pytest.raises(StoreDamaged, match=reference.name):
        prune_store(tmp_path)
    assert len(parts(tmp_path)) == 1


def test_large_needed_parts_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.store_upkeep.MERGED_BYTES", 10 * 4 * SPEC.dimension)
    fill(tmp_path, range(8), [8], [9], range(10, 18))
    large = [part for part in parts(tmp_path) if len(pl.read_parquet(part)) == 8]
    with EmbeddingStore(tmp_path, SPEC) as store:
        store.reference(manifest(tmp_path / "m.json", "d"), "d", keys(range(18)))

    prune_store(tmp_path)

    assert set(large) < set(parts(tmp_path))
    assert len(parts(tmp_path)) == 3


def test_a_prune_that_was_killed_after_merging_leaves_a_whole_store(tmp_path: Path):
    fill(tmp_path, range(4), range(4, 8))
    write_part(tmp_path / SPEC.fingerprint, keys(range(8)), rows(range(8)))

    with EmbeddingStore(tmp_path, SPEC) as store:
        assert np.array_equal(store.vectors(keys(range(8))), rows(range(8)))
        store.reference(manifest(tmp_path / "m.json", "d"), "d", keys(range(8)))
    [pruned] = prune_store(tmp_path)
    assert (pruned.kept, pruned.removed, pruned.parts) == (8, 8, 1)


def test_stats_tell_parts_vectors_and_what_needs_them(tmp_path: Path):
    fill(tmp_path, range(4), range(4, 6))
    published = manifest(tmp_path / "m.json", "d")
    with EmbeddingStore(tmp_path, SPEC) as store:
        store.reference(published, "d", keys([1, 2]))

    [found] = stats(tmp_path)

    assert (found.spec, found.parts, found.vectors, found.referenced) == (str(SPEC), 2, 6, 2)
    assert found.needed_by == [str(published)]
    assert found.bytes == sum(part.stat().st_size for part in parts(tmp_path))


def test_the_command_line_verifies_mends_and_counts(tmp_path: Path):
    store = tmp_path / "store"
    fill(store, range(4), range(4, 8))
    with EmbeddingStore(store, SPEC) as opened:
        opened.reference(manifest(tmp_path / "m.json", "d"), "d", keys(range(8)))
    broken = parts(store)[0]
    cut_short(broken)

    found = run_pipeline("store", "verify", "--store", store, "--json")
    mended = run_pipeline("store", "prune", "--store", store, "--json")
    lost = run_pipeline("store", "verify", "--store", store)
    counted = run_pipeline("store", "stats", "--store", store, "--json")

    assert (found.returncode, list(json.loads(found.stdout)["damaged"])) == (6, [str(broken)])
    assert json.loads(mended.stdout)["specs"][0]["damaged"] == [broken.name]
    assert (mended.returncode, lost.returncode, counted.returncode) == (0, 6, 0)
    assert f"{tmp_path / 'm.json'}: 4 of the 8 texts it needs have no vector here" in lost.stdout
    assert json.loads(counted.stdout)["specs"][0]["vectors"] == 4
    fill(store, range(8))
    assert run_pipeline("store", "verify", "--store", store).stdout == "every part is sound\n"
    with EmbeddingStore(store, SPEC):
        held = run_pipeline("store", "prune", "--store", store)
    assert held.returncode == 7
    assert "held by a build" in held.stderr


def test_what_prune_says_of_a_damaged_reference_mends_it_and_loses_no_vector(sample_build: Build, tmp_path: Path):
    folder = Path(shutil.copytree(sample_build.work.parent, tmp_path / "build", symlinks=True))
    store = folder / "store"
    places = ("--work", folder / "work", "--manifest", folder / "manifest.json", "--store", store)
    mended = run_pipeline("index", *places)  # the copy's own manifest is listed
    assert mended.returncode == 0, mended.stderr
    for reference in store.glob("*/references/*.parquet"):
        reference.write_bytes(b"nonsense")

    refused = run_pipeline("store", "prune", "--store", store)
    for reference in store.glob("*/references/*.parquet"):
        reference.unlink()
    mended = run_pipeline("index", *places)
    pruned = run_pipeline("store", "prune", "--store", store, "--json")

    assert refused.returncode == 6
    assert "python -m pipeline index --work" in refused.stderr
    assert "set them aside" not in refused.stderr  # that is what was run
    assert (mended.returncode, pruned.returncode) == (0, 0), mended.stderr + pruned.stderr
    [spec] = json.loads(pruned.stdout)["specs"]
    assert (spec["kept"], spec["removed"], spec["lost"]) == (148, 0, 0)


def test_a_build_that_moved_keeps_its_vectors_and_prune_names_the_files_it_missed(sample_build: Build, tmp_path: Path):
    folder = Path(shutil.copytree(sample_build.work.parent, tmp_path / "build", symlinks=True))
    moved, store = tmp_path / "moved", tmp_path / "store"
    (folder / "store").rename(store)
    places = ("--work", folder / "work", "--manifest", folder / "manifest.json", "--store", store)
    listed = run_pipeline("index", *places)
    folder.rename(moved)

    pruned = run_pipeline("store", "prune", "--store", store, "--json")
    said = run_pipeline("store", "prune", "--store", store, "--dry-run")
    counted = run_pipeline("store", "stats", "--store", store)
    again = run_pipeline("index", "--work", moved / "work", "--manifest", moved / "manifest.json", "--store", store)
    forgotten = run_pipeline("store", "prune", "--store", store, "--forget", folder, "--json")

    assert (listed.returncode, again.returncode) == (0, 0), listed.stderr + again.stderr
    [spec] = json.loads(pruned.stdout)["specs"]
    assert spec["removed"] == 0
    assert str(folder / "manifest.json") in [each["path"] for each in spec["missing"]]
    for told in (said, counted):
        assert str(folder / "manifest.json") in told.stdout
        assert "store prune --forget PATH" in told.stdout
    [left] = json.loads(forgotten.stdout)["specs"]
    assert (left["kept"], left["removed"]) == (spec["kept"], 0)
    assert str(moved / "manifest.json") in left["needed_by"]
