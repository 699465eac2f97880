"""Pruning a work folder keeps the collection of the manifest, and never leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests.artifact import Artifact, BuiltCollection
from manifests.errors import IndexRefused
from pipeline.work import LINK, prune, switch_link

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
