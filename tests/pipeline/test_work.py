"""Pruning a work folder keeps the collection of the manifest, and never leaves nothing; one build at a time holds it."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from manifests.artifact import Artifact, BuiltCollection
from manifests.errors import IndexRefused
from pipeline.errors import WorkFolderHeld
from pipeline.work import LINK, LOCK, held, holder, prune, switch_link

OLDER, NEWER, ELSEWHERE = "papers_00000000000a", "papers_00000000000b", "papers_00000000000c"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Two collections and a dead build; the link leads to the newer."""
    built = BuiltCollection(built_at="2026-07-10T00:00:00Z", manifest_digest="0", files={}, versions={}, seconds={})
    for name in (OLDER, NEWER):
        (tmp_path / f"{name}.db").mkdir()
    (tmp_path / f".building-{NEWER}.db").mkdir()
    Artifact(collections=dict.fromkeys((OLDER, NEWER), built)).write(tmp_path)
    switch_link(tmp_path, NEWER)
    return tmp_path


@pytest.mark.parametrize("kept", [NEWER, OLDER])
def test_one_collection_is_left_and_the_link_leads_to_it(work: Path, kept: str) -> None:
    removed = prune(work, kept)

    other = NEWER if kept == OLDER else OLDER
    assert {path.name for path in removed} == {f"{other}.db", f".building-{NEWER}.db"}
    assert [path.name for path in work.glob("*papers_*")] == [f"{kept}.db"]
    assert set(Artifact.read(work).collections) == {kept}
    assert (work / LINK).resolve() == (work / f"{kept}.db").resolve()


def test_prune_between_the_two_renames_of_a_rebuild_removes_nothing(work: Path) -> None:
    (work / f"{NEWER}.db").rename(work / f".replaced-{NEWER}.db")
    before = sorted(work.rglob("*"))

    with pytest.raises(IndexRefused, match="or build this one"):
        prune(work, NEWER)

    assert sorted(work.rglob("*")) == before


def test_the_manifest_of_another_folder_removes_nothing(work: Path) -> None:
    before = sorted(work.rglob("*"))

    with pytest.raises(IndexRefused, match=rf"{ELSEWHERE}.*{OLDER}, {NEWER}") as refused:
        prune(work, ELSEWHERE)

    assert refused.value.exit_code == 6
    assert sorted(work.rglob("*")) == before
    assert set(Artifact.read(work).collections) == {OLDER, NEWER}


def test_a_build_that_starts_while_status_asks_who_holds_the_folder_is_not_refused(tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        answered = threading.Timer(0.2, fcntl.flock, (asking, fcntl.LOCK_UN))
        answered.start()

        try:
            with held(tmp_path, "build"):
                assert "build" in str(holder(tmp_path))
        finally:
            answered.join()

    assert holder(tmp_path) is None


def test_a_folder_that_stays_held_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    with (
        held(tmp_path, "build snapshots/one"),
        pytest.raises(WorkFolderHeld, match=r"pid \d+ \(build snapshots/one"),
        held(tmp_path, "another"),
    ):
        pass
