"""A snapshot is opened by its digest or refused, and written whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from manifests.errors import InputRefused
from pipeline import snapshot as module
from pipeline.snapshot import CARD, GZIP, PLAIN, Provenance, open_snapshot
from pipeline.snapshot_write import write_snapshot
from tests.pipeline.snapshots import CARD_FACTS, lines, record, snapshot_of, write_files

PROVENANCE = Provenance(**CARD_FACTS)
TWO = lines(record("a"), record("b"))


def test_an_intact_snapshot_opens_with_its_card_and_lines(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, TWO, 2)

    assert (snapshot.card.name, snapshot.card.papers, snapshot.file) == ("made", 2, PLAIN)
    assert snapshot.sha256 == hashlib.sha256(TWO).hexdigest()
    assert [(number, json.loads(line)["id"]) for number, line in snapshot.lines()] == [(1, "a"), (2, "b")]


def test_a_changed_byte_is_refused_with_both_digests_and_what_to_do(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, TWO, 2)
    changed = TWO.replace(b"Title", b"title", 1)
    snapshot.path.write_bytes(changed)

    with pytest.raises(InputRefused) as refused:
        open_snapshot(tmp_path)

    message = str(refused.value)
    assert f"expected {snapshot.sha256}, found {hashlib.sha256(changed).hexdigest()}" in message
    assert "fetch the snapshot again" in message
    assert "line ends" not in message
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(("pinned", "found"), [(b"\n", b"\r\n"), (b"\r\n", b"\n")], ids=["to-crlf", "to-lf"])
def test_translated_line_ends_are_named_and_a_new_pin_is_refused(tmp_path: Path, pinned: bytes, found: bytes) -> None:
    snapshot = snapshot_of(tmp_path, TWO.replace(b"\n", pinned), 2)
    snapshot.path.write_bytes(TWO.replace(b"\n", found))

    with pytest.raises(InputRefused, match=r"Only the line ends differ .*autocrlf.* do not write the new digest"):
        open_snapshot(tmp_path)


def test_the_digest_is_checked_before_any_line_is_read(tmp_path: Path) -> None:
    write_files(tmp_path, b"not json at all", 1, files={PLAIN: "0" * 64})

    with pytest.raises(InputRefused, match="sha256 expected 0000"):
        open_snapshot(tmp_path)


def test_an_absent_folder_or_papers_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match=r"nowhere.snapshot\.json: No such file"):
        open_snapshot(tmp_path / "nowhere")

    (write_files(tmp_path / "made", TWO, 2) / PLAIN).unlink()
    with pytest.raises(InputRefused, match=r"papers\.jsonl: No such file .* restore it"):
        open_snapshot(tmp_path / "made")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"papers": "2"}, "papers: .*integer"),
        ({"papers": True}, "papers: .*integer"),
        ({"papers": -1}, "papers"),
        ({"note": "x"}, "note: Extra inputs"),
        ({"title": None}, "title: .*string"),
        ({"title": ""}, "title"),
        ({"title": "a\x1b[31m"}, "title: .*control characters"),
        ({"name": "../escape"}, "name"),
        ({"name": ".hidden"}, "name"),
        ({"name": "a" * 65}, "name"),
        ({"name": "end.\n"}, "name"),
        ({"retrieved_at": "2026-07-10T00:00:00"}, "retrieved_at: .*UTC"),
        ({"retrieved_at": "2026-07-10T02:00:00+02:00"}, "retrieved_at: .*UTC"),
        ({"retrieved_at": "yesterday"}, "retrieved_at"),
        ({"files": {}}, "files"),
        ({"files": {PLAIN: "0" * 64, GZIP: "0" * 64}}, "files"),
        ({"files": {"other.jsonl": "0" * 64}}, "files"),
        ({"files": {PLAIN: "0" * 63}}, "files"),
    ],
    ids=repr,
)
def test_a_card_that_is_not_strictly_right_is_refused_by_key(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputRefused, match=rf"(?s)does not describe a snapshot.*- {named}"):
        open_snapshot(write_files(tmp_path, TWO, 2, **change))


def test_every_key_of_the_card_is_required(tmp_path: Path) -> None:
    for key in (*CARD_FACTS, "papers", "files"):
        card = json.loads((write_files(tmp_path, TWO, 2) / CARD).read_text(encoding="utf-8"))
        del card[key]
        (tmp_path / CARD).write_text(json.dumps(card), encoding="utf-8")

        with pytest.raises(InputRefused, match=rf"- {key}: Field required"):
            open_snapshot(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"name": "a", "name": "a"}'], ids=repr)
def test_a_card_that_is_not_one_json_object_is_refused(tmp_path: Path, content: bytes) -> None:
    write_files(tmp_path, TWO, 2)
    (tmp_path / CARD).write_bytes(content)

    with pytest.raises(InputRefused, match=re.escape(CARD)):
        open_snapshot(tmp_path)


def test_lines_are_numbered_from_one_whatever_ends_them(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfone\r\n\r\n\nfour\nfive"

    for zipped in (False, True):
        found = list(snapshot_of(tmp_path / str(zipped), content, 3, zipped=zipped).lines())
        assert found == [(1, b"one"), (2, b""), (3, b""), (4, b"four"), (5, b"five")]


@pytest.mark.parametrize("bytes_max", [1, 2, 7, 64, 1 << 20])
def test_blocks_hold_whole_lines_whatever_their_size(tmp_path: Path, bytes_max: int) -> None:
    content = b"".join(b"%d%s\n" % (number, b"x" * (number % 9)) for number in range(1, 40)) + b"last"
    snapshot = snapshot_of(tmp_path, content, 40)

    blocks = list(snapshot.blocks(bytes_max))

    assert b"".join(block.text for block in blocks) == content
    assert all(block.text.endswith(b"\n") for block in blocks[:-1])
    assert all(block.text.startswith(b"%d" % block.first) for block in blocks[:-1])


def test_a_gzip_file_cut_short_before_it_was_pinned_is_refused(tmp_path: Path) -> None:
    cut = gzip.compress(TWO * 100)[:-40]
    write_files(tmp_path, TWO, 2, zipped=True, files={GZIP: hashlib.sha256(cut).hexdigest()})
    (tmp_path / GZIP).write_bytes(cut)

    with pytest.raises(InputRefused, match="not a whole gzip file"):
        list(open_snapshot(tmp_path).lines())


def test_plain_lines_under_a_gzip_name_are_refused(tmp_path: Path) -> None:
    write_files(tmp_path, TWO, 2, zipped=True, files={GZIP: hashlib.sha256(TWO).hexdigest()})
    (tmp_path / GZIP).write_bytes(TWO)

    with pytest.raises(InputRefused, match="not a whole gzip file"):
        list(open_snapshot(tmp_path).lines())


def test_an_endless_line_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_BYTES_MAX", 1_000)
    snapshot = snapshot_of(tmp_path, b"{}\n" + b"x" * 5_000, 2, zipped=True)

    with pytest.raises(InputRefused, match=r"a line longer than 1,000 bytes"):
        list(snapshot.blocks(500))


@pytest.mark.parametrize("file", [PLAIN, GZIP])
def test_a_written_snapshot_opens_and_the_same_records_give_the_same_bytes(tmp_path: Path, file: Any) -> None:
    records = [record("b", abstract="Rényi\u2028\n"), {"zz": [1], "title": "t", "id": "a"}]

    written = [write_snapshot(tmp_path / name, PROVENANCE, iter(records), file=file) for name in ("x", "y")]

    assert [json.loads(line) for _, line in open_snapshot(tmp_path / "x").lines()] == records
    assert written[0] == open_snapshot(tmp_path / "x")
    assert written[0].path.read_bytes() == written[1].path.read_bytes()
    assert next(line for number, line in written[0].lines() if number == 2).startswith(b'{"id": "a", "title"')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "no record"),
        ([{"id": "a", "title": "\ud800"}], "record 1, id 'a'"),
        ([{"id": "a"}, {"id": "b", "x": float("nan")}], "record 2, id 'b'"),
        ([{"id": "a", "x": object()}], "record 1"),
    ],
    ids=["none", "surrogate", "nan", "object"],
)
def test_records_that_cannot_be_written_leave_nothing_behind(
    tmp_path: Path, records: list[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(InputRefused, match=reason):
        write_snapshot(tmp_path / "made", PROVENANCE, records)

    assert list(tmp_path.iterdir()) == []


def test_a_source_that_fails_halfway_leaves_nothing_behind(tmp_path: Path) -> None:
    def failing() -> Any:
        yield record("a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_snapshot(tmp_path / "made", PROVENANCE, failing())

    assert list(tmp_path.iterdir()) == []


def test_an_existing_snapshot_is_never_written_over(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "made", PROVENANCE, [record("a")])

    with pytest.raises(InputRefused, match="never changed"):
        write_snapshot(tmp_path / "made", PROVENANCE, [record("b")])

    assert [json.loads(line)["id"] for _, line in open_snapshot(tmp_path / "made").lines()] == ["a"]


def test_provenance_is_judged_when_it_is_made() -> None:
    with pytest.raises(ValidationError, match="UTC"):
        Provenance(**CARD_FACTS | {"retrieved_at": "2026-07-10"})


@pytest.mark.corpus
def test_the_real_snapshots_open(shared: Path) -> None:
    papers = {name: open_snapshot(shared / "snapshots" / name).card.papers for name in ("icml2026", "icml2026-later")}

    assert papers == {"icml2026": 6341, "icml2026-later": 6546}
