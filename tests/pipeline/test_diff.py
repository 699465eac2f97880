"""A diff names every paper that was added, removed or changed, and the fields; or says why it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manifests.contract import Manifest, write_manifest
from manifests.errors import InputRefused
from pipeline.__main__ import main
from pipeline.corpus import Corpus, tabulate
from pipeline.diff import COMPARED, diff
from pipeline.diff_text import SHOWN_MAX, diff_markdown, diff_text
from pipeline.publish import draft
from pipeline.snapshot import open_snapshot
from tests.contract.test_manifest import SPEC
from tests.pipeline.snapshots import lines, record, write_files
from tests.programs import run_pipeline

OLD = [record("a"), record("b"), record("c"), record("d", abstract="")]
NEW = [
    record("d", abstract="Now there is one.", authors=["Ada Lovelace"]),
    record("b", primary_area="Theory->Games", oral=True),
    record("e", title="Brought\x1b[31m *new* | \u202eword"),
    record("a"),
]


def snapshot(folder: Path, records: list[dict[str, Any]], **facts: Any) -> Path:
    """A snapshot folder of these records, named like the folder."""
    return write_files(folder, lines(*records), len(records), name=folder.name, **facts)


def published(place: Path, corpus: Corpus) -> tuple[Path, Manifest]:
    """A manifest of this corpus at place/manifests/NAME.json."""
    manifest = draft(corpus, SPEC)
    path = place / "manifests" / f"{corpus.snapshot.name}.json"
    write_manifest(manifest, path)
    return path, manifest


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    return snapshot(tmp_path / "snapshots" / "old", OLD), snapshot(tmp_path / "snapshots" / "new", NEW)


def test_every_difference_between_two_snapshots_is_named_by_id_and_field(both: tuple[Path, Path]) -> None:
    found = diff(*both)

    assert found.facts() == {
        "added": ["e"],
        "removed": ["c"],
        "changed": {"b": ["area", "oral"], "d": ["abstract", "authors"]},
    }
    assert found.papers is not None
    assert found.papers.area_moves == {("Theory->Learning", "Theory->Games"): 1}
    assert found.papers.fields() == {"area": 1, "oral": 1, "abstract": 1, "authors": 1}
    assert ("oral", 0, 1) in found.counts()
    assert ("without abstract", 1, 0) in found.counts()
    assert found.area_counts() == [("Theory->Games", 0, 1), ("Theory->Learning", 4, 3)]


def test_the_other_way_round_added_and_removed_change_places(both: tuple[Path, Path]) -> None:
    facts = diff(both[1], both[0]).facts()

    assert (facts["added"], facts["removed"]) == (["c"], ["e"])


@pytest.mark.parametrize("field", COMPARED)
def test_a_change_in_any_stored_field_is_found(tmp_path: Path, field: str) -> None:
    key = {"area": "primary_area"}.get(field, field)
    change = {
        "authors": ["José García", "Ada Lovelace"],
        "keywords": [],
        "spotlight": True,
        "oral": True,
        "forum_url": None,
        "pdf_url": "https://example.org/a.pdf",
    }.get(key, "other")

    found = diff(
        snapshot(tmp_path / "a", [record("x")]), snapshot(tmp_path / "b", [record("x", **{key: change}), record("y")])
    )

    assert found.facts() == {"added": ["y"], "removed": [], "changed": {"x": [field]}}


def test_the_same_papers_in_another_order_do_not_differ(tmp_path: Path) -> None:
    found = diff(snapshot(tmp_path / "a", OLD), snapshot(tmp_path / "b", OLD[::-1]))

    assert found.facts() == {"added": [], "removed": [], "changed": {}}
    assert "0 added, 0 removed, 0 changed" in diff_text(found)


def test_work_folders_and_manifests_with_papers_at_hand_give_the_same_diff(
    tmp_path: Path, both: tuple[Path, Path]
) -> None:
    expected = diff(*both).facts()
    works = [tmp_path / "builds" / name for name in ("old", "new")]
    corpora = [
        tabulate(open_snapshot(folder), work, quarantine=False) for folder, work in zip(both, works, strict=True)
    ]
    manifests = [published(tmp_path, corpus)[0] for corpus in corpora]

    assert diff(*works).facts() == expected
    assert diff(*manifests).facts() == expected
    assert diff(both[0], manifests[1]).facts() == expected


def test_a_manifest_finds_its_papers_in_the_snapshot_when_the_work_folder_has_moved_on(
    tmp_path: Path, both: tuple[Path, Path]
) -> None:
    work = tmp_path / "builds" / "old"
    manifest, _ = published(tmp_path, tabulate(open_snapshot(both[0]), work, quarantine=False))
    tabulate(open_snapshot(both[1]), work, quarantine=False)

    assert diff(manifest, both[1]).facts() == diff(*both).facts()


def test_manifests_without_papers_tell_their_counts_and_refuse_to_name_ids(tmp_path: Path) -> None:
    manifests = []
    for name, records in (("old", OLD), ("new", NEW)):
        corpus = tabulate(open_snapshot(snapshot(tmp_path / "far" / name, records)), tmp_path / name, quarantine=False)
        manifests.append(published(tmp_path / "here", corpus))

    found = diff(manifests[0][0], manifests[1][0])

    assert found.papers is None
    assert ("oral", 0, 1) in found.counts()
    assert ("digest", manifests[0][1].digest, manifests[1][1].digest) in found.pins()
    assert "old and new are not at hand" in diff_text(found)
    assert "old and new are not at hand" in diff_markdown(found)
    with pytest.raises(InputRefused, match=r"old and new are not at hand.*compare the snapshot or work folders"):
        found.facts()


def test_equal_manifests_need_no_papers_to_be_equal(tmp_path: Path) -> None:
    corpus = tabulate(open_snapshot(snapshot(tmp_path / "far" / "old", OLD)), tmp_path / "old", quarantine=False)
    manifest, _ = published(tmp_path / "here", corpus)

    assert diff(manifest, manifest).facts() == {"added": [], "removed": [], "changed": {}}


def test_the_terminal_text_holds_counts_sums_moves_and_titles_but_no_control_characters(
    both: tuple[Path, Path],
) -> None:
    text = diff_text(diff(*both))

    for line in (
        "oral                     0    1  +1",
        "1 added, 1 removed, 2 changed (area 1, oral 1, abstract 1, authors 1)",
        "area Theory->Learning → Theory->Games: 1",
        "+ e  Brought[31m *new* | word",
        "- c  Title of c",
        "~ d  Title of d (abstract, authors)",
    ):
        assert line in text.splitlines()


def test_the_changelog_entry_is_markdown_in_which_titles_stay_text(both: tuple[Path, Path]) -> None:
    entry = diff_markdown(diff(*both)).splitlines()

    assert entry[0] == "### Made for a test: old → new"
    for line in (
        "| papers | 4 | 4 |",
        "| oral | 0 | 1 |",
        "- 1 added, 1 removed, 2 changed (area 1, oral 1, abstract 1, authors 1)",
        r"- `e` Brought\[31m \*new\* \| word",
        "- `b` Title of b (area, oral)",
    ):
        assert line in entry


def test_long_lists_are_cut_in_words_and_whole_in_facts(tmp_path: Path) -> None:
    many = [record(f"n{number:03}", primary_area=f"Area {number}") for number in range(70)]
    found = diff(snapshot(tmp_path / "a", OLD), snapshot(tmp_path / "b", OLD + many))

    assert len(found.facts()["added"]) == 70
    assert diff_text(found).count("\n+ n0") == SHOWN_MAX
    assert "and 50 more (added ids: --json)" in diff_text(found)
    assert "50 other areas that changed" in diff_text(found)


@pytest.mark.parametrize("found", ["nothing", "none of them"])
def test_what_is_neither_snapshot_work_folder_nor_manifest_is_refused(tmp_path: Path, found: str) -> None:
    path = tmp_path / "other"
    if found == "none of them":
        path.mkdir()

    with pytest.raises(InputRefused, match=rf"expected a snapshot folder .* found {found}"):
        diff(path, path)


def test_the_command_prints_one_json_object(both: tuple[Path, Path]) -> None:
    done = run_pipeline("diff", *both, "--json")

    assert (done.returncode, json.loads(done.stdout)) == (0, diff(*both).facts())


@pytest.mark.parametrize(
    ("options", "start"), [([], "   "), (["--markdown"], "### Made for a test: old → new\n")], ids=["words", "markdown"]
)
def test_the_command_prints_words_or_a_changelog_entry(
    both: tuple[Path, Path], capsys: pytest.CaptureFixture[str], options: list[str], start: str
) -> None:
    assert main(["diff", *map(str, both), *options]) == 0

    printed = capsys.readouterr().out
    assert printed.startswith(start)
    assert "1 added, 1 removed, 2 changed" in printed


def test_the_command_refuses_a_missing_side_with_exit_code_3(
    tmp_path: Path, both: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(both[0]), str(tmp_path / "nowhere"), "--json"]) == 3

    printed = capsys.readouterr()
    assert printed.out == ""
    assert "found nothing" in printed.err


@pytest.mark.corpus
def test_the_real_snapshots_differ_as_is_known(shared: Path) -> None:
    found = diff(shared / "snapshots" / "icml2026", shared / "snapshots" / "icml2026-later")

    assert found.papers is not None
    assert (len(found.papers.added), len(found.papers.removed), len(found.papers.changed)) == (213, 8, 242)
    assert found.papers.fields() == {"abstract": 197, "authors": 148, "title": 38}
