"""Texts shared between programs: who embeds which, and what the others learn."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from manifests.errors import TextRefused
from pipeline import embed as stage
from pipeline.claims import CLAIMS, Claims, Share
from pipeline.embed import Policy, embed
from pipeline.embedding_store import EmbeddingStore
from pipeline.errors import EmbedStopped, StoreDamaged
from pipeline.records import TEXT_KEY
from pipeline.store_upkeep import prune_store
from tests.pipeline.embed_stand import SPEC, TITLES, Scripted, papers, raising


def keys_of(corpus: Path) -> list[str]:
    return pl.read_parquet(corpus)[TEXT_KEY].to_list()


@contextmanager
def other_program(folder: Path, keys: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A program that claims the texts, says so, and keeps them until a line comes or it is killed."""
    command = [sys.executable, "-m", "tests.pipeline.test_claims", str(folder), *keys]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        assert program.stdout.readline() == f"{len(keys)}\n"
        try:
            yield program
        finally:
            program.kill()


def test_a_text_has_one_owner_until_it_lets_go_or_is_killed(store: EmbeddingStore, corpus: Path):
    keys = keys_of(corpus)[:3]
    with Claims(store.folder) as claims:
        with other_program(store.folder, keys[:2]) as program:
            assert [claims.take(key) for key in keys] == [False, False, True]
            program.kill()
            program.wait(10)
            assert [claims.take(key) for key in keys] == [True, True, True]
        claims.let_go(keys[:1])
        with other_program(store.folder, keys[:1]):
            assert not claims.take(keys[0])


def test_texts_that_another_program_holds_are_left_to_it_and_taken_over_when_it_dies(
    store: EmbeddingStore, corpus: Path
):
    embedder = Scripted()
    with other_program(store.folder, keys_of(corpus)[:12]) as program:
        killed: list[int] = []

        def report(done: int, _total: int, note: str) -> None:
            if "another program is embedding 12 texts" in note and not killed:
                killed.append(done)
                program.kill()

        result = embed(corpus, store, embedder, Policy(), report)

    assert killed == [23]
    assert result.embedded == 35
    assert len(embedder.answered) == len(set(embedder.answered)) == 35


def test_vectors_that_another_program_stores_meanwhile_are_used_and_not_bought(
    tmp_path: Path, store: EmbeddingStore, corpus: Path, monkeypatch: pytest.MonkeyPatch
):
    def other_stores(_texts: object) -> None:
        with EmbeddingStore(tmp_path / "store", SPEC) as other:
            part = np.ones((10, 8), np.float32)
            path = store.folder / CLAIMS
            other.append(keys_of(corpus)[-10:], part, lambda name: append(path, f"{name}\n"))

    embedder = Scripted(other_stores, texts_max=1)
    monkeypatch.setattr("pipeline.claims._TEXTS_CLAIMED", 1)
    monkeypatch.setattr("pipeline.batches._TEXTS_COUNTED", 1)

    result = embed(corpus, store, embedder, Policy())

    assert (result.embedded, result.reused) == (25, 10)
    assert len(embedder.answered) == 25


def test_a_part_that_is_announced_before_it_is_there_is_learnt_when_it_comes(store: EmbeddingStore, corpus: Path):
    keys = keys_of(corpus)
    with Claims(store.folder) as claims, EmbeddingStore(store.folder.parent, SPEC) as other:
        share = Share(store, claims)
        early: list[list[str]] = []

        def announce(name: str) -> None:
            claims.announce(name)
            early.append([key for key, _ in share.mine(iter([(keys[1], "b")]))])

        other.append(keys[:1], np.ones((1, 8), np.float32), announce)

        assert early == [[keys[1]]]
        assert list(share.mine(iter([(keys[0], "a")]))) == []
        assert share.arrived == 1


def test_announcements_that_are_no_part_and_parts_that_never_came_are_passed_over(store: EmbeddingStore, corpus: Path):
    with Claims(store.folder) as claims:
        share = Share(store, claims)
        os.write(claims._descriptor, b"\xff\xfe../../etc\npart-" + b"0" * 32 + b".parquet\nhalf a li")

        assert [key for key, _ in share.mine(iter([("a" * 64, "a")]))] == ["a" * 64]


def test_a_damaged_part_of_another_program_stops_the_build(store: EmbeddingStore, corpus: Path):
    name = f"part-{'0' * 32}.parquet"
    (store.folder / name).write_bytes(b"no part")
    with Claims(store.folder) as claims:
        claims.announce(name)
        share = Share(store, claims)
        claims.announce(name)
        with pytest.raises(StoreDamaged):
            list(share.mine(iter([("a" * 64, "a")])))


def test_a_program_that_keeps_texts_and_stores_nothing_is_named_and_ends_the_wait(
    store: EmbeddingStore, corpus: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stage, "_OTHERS_S", 0.5)
    with (
        other_program(store.folder, keys_of(corpus)[:3]),
        pytest.raises(EmbedStopped, match=r"3 texts are being embedded by another program.* 32 new vectors are stored"),
    ):
        embed(corpus, store, Scripted(), Policy())

    assert embed(corpus, store, Scripted(), Policy()).embedded == 3


def test_a_refused_text_is_free_for_others_at_once(store: EmbeddingStore, tmp_path: Path):
    corpus = papers(tmp_path / "p.parquet", TITLES[:2])
    free: list[bool] = []

    def report(done: int, _total: int, _note: str) -> None:
        if done == 1:
            with other_program(store.folder, keys_of(corpus)[:1]):
                free.append(True)

    with pytest.raises(EmbedStopped, match="id-00000"):
        embed(corpus, store, Scripted(raising(TextRefused("no", position=0)), texts_max=1), Policy(), report)

    assert free


def test_prune_removes_the_announcements(store: EmbeddingStore, corpus: Path):
    embed(corpus, store, Scripted(), Policy())
    assert (store.folder / CLAIMS).stat().st_size > 0
    store.close()

    prune_store(store.folder.parent)

    assert not (store.folder / CLAIMS).exists()
    with EmbeddingStore(store.folder.parent, SPEC) as again:
        assert embed(corpus, again, Scripted(), Policy()).reused == 35


def append(path: Path, line: str) -> None:
    """As another program does; within this one, closing the file would end the claims of the test."""
    subprocess.run(["/bin/sh", "-c", 'printf %s "$1" >> "$2"', "sh", line, str(path)], check=True)


def main() -> None:
    """FOLDER KEY…: claim the texts, say how many are claimed, hold them until the input ends."""
    folder, *keys = sys.argv[1:]
    with Claims(Path(folder)) as claims:
        sys.stdout.write(f"{sum(claims.take(key) for key in keys)}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
