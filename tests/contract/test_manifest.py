"""The manifest file: strict reading, digest, atomic writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manifests.collection import collection_facts
from manifests.contract import (
    Catalogue,
    CorpusFacts,
    Counts,
    Manifest,
    SnapshotFacts,
    TextVersions,
    read_manifest,
    write_manifest,
)
from manifests.embedding.spec import EmbeddingSpec
from manifests.errors import IndexRefused

SPEC = EmbeddingSpec(
    provider="local",
    model="m",
    dimension=4,
    document_text_type="document",
    query_text_type="query",
    weights_sha256="0" * 64,
)
TEXTS = TextVersions(search=1, embed=1)


def a_manifest(**changed: Any) -> Manifest:
    counts = Counts(lines=3, blank=1, records=2, rejected=0, papers=2, unknown_keys={"session": 2})
    facts: dict[str, Any] = {
        "snapshot": SnapshotFacts(
            name="n", title="T", source="s", url="u", licence="l", file="papers.jsonl", sha256="a" * 64, counts=counts
        ),
        "corpus": CorpusFacts(rows=2, ids_sha256="b" * 64, content_sha256="c" * 64),
        "texts": TEXTS,
        "embedding": SPEC,
        "collection": collection_facts("c" * 64, TEXTS, SPEC),
        "catalogue": Catalogue(areas={"A->B": 2}, paper_types={"regular": 2}, spotlight=1, oral=0, without_abstract=0),
        "checks": ["files"],
    }
    return Manifest.sealed(**(facts | changed))


def refusal_of(path: Path) -> str:
    with pytest.raises(IndexRefused) as refused:
        read_manifest(path)
    return str(refused.value)


def test_what_was_written_is_read_back_and_an_equal_file_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "n.json"

    assert write_manifest(a_manifest(), path)
    before = path.stat().st_mtime_ns
    assert not write_manifest(a_manifest(), path)

    assert read_manifest(path) == a_manifest()
    assert path.stat().st_mtime_ns == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_digest_depends_on_every_fact_and_on_nothing_else() -> None:
    other = a_manifest(checks=["files", "rows"])

    assert a_manifest().digest == a_manifest().digest
    assert other.digest != a_manifest().digest


def changed(change: Any) -> bytes:
    facts = json.loads(a_manifest().text())
    change(facts)
    return json.dumps(facts).encode()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        pytest.param(a_manifest().text().encode()[:-40], "content", id="truncated"),
        pytest.param(b"\xff\xfe", "content", id="not-utf8"),
        pytest.param(b"[]", "content", id="a-list"),
        pytest.param(changed(lambda facts: facts.update(extra=1)), "extra", id="unknown-key"),
        pytest.param(changed(lambda facts: facts.pop("texts")), "texts", id="missing-key"),
        pytest.param(changed(lambda facts: facts["corpus"].update(rows="2")), "corpus.rows", id="text-for-number"),
        pytest.param(changed(lambda facts: facts["corpus"].update(rows=True)), "corpus.rows", id="true-for-number"),
        pytest.param(changed(lambda facts: facts["corpus"].update(rows=3)), "digest", id="another-value"),
        pytest.param(changed(lambda facts: facts.update(format=0)), "format", id="older-format"),
        pytest.param(changed(lambda facts: facts.update(format=999)), "format", id="newer-format"),
        pytest.param(
            a_manifest().text().replace('"rows": 2', '"rows": 2, "rows": 2').encode(), "twice", id="duplicate"
        ),
        pytest.param(a_manifest().text().replace('"rows": 2', '"rows": NaN').encode(), "NaN", id="nan"),
    ],
)
def test_a_damaged_manifest_is_refused_by_name(tmp_path: Path, content: bytes, named: str) -> None:
    path = tmp_path / "n.json"
    path.write_bytes(content)

    assert named in refusal_of(path)


def test_an_absent_manifest_says_how_to_get_one(tmp_path: Path) -> None:
    assert "just build-index" in refusal_of(tmp_path / "absent.json")


def test_a_failed_write_leaves_the_old_manifest_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "n.json"
    write_manifest(a_manifest(), path)

    def disk_is_full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("manifests.files.os.fsync", disk_is_full)
    with pytest.raises(OSError, match="No space"):
        write_manifest(a_manifest(checks=[]), path)

    assert read_manifest(path) == a_manifest()
    assert list(tmp_path.iterdir()) == [path]
