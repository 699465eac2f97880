"""The embedding store: what it keeps, how it finds damage, and what prune may remove."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pytest

from manifests.errors import InputRefused
from pipeline.claims import Claims
from pipeline.embedding_store import EmbeddingStore, Part, read_part, windowed, write_part
from pipeline.errors import MachineRefused, SpecDamaged, StoreDamaged, StoreHeld
from pipeline.store_folder import lock
from pipeline.store_upkeep import prune_store, stats
from pipeline.store_verify import verify
from tests.pipeline.embed_stand import SPEC, vector_of
from tests.programs import Build, run_pipeline


def key(number: int) -> str:
    return hashlib.sha256(f"text {number}".encode()).hexdigest()


def keys(numbers: Sequence[int]) -> list[str]:
    return [key(number) for number in numbers]


def rows(numbers: Sequence[int]) -> np.ndarray:
    return np.stack([vector_of(f"text {number}") for number in numbers])


def fill(folder: Path, *parts: Sequence[int]) -> None:
    with EmbeddingStore(folder, SPEC) as store:
        for numbers in parts:
            store.append(keys(numbers), rows(numbers))


def manifest(path: Path, digest: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"digest": digest}), encoding="utf-8")
    return path


def parts(folder: Path) -> list[Path]:
    return sorted((folder / SPEC.fingerprint).glob("part-*.parquet"))


def test_vectors_come_back_in_the_order_asked_whatever_part_holds_them(tmp_path: Path):
    fill(tmp_path, range(5), range(5, 9))

    with EmbeddingStore(tmp_path, SPEC) as store:
        order = [7, 0, 3, 8, 0]
        assert np.array_equal(store.vectors(keys(order)), rows(order))
        assert store.missing(keys([3, 9, 10, 9])) == keys([9, 10])


def test_a_part_that_another_build_adds_is_seen(tmp_path: Path):
    with EmbeddingStore(tmp_path, SPEC) as store:
        assert store.missing(keys([1])) == keys([1])
        fill(tmp_path, [1])
        assert store.missing(keys([1])) == []


def test_the_same_batch_twice_is_one_part(tmp_path: Path):
    fill(tmp_path, range(3))
    fill(tmp_path, range(3))

    assert len(parts(tmp_path)) == 1


def test_specs_never_share_a_vector(tmp_path: Path):
    fill(tmp_path, range(3))
    other = SPEC.model_copy(update={"model": "scripted-2"})

    with EmbeddingStore(tmp_path, other) as store:
        assert store.missing(keys(range(3))) == keys(range(3))


def test_a_text_without_vector_is_an_error_that_names_the_command(tmp_path: Path):
    fill(tmp_path, [1])

    with EmbeddingStore(tmp_path, SPEC) as store, pytest.raises(Exception, match=key(2)) as refusal:
        store.vectors(keys([1, 2]))
    assert "python -m pipeline embed" in str(refusal.value)


def test_a_read_only_store_writes_nothing_even_where_there_is_none(tmp_path: Path):
    with EmbeddingStore(tmp_path / "none", SPEC, create=False) as store:
        assert store.missing(keys([1])) == keys([1])
    assert list(tmp_path.iterdir()) == []


def cut_short(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-20])


def one_byte(part: Path) -> None:
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


def emptied(part: Path) -> None:
    part.write_bytes(b"")


def rewritten(part: Path, frame: pl.DataFrame) -> None:
    """Other content under its own right name: what only the checks behind the name can find."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    name = f"part-{hashlib.sha256(buffer.getvalue()).hexdigest()[:32]}.parquet"
    part.with_name(name).write_bytes(buffer.getvalue())
    part.unlink()


def other_columns(part: Path) -> None:
    rewritten(part, pl.read_parquet(part).rename({"vector": "dense"}))


def other_dimension(part: Path) -> None:
    frame = pl.DataFrame({"text_sha256": keys([0])}).with_columns(
        vector=pl.Series([[1.0] * 7], dtype=pl.Array(pl.Float32, 7))
    )
    rewritten(part, frame)


def with_value(value: float):
    def damage(part: Path) -> None:
        vectors = np.full((1, 8), value, np.float32)
        frame = pl.DataFrame({"text_sha256": keys([0])}).with_columns(
            vector=pl.Series(vectors, dtype=pl.Array(pl.Float32, 8))
        )
        rewritten(part, frame)

    return damage


def not_parquet(part: Path) -> None:
    name = f"part-{hashlib.sha256(b'nonsense').hexdigest()[:32]}.parquet"
    part.with_name(name).write_bytes(b"nonsense")
    part.unlink()


