"""Every way in which an index may differ from its manifest; each function names all the differences of one kind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from manifests.artifact import NAME as ARTIFACT
from manifests.artifact import Artifact, file_differences
from manifests.collection import collection_facts, content_sha256, ids_sha256
from manifests.contract import Catalogue, CollectionFacts, Manifest, TextVersions
from manifests.embedding.spec import EmbeddingSpec
from manifests.errors import ArtifactDamaged, Difference
from manifests.lite import folder_digests, segments
from manifests.strict_json import canonical_json
from manifests.texts import EMBED_TEXT_VERSION, SEARCH_TEXT_VERSION

# Names of the checks, in order; a published manifest lists those that passed.
CHECKS = (
    "specs",
    "files",
    "schema",
    "rows",
    "paper_ids",
    "content",
    "hybrid_query",
)
IDS_NAMED_MAX = 20
COUNTS_NAMED_MAX = 20

Paper = Mapping[str, Any]
# paper_digest by paper id
CorpusDigests = Callable[[], Mapping[str, bytes]]


def spec_differences(manifest: Manifest, query_spec: EmbeddingSpec) -> list[Difference]:
    """Whether this version of the code would build and query the same index."""
    checks = part_differences("checks", ", ".join(CHECKS), ", ".join(manifest.checks))
    texts = TextVersions(search=SEARCH_TEXT_VERSION, embed=EMBED_TEXT_VERSION)
    expected = collection_facts(manifest.corpus.content_sha256, manifest.texts, manifest.embedding)
    found = checks + part_differences("collection name", expected.name, manifest.collection.name)
    found += part_differences("text versions", str(manifest.texts), str(texts))
    found += collection_differences(expected, manifest.collection, "manifest ")
    pinned, queried = manifest.embedding.model_dump(), query_spec.model_dump()
    found += [
        Difference(f"embedding {key} of queries", repr(pinned[key]), repr(queried[key]))
        for key in pinned
        if pinned[key] != queried[key]
    ]
    return found


def lite_file_differences(folder: Path, collection: str) -> list[Difference]:
    """Differences between the files of `folder` and artifact.json beside it; reads bytes, opens nothing.

    Raises:
        IndexRefused: artifact.json is no file.
    """
    if not folder.is_dir():
        return [Difference("index folder", f"{folder}; build it, or set the Milvus URI", "no such folder")]
    try:
        collections = Artifact.read(folder.parent).collections
    except ArtifactDamaged as damage:
        return damage.differences
    digests = {name: built.files for name, built in collections.items() if built.files}
    if collection not in digests:
        known = ", ".join(sorted(digests)) or "none"
        return [Difference(f"{ARTIFACT} in {folder.parent}", f"digests of {collection}", f"digests of {known}")]
    return file_differences(digests[collection], folder_digests(folder, Path(f"{collection}.db")))


def segment_differences(folder: Path) -> list[Difference]:
    """More than one segment, whose BM25 statistics would each be of its own papers."""
    return part_differences("segments", "1", str(len(segments(folder))))


def collection_differences(expected: CollectionFacts, found: CollectionFacts, whose: str) -> list[Difference]:
    """Fields, functions, indexes and analyzer, one by one; `whose` goes before each name."""
    differing: list[Difference] = []
    for what, wanted, given in (
        ("field", {x.name: x for x in expected.fields}, {x.name: x for x in found.fields}),
        ("function", {x.name: x for x in expected.functions}, {x.name: x for x in found.functions}),
        ("index on", {x.field: x for x in expected.indexes}, {x.field: x for x in found.indexes}),
    ):
        for key in sorted(wanted.keys() | given.keys()):
            differing += part_differences(f"{whose}{what} {key}", _shown(wanted.get(key)), _shown(given.get(key)))
    return differing + part_differences(f"{whose}analyzer", expected.analyzer, found.analyzer or "absent")


def content_differences(
    manifest: Manifest, digests: Mapping[str, bytes], corpus_digests: CorpusDigests | None
) -> list[Difference]:
    """Ids and content; with the corpus at hand also which papers."""
    pinned = manifest.corpus
    differing = part_differences("paper ids sha256", pinned.ids_sha256, ids_sha256(digests))
    differing += part_differences("content sha256", pinned.content_sha256, content_sha256(digests.items()))
    if not differing or corpus_digests is None:
        return differing
    expected = corpus_digests()
    if content_sha256(expected.items()) != pinned.content_sha256:
        return differing  # the corpus is another one; validate names that by itself
    missing, extra = sorted(expected.keys() - digests.keys()), sorted(digests.keys() - expected.keys())
    changed = sorted(key for key in expected.keys() & digests.keys() if expected[key] != digests[key])
    if missing:
        differing.append(Difference(f"paper ids, {len(missing)} missing", _named(missing), "not in the collection"))
    if extra:
        differing.append(Difference(f"paper ids, {len(extra)} extra", "not in the corpus", _named(extra)))
    if changed:
        differing.append(Difference(f"papers, {len(changed)} changed", "as in the corpus", _named(changed)))
    return differing


def catalogue_differences(catalogue: Catalogue, papers: Iterable[Paper]) -> list[Difference]:
    """What can be asked for, counted again over the stored papers."""
    areas: Counter[str] = Counter()
    types: Counter[str] = Counter()
    spotlight = oral = plain = 0
    for paper in papers:
        areas[paper["area"]] += 1
        types[paper["paper_type"]] += 1
        spotlight += paper["spotlight"]
        oral += paper["oral"]
        plain += not paper["abstract"]
    counts = {"spotlight": spotlight, "oral": oral, "without_abstract": plain}
    differing = count_differences("catalogue areas", catalogue.areas, areas)
    differing += count_differences("catalogue paper_types", catalogue.paper_types, types)
    for what, count in counts.items():
        differing += part_differences(f"catalogue {what}", str(getattr(catalogue, what)), str(count))
    return differing


def count_differences(what: str, expected: Mapping[str, int], found: Mapping[str, int]) -> list[Difference]:
    """None, or one with the counts that differ by name on either side, the first of many."""
    names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if not names:
        return []
    named = names[:COUNTS_NAMED_MAX]
    some = f", {len(named)} of {len(names)} that differ" if len(names) > len(named) else ""
    wanted, given = ({name: side[name] for name in named if name in side} for side in (expected, found))
    return [Difference(what + some, json.dumps(wanted, ensure_ascii=False), json.dumps(given, ensure_ascii=False))]


def part_differences(what: str, expected: str, found: str) -> list[Difference]:
    """None or one."""
    return [] if expected == found else [Difference(what, expected, found)]


def _shown(part: BaseModel | None) -> str:
    return canonical_json(part.model_dump()).decode() if part else "absent"


def _named(paper_ids: list[str]) -> str:
    more = len(paper_ids) - IDS_NAMED_MAX
    return ", ".join(paper_ids[:IDS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
