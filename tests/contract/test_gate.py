"""The gate against damage: each change to an index is refused by name, as found and with its digests recorded anew."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from milvus_lite.server_manager import server_manager_instance
from pymilvus import DataType, Function, FunctionType, MilvusClient

from manifests.artifact import Artifact
from manifests.collection import ANALYZER, BM25_PARAMS, DENSE, FIELDS, KEY, SEARCH_TEXT, SPARSE
from manifests.contract import Manifest, read_manifest
from manifests.differences import catalogue_differences
from manifests.errors import Difference, IndexRefused, MilvusError
from manifests.gate import lite_folder, open_index
from manifests.lite import folder_digests
from pipeline.corpus import read_corpus
from tests.programs import Build

ALL = [*(field.name for field in FIELDS), DENSE]


@pytest.fixture
def copied(sample_build: Build, tmp_path: Path) -> Path:
    """A copy of the built work folder, to damage."""
    return Path(shutil.copytree(sample_build.work, tmp_path / "work", symlinks=True))


@pytest.fixture(scope="module")
def manifest(sample_build: Build) -> Manifest:
    return read_manifest(sample_build.manifest)


@contextmanager
def engine(work: Path) -> Iterator[MilvusClient]:
    """The index opened for writing, as a careless tool would; given back before the gate looks."""
    uri = str(work / "milvus.db")
    client = MilvusClient(uri)
    yield client
    client.close()
    server_manager_instance.release_server(uri)


def record_anew(work: Path, manifest: Manifest) -> None:
    """Let artifact.json vouch for the damaged files, so that the checks behind it prove themselves."""
    name = manifest.collection.name
    artifact = Artifact.read(work)
    built = artifact.collections[name].model_copy(
        update={"files": folder_digests(lite_folder(str(work / "milvus.db"), name), Path(f"{name}.db"))}
    )
    Artifact(collections={name: built}).write(work)


def refusal(work: Path, manifest: Manifest) -> str:
    with pytest.raises(IndexRefused) as refused:
        open_index(
            manifest,
            str(work / "milvus.db"),
            query_spec=manifest.embedding,
            corpus_digests=read_corpus(work).digests,
        ).close()
    return str(refused.value)


def first_paper(client: MilvusClient, name: str) -> dict[str, Any]:
    client.load_collection(name)
    row: dict[str, Any] = client.query(name, filter=f'{KEY} != ""', output_fields=ALL, limit=1)[0]
    return {key: row[key] for key in ALL}


def delete_one(client: MilvusClient, name: str) -> None:
    client.delete(name, ids=[first_paper(client, name)[KEY]])
    client.flush(name)


def add_one(client: MilvusClient, name: str) -> None:
    client.insert(name, [first_paper(client, name) | {KEY: "added00001"}])
    client.flush(name)


def replace_one(client: MilvusClient, name: str) -> None:
    client.upsert(name, [first_paper(client, name) | {"title": "Another title"}])
    client.flush(name)


def spoil_a_search_text(client: MilvusClient, name: str) -> None:
    client.upsert(name, [first_paper(client, name) | {SEARCH_TEXT: "other words"}])
    client.flush(name)


def drop_the_bm25_index(client: MilvusClient, name: str) -> None:
    client.release_collection(name)
    client.drop_index(name, SPARSE)


def drop_the_dense_index(client: MilvusClient, name: str) -> None:
    client.release_collection(name)
    client.drop_index(name, DENSE)


def drop_a_scalar_index(client: MilvusClient, name: str) -> None:
    client.release_collection(name)
    client.drop_index(name, "area")


def made_anew(**other: Any) -> Callable[[MilvusClient, str], None]:
    """The same papers under the same name, in a collection that differs in one thing."""

    def change(client: MilvusClient, name: str) -> None:
        client.load_collection(name)
        rows = client.query(name, filter=f'{KEY} != ""', output_fields=ALL, limit=1000)
        client.drop_collection(name)
        schema = client.create_schema(auto_id=False)
        for field in FIELDS:
            options: dict[str, Any] = {"max_length": field.bytes_max or 10}
            if field.name == SEARCH_TEXT:
                options |= {"enable_analyzer": True, "analyzer_params": other.get("analyzer", ANALYZER)}
            kind = {"text": DataType.VARCHAR, "texts": DataType.ARRAY, "flag": DataType.BOOL}[field.kind]
            if field.kind == "texts":
                options |= {"element_type": DataType.VARCHAR, "max_capacity": field.count_max}
            schema.add_field(field.name, kind, is_primary=field.name == KEY, **options)
        dimension = other.get("dimension", 384)
        schema.add_field(DENSE, DataType.FLOAT_VECTOR, dim=dimension)
        params = client.prepare_index_params()
        if other.get("function", True):
            schema.add_field(SPARSE, DataType.SPARSE_FLOAT_VECTOR)
            schema.add_function(Function("bm25", FunctionType.BM25, [SEARCH_TEXT], [SPARSE]))
            bm25 = other.get("bm25", BM25_PARAMS)
            params.add_index(SPARSE, index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params={"params": bm25})
        hnsw = {"M": 32, "efConstruction": 360}
        params.add_index(DENSE, index_type="HNSW", metric_type=other.get("metric", "COSINE"), params={"params": hnsw})
        for field in FIELDS:
            if field.filtered:
                params.add_index(field.name, index_type="INVERTED")
        client.create_collection(name, schema=schema, index_params=params)
        for segment in (rows[::2], rows[1::2]) if other.get("halved") else (rows,):
            client.insert(name, [{key: row[key] for key in ALL} | {DENSE: row[DENSE][:dimension]} for row in segment])
            client.flush(name)

    return change


DAMAGE = {
    "one-paper-deleted": (delete_one, ["rows: expected 150, found 149", "paper ids, 1 missing"]),
    "one-paper-added": (add_one, ["rows: expected 150, found 151", "paper ids, 1 extra", "added00001"]),
    "one-paper-replaced": (replace_one, ["content sha256", "papers, 1 changed"]),
    "search-text-replaced": (spoil_a_search_text, ["search text of", "found other words"]),
    "bm25-index-dropped": (drop_the_bm25_index, ["index on sparse", "absent"]),
    "dense-index-dropped": (drop_the_dense_index, ["index on dense", "absent"]),
    "scalar-index-dropped": (drop_a_scalar_index, ["index on area", "absent"]),
    "another-dimension": (made_anew(dimension=128), ["field dense", "384", "128"]),
    "bm25-function-absent": (made_anew(function=False), ["function bm25", "absent"]),
    "analyzer-changed": (made_anew(analyzer={"tokenizer": "standard"}), ["analyzer", "lowercase"]),
    "bm25-parameter-changed": (made_anew(bm25=BM25_PARAMS | {"bm25_k1": 1.9}), ["index on sparse", "1.9"]),
    "metric-changed": (made_anew(metric="IP"), ["index on dense", "COSINE", "IP"]),
    "two-segments": (made_anew(halved=True), ["1 difference", "segments: expected 1, found 2"]),
}


@pytest.mark.parametrize(("damage", "named"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_changed_collection_is_refused_by_its_files_and_by_what_changed(
    copied: Path, manifest: Manifest, damage: Callable[[MilvusClient, str], None], named: list[str]
) -> None:
    with engine(copied) as client:
        damage(client, manifest.collection.name)

    assert f"file {manifest.collection.name}.db/collections/" in refusal(copied, manifest)

    record_anew(copied, manifest)
    found = refusal(copied, manifest)
    assert [part for part in named if part not in found] == []


def test_the_undamaged_copy_opens_and_its_files_stay_as_they_were(copied: Path, manifest: Manifest) -> None:
    before = folder_digests(copied)

    index = open_index(manifest, str(copied / "milvus.db"), query_spec=manifest.embedding, engines=2)
    index.close()

    assert len(index.papers) == manifest.corpus.rows
    assert folder_digests(copied) == before


@pytest.mark.parametrize("missing", ["artifact.json", "milvus.db"])
def test_an_absent_part_is_named(copied: Path, manifest: Manifest, missing: str) -> None:
    (copied / missing).unlink()
    if missing == "milvus.db":
        shutil.rmtree(copied / f"{manifest.collection.name}.db")

    assert missing in refusal(copied, manifest)


def test_a_file_cut_short_is_named_before_the_engine_sees_it(copied: Path, manifest: Manifest) -> None:
    part = next(copied.rglob("data/*.parquet"))
    part.write_bytes(part.read_bytes()[:-100])

    assert part.name in refusal(copied, manifest)
    assert part.exists()


def test_queries_embedded_by_another_model_are_refused_with_both_values(copied: Path, manifest: Manifest) -> None:
    other = manifest.embedding.model_copy(update={"model": "another-model", "dimension": 512})

    with pytest.raises(IndexRefused) as refused:
        open_index(manifest, str(copied / "milvus.db"), query_spec=other)

    named = {difference.what for difference in refused.value.differences}
    assert named == {"embedding model of queries", "embedding dimension of queries"}
    assert "384" in str(refused.value)
    assert "512" in str(refused.value)


def test_a_sealed_manifest_that_counts_otherwise_is_refused_by_what_it_counts(copied: Path, manifest: Manifest) -> None:
    catalogue = manifest.catalogue.model_copy(update={"oral": 99, "areas": {"Elsewhere": 150}})

    found = refusal(copied, manifest.model_copy(update={"catalogue": catalogue, "checks": []}))
    assert "checks" in found

    found = refusal(copied, manifest.model_copy(update={"catalogue": catalogue}))
    assert "catalogue oral: expected 99" in found
    assert 'that differ: expected {"Elsewhere": 150}, found {"Applications' in found


def test_a_catalogue_difference_names_the_counts_that_differ_and_not_endlessly(manifest: Manifest) -> None:
    area, count = next(iter(sorted(manifest.catalogue.areas.items())))
    papers = [
        {"area": name, "paper_type": "regular", "spotlight": False, "oral": False, "abstract": "A."}
        for name, times in manifest.catalogue.areas.items()
        for _ in range(times)
    ]
    plain = {"paper_types": {"regular": len(papers)}, "spotlight": 0, "oral": 0, "without_abstract": 0}
    catalogue = manifest.catalogue.model_copy(update=plain)
    moved = [paper if paper["area"] != area else paper | {"area": "Ünknown"} for paper in papers]
    scattered = [paper | {"area": f"Area {number:03}"} for number, paper in enumerate(papers)]

    assert catalogue_differences(catalogue, papers) == []
    (one,) = catalogue_differences(catalogue, moved)
    assert (one.expected, one.found) == (f'{{"{area}": {count}}}', f'{{"Ünknown": {count}}}')
    (many,) = catalogue_differences(catalogue, scattered)
    assert many.what == f"catalogue areas, 20 of {len(papers) + len(catalogue.areas)} that differ"
    assert '"Area 000": 1, "Area 001": 1, ' in many.found
    assert len(json.loads(many.expected)) + len(json.loads(many.found)) == 20


def test_search_texts_of_another_version_are_named_and_kept_only_as_far_as_they_are_named(
    copied: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def after_the_rows(*_: object) -> list[Difference]:
        kept.append(differences_in_memory())
        return []

    monkeypatch.setattr("manifests.gate.search_text_of", lambda _: "as another stemmer makes it")
    monkeypatch.setattr("manifests.gate.content_differences", after_the_rows)

    before = differences_in_memory()
    found = refusal(copied, manifest)

    assert "21 difference(s)" in found
    assert "search text of 130 more papers" in found
    assert kept[0] - before <= 21


def differences_in_memory() -> int:
    return sum(isinstance(each, Difference) for each in gc.get_objects())


def test_files_that_this_user_may_not_read_are_named(
    copied: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(folder: Path, _: str) -> list[Difference]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))  # root may read everything

    monkeypatch.setattr("manifests.gate.lite_file_differences", denied)

    assert f"found {copied}/{manifest.collection.name}.db: Permission denied" in refusal(copied, manifest)


def test_without_a_scratch_folder_the_advice_is_to_give_one(
    copied: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(copied / "no such folder"))

    with pytest.raises(MilvusError, match="mount a tmpfs on /tmp, or set TMPDIR"):
        open_index(manifest, str(copied / "milvus.db"), query_spec=manifest.embedding)
