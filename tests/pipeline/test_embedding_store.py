"""The embedding store: what it keeps, how it finds damage, and what prune may remove."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pytest

from pipeline.claims import Claims
from pipeline.embedding_store import EmbeddingStore, Part, read_part, windowed
from pipeline.errors import MachineRefused, StoreDamaged, StoreHeld
from pipeline.store_folder import lock
from pipeline.store_upkeep import prune_store, stats
from pipeline.store_verify import verify
from tests.pipeline.embed_stand import SPEC
from tests.pipeline.store_stand import cut_short, fill, key, keys, manifest, parts, rows


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


def test_an_absent_store_is_empty_and_stays_absent(tmp_path: Path):
    absent = tmp_path / "none"

    assert (verify(absent), stats(absent), prune_store(absent)) == (([], []), [], [])
    assert not absent.exists()
