"""The collection spec: every field of a paper, its limits, and how Milvus stores and searches it.

`FIELDS` alone decides the limits and columns of papers, their digest, the schema and indexes of the collection, and
what the gate compares. What a field means is said where it is used: another field touches, beside its row here,

- pipeline/records.py: its key in a record, and the rule for its values
- texts.py, where it is to be searched by words
- where it can be asked for, as `area`, `paper_type` and `spotlight` can: `Catalogue` in contract.py, which counts its
  values, with pipeline/tally.py, differences.py and pipeline/diff.py; and filters, arguments and answers of `serve`
- pipeline/fetch/: where its sources have it
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from manifests.contract import CollectionFacts, FieldFacts, FunctionFacts, IndexFacts, TextVersions
from manifests.embedding.spec import EmbeddingSpec
from manifests.strict_json import canonical_json

# text: VARCHAR · texts: ARRAY<VARCHAR> · flag: BOOL
Kind = Literal["text", "texts", "flag"]

# The bound of a Milvus VARCHAR, in UTF-8 bytes (Milvus documentation, "String Field").
VARCHAR_BYTES_MAX = 65_535


class Field(NamedTuple):
    """One stored scalar field.

    `bytes_max` bounds the UTF-8 bytes of the text, or of each text of a `texts` field; `count_max` bounds how many.
    A record over a limit is a bad record, never cut. `filtered` fields carry a scalar index.
    """

    name: str
    kind: Kind
    bytes_max: int = 0
    count_max: int = 0
    filtered: bool = False


KEY = "paper_id"
FIELDS: tuple[Field, ...] = (
    Field(KEY, "text", 64),
    Field("title", "text", 2_000),
    Field("abstract", "text", 60_000),
    Field("authors", "texts", 500, 2_000),
    Field("keywords", "texts", 500, 200),
    Field("area", "text", 500, filtered=True),
    Field("paper_type", "text", 100, filtered=True),
    Field("spotlight", "flag", filtered=True),
    Field("oral", "flag", filtered=True),
    Field("forum_url", "text", 2_000),
    Field("pdf_url", "text", 2_000),
    Field("search_text", "text", VARCHAR_BYTES_MAX),
)
FIELD = {field.name: field for field in FIELDS}

SEARCH_TEXT = "search_text"
# What a record fills. The search text is made of these by a pinned version of texts.py, so it is no content of its own:
# the index stage makes it, and the gate makes it again and compares.
RECORD_FIELDS = tuple(field for field in FIELDS if field.name != SEARCH_TEXT)
_DIGESTED = tuple((field.name, field.kind) for field in RECORD_FIELDS)
DENSE = "dense"
SPARSE = "sparse"
DENSE_METRIC = "COSINE"
SPARSE_METRIC = "BM25"

UNSPECIFIED_AREA = "Unspecified"
AREA_SEPARATOR = "->"

# Lower-case word tokens on both engines: the normaliser (texts.py) has already folded everything else.
ANALYZER: dict[str, Any] = {"tokenizer": "standard", "filter": ["lowercase"]}
BM25_FUNCTION = "bm25"
BM25_PARAMS = {"bm25_k1": 1.5, "bm25_b": 0.6}  # evidence in docs/retrieval.md
HNSW_PARAMS = {"M": 32, "efConstruction": 360}


def paper_digest(paper: Mapping[str, Any]) -> bytes:
    """Sha256 (32 bytes) over the record fields of one paper in table order.

    Every text ends in NUL, which no record may hold, and every list begins with its length: two different papers
    never give the same bytes.
    """
    parts: list[str] = []
    for name, kind in _DIGESTED:
        value = paper[name]
        if kind == "text":
            parts.append(value)
        elif kind == "flag":
            parts.append("1" if value else "0")
        else:
            parts.append(str(len(value)))
            parts += value
    parts.append("")
    return hashlib.sha256("\0".join(parts).encode()).digest()


def ids_sha256(paper_ids: Iterable[str]) -> str:
    """Sha256 of the ids, sorted by their bytes and joined by newlines."""
    return hashlib.sha256(b"\n".join(sorted(paper_id.encode() for paper_id in paper_ids))).hexdigest()


def content_sha256(digests: Iterable[tuple[str, bytes]]) -> str:
    """Sha256 over the paper digests in the byte order of their ids; the order of the input does not matter."""
    whole = hashlib.sha256()
    # One string a paper instead of two and a tuple. No id holds NUL, so the order is that of the ids.
    for row in sorted(paper_id.encode() + b"\0" + digest for paper_id, digest in digests):
        whole.update(row[-whole.digest_size :])
    return whole.hexdigest()


def collection_facts(content_digest: str, texts: TextVersions, embedding: EmbeddingSpec) -> CollectionFacts:
    """The collection that holds this content, in the words of the manifest.

    Its name is `papers_` and 12 hex digits of the sha256 over content digest, text versions, embedding spec and
    collection spec: another content or another spec is another collection, and a name is never built twice
    differently.
    """
    spec = CollectionFacts(
        name="",
        fields=_field_facts(embedding.dimension),
        functions=[FunctionFacts(name=BM25_FUNCTION, type="BM25", inputs=[SEARCH_TEXT], outputs=[SPARSE])],
        analyzer=json.dumps(ANALYZER, sort_keys=True),
        indexes=_index_facts(),
    )
    identity = [content_digest, texts.model_dump(), embedding.model_dump(), spec.model_dump()]
    return spec.model_copy(update={"name": "papers_" + hashlib.sha256(canonical_json(identity)).hexdigest()[:12]})


def _field_facts(dimension: int) -> list[FieldFacts]:
    facts = [
        FieldFacts(name=DENSE, type="FLOAT_VECTOR", params={"dim": str(dimension)}),
        FieldFacts(name=SPARSE, type="SPARSE_FLOAT_VECTOR", params={}),
    ]
    for field in FIELDS:
        match field.kind:
            case "text":
                facts.append(FieldFacts(name=field.name, type="VARCHAR", params={"max_length": str(field.bytes_max)}))
            case "texts":
                params = {"max_capacity": str(field.count_max)}
                facts.append(FieldFacts(name=field.name, type="ARRAY<VARCHAR>", params=params))
            case "flag":
                facts.append(FieldFacts(name=field.name, type="BOOL", params={}))
    return sorted(facts, key=lambda field: field.name)


def _index_facts() -> list[IndexFacts]:
    facts = [
        IndexFacts(field=DENSE, type="HNSW", metric=DENSE_METRIC, params=_texts(HNSW_PARAMS)),
        IndexFacts(field=SPARSE, type="SPARSE_INVERTED_INDEX", metric=SPARSE_METRIC, params=_texts(BM25_PARAMS)),
    ]
    facts += [IndexFacts(field=field.name, type="INVERTED", metric="", params={}) for field in FIELDS if field.filtered]
    return sorted(facts, key=lambda index: index.field)


def _texts(params: Mapping[str, float]) -> dict[str, str]:
    return {name: str(value) for name, value in params.items()}