DAMAGES = {
    "cut short": cut_short,
    "one byte": one_byte,
    "emptied": emptied,
    "other columns": other_columns,
    "other dimension": other_dimension,
    "not finite": with_value(float("nan")),
    "zero": with_value(0.0),
    "not Parquet": not_parquet,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_part_is_named_stops_a_build_and_is_set_aside_by_prune(tmp_path: Path, damage):
    fill(tmp_path, [0], range(1, 6))
    published = manifest(tmp_path / "m.json", "d")
    with EmbeddingStore(tmp_path, SPEC) as store:
        store.reference(published, "d", keys(range(6)))
    victim = next(part for part in parts(tmp_path) if len(pl.read_parquet(part)) == 1)
    before = set(parts(tmp_path))
    damage(victim)
    broken = next(iter(set(parts(tmp_path)) - before), victim)

    found = verify(tmp_path)
    assert [each.path for each in found.damaged] == [broken]
    assert found.incomplete == [(str(published), 6, 1)]
    with EmbeddingStore(tmp_path, SPEC) as store, pytest.raises(StoreDamaged, match=broken.name) as stop:
        store.missing(keys([1]))
    assert stop.value.exit_code == 6
    assert "store verify" in str(stop.value)
    assert "store prune" in str(stop.value)

    [pruned] = prune_store(tmp_path)
    assert (pruned.damaged, pruned.kept, pruned.lost) == ([broken.name], 5, 1)
    assert (tmp_path / SPEC.fingerprint / "damaged" / broken.name).exists()
    assert verify(tmp_path).damaged == []
    with EmbeddingStore(tmp_path, SPEC) as store:
        assert store.missing(keys(range(6))) == keys([0])
        assert np.array_equal(store.vectors(keys(range(1, 6))), rows(range(1, 6)))


def test_a_part_damaged_after_it_was_scanned_is_still_never_served(tmp_path: Path):
    fill(tmp_path, range(4))

    with EmbeddingStore(tmp_path, SPEC) as store:
        assert store.missing(keys(range(4))) == []
        one_byte(parts(tmp_path)[0])
        with pytest.raises(StoreDamaged):
            store.vectors(keys([2]))


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


def test_prune_and_builds_keep_each_other_out(tmp_path: Path):
    fill(tmp_path, range(3))

    with EmbeddingStore(tmp_path, SPEC), EmbeddingStore(tmp_path, SPEC):
        with pytest.raises(StoreHeld, match="held by a build") as held:
            prune_store(tmp_path)
        assert verify(tmp_path).ok
    assert held.value.exit_code == 7
    assert prune_store(tmp_path)[0].removed == 3


def test_prune_and_readers_keep_each_other_out_also_where_nothing_may_be_written(tmp_path: Path):
    fill(tmp_path, range(3))
    (tmp_path / ".lock").chmod(0o444)

    with (
        EmbeddingStore(tmp_path, SPEC, create=False) as reader,
        pytest.raises(StoreHeld, match="held by a build or another store command"),
    ):
        prune_store(tmp_path)
    holding = lock(tmp_path, exclusive=True)
    with pytest.raises(StoreHeld, match="held by `store prune`"):
        EmbeddingStore(tmp_path, SPEC, create=False)
    os.close(holding)

    assert reader.missing(keys(range(3))) == []
    assert prune_store(tmp_path)[0].removed == 3


def test_a_store_that_nobody_here_wrote_to_is_read_without_a_lock(tmp_path: Path):
    fill(tmp_path, range(3))
    (tmp_path / ".lock").unlink()

    with EmbeddingStore(tmp_path, SPEC, create=False) as store:
        assert store.missing(keys(range(3))) == []
    assert verify(tmp_path).ok
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize("create", [True, False], ids=["build", "reader"])
def test_a_file_system_without_locks_is_refused_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: bool
):
    fill(tmp_path, range(3))

    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", without_locks)
    monkeypatch.setattr("fcntl.lockf", without_locks)

    with pytest.raises(MachineRefused, match="No locks available; put --store on a local disk"):
        EmbeddingStore(tmp_path, SPEC, create=create)
    with (
        Claims(tmp_path / SPEC.fingerprint) as claims,
        pytest.raises(MachineRefused, match="No locks available; put --store on a local disk"),
    ):
        claims.take(key(1))
    assert [file.path for file in psutil.Process().open_files() if Path(file.path).is_relative_to(tmp_path)] == []


def test_texts_that_are_known_cost_no_look_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fill(tmp_path, range(5))
    with EmbeddingStore(tmp_path, SPEC) as store:
        assert store.missing(keys(range(5))) == []

        def look(*_: object) -> None:
            raise AssertionError("the folder was listed")

        monkeypatch.setattr(Path, "glob", look)
        assert store.missing(keys([3, 1])) == []
        assert np.array_equal(store.vectors(keys([3, 1])), rows([3, 1]))


def test_vectors_that_do_not_fit_in_memory_at_once_are_read_in_windows_each_part_once_in_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fill(tmp_path, range(0, 10, 2), range(1, 10, 2))
    monkeypatch.setattr("pipeline.embedding_store.WINDOW_BYTES", 4 * 8 * 6)
    read: list[Path] = []

    def noted(path: Path, dimension: int) -> Part:
        read.append(path)
        return read_part(path, dimension)

    with EmbeddingStore(tmp_path, SPEC) as store:
        store.missing(keys(range(10)))
        monkeypatch.setattr("pipeline.embedding_store.read_part", noted)
        pages = list(windowed(store.vectors, keys(range(10)), SPEC.dimension, 2))

    assert [len(page) for page in pages] == [2, 2, 2, 2, 2]
    assert np.array_equal(np.concatenate(pages), rows(range(10)))
    assert sorted(read) == sorted(2 * parts(tmp_path))


def test_what_a_killed_writer_left_is_cleared_and_never_read(tmp_path: Path):
    fill(tmp_path, range(3))
    folder = tmp_path / SPEC.fingerprint
    (folder / ".part-0123.parquet-abcd").write_bytes(b"half")
    with EmbeddingStore(tmp_path, SPEC) as store:
        store.reference(manifest(tmp_path / "m.json", "d"), "d", keys(range(3)))
        assert store.missing(keys(range(3))) == []

    prune_store(tmp_path)

    assert not list(folder.glob(".part-*"))


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


def test_an_absent_store_is_empty_and_stays_absent(tmp_path: Path):
    absent = tmp_path / "none"

    assert (verify(absent), stats(absent), prune_store(absent)) == (([], []), [], [])
    assert not absent.exists()


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
