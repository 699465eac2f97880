"""The manifest: strict reading, canonical digest, atomic writing.

`manifests/NAME.json` holds nothing that depends on the clock or the machine, so the same snapshot and specs give
the same bytes anywhere. What does depend on them lives beside the index (artifact.py).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from manifests.embedding.spec import EmbeddingSpec
from manifests.errors import Difference, IndexRefused
from manifests.files import write_atomically
from manifests.strict_json import canonical_json, unique_keys

FORMAT: Literal[1] = 1


class _Part(BaseModel):
    """Strict JSON: a missing, extra or mistyped key is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Counts(_Part):
    """What happened to every line of the snapshot: records = papers + rejected, lines = records + blank."""

    lines: int
    blank: int
    records: int
    rejected: int
    papers: int
    unknown_keys: dict[str, int]


class SnapshotFacts(_Part):
    """The source copy the corpus came from; `sha256` is of the papers file's bytes."""

    name: str
    title: str
    source: str
    url: str
    licence: str
    file: str
    sha256: str
    counts: Counts


class CorpusFacts(_Part):
    """All papers as rows."""

    rows: int
    ids_sha256: str
    content_sha256: str


class TextVersions(_Part):
    """Versions of the two texts of a paper."""

    search: int
    embed: int


class FieldFacts(_Part):
    """A field as Milvus declares it; `params` as strings."""

    name: str
    type: str
    params: dict[str, str]


class FunctionFacts(_Part):
    """A function of the collection."""

    name: str
    type: str
    inputs: list[str]
    outputs: list[str]


class IndexFacts(_Part):
    """An index with its metric and the parameters really in force; both as strings, empty where there is none."""

    field: str
    type: str
    metric: str
    params: dict[str, str]


class CollectionFacts(_Part):
    """Everything Milvus must describe alike on both sides."""

    name: str
    fields: list[FieldFacts]
    functions: list[FunctionFacts]
    analyzer: str
    indexes: list[IndexFacts]


class Catalogue(_Part):
    """Values that can be asked for, with the number of papers each covers."""

    areas: dict[str, int]
    paper_types: dict[str, int]
    spotlight: int
    oral: int
    without_abstract: int


class Manifest(_Part):
    """The facts of one published index."""

    format: Literal[1]
    snapshot: SnapshotFacts
    corpus: CorpusFacts
    texts: TextVersions
    embedding: EmbeddingSpec
    collection: CollectionFacts
    catalogue: Catalogue
    checks: list[str]
    digest: str

    @classmethod
    def sealed(cls, **facts: Any) -> Self:
        """A manifest over `facts` with its digest."""
        draft = cls(format=FORMAT, digest="", **facts)
        return draft.model_copy(update={"digest": draft.computed_digest})

    @property
    def computed_digest(self) -> str:
        """Sha256 of the canonical JSON without `digest` itself."""
        facts = self.model_dump(exclude={"digest"})
        return hashlib.sha256(canonical_json(facts)).hexdigest()

    def text(self) -> str:
        """The bytes of the published file: indented for review, keys sorted, one last newline."""
        return json.dumps(self.model_dump(), ensure_ascii=False, indent=2, sort_keys=True) + "\n"


def read_manifest(path: Path) -> Manifest:
    """The manifest at `path`.

    Raises:
        IndexRefused: absent, not UTF-8 JSON, a duplicate, missing, extra or mistyped key, another format version,
            or a digest that is not that of the content.
    """
    subject = f"manifest {path}"
    try:
        found = json.loads(path.read_bytes().decode(), object_pairs_hook=unique_keys, parse_constant=_no_constant)
        canonical_json(found)  # lone surrogates are no text: refused here, not when they are printed
    except OSError as error:
        raise IndexRefused(
            subject,
            [Difference("file", "a readable manifest; build one with `just build-index`", str(error.strerror))],
        ) from error
    except (ValueError, RecursionError) as error:
        raise IndexRefused(
            subject, [Difference("content", "one strict JSON object; restore it or build again", str(error))]
        ) from error
    if isinstance(found, dict) and (type(found.get("format")) is not int or found["format"] != FORMAT):
        raise IndexRefused(
            subject,
            [Difference("format", f"{FORMAT}; build again with this version", repr(found.get("format")))],
        )
    try:
        manifest = Manifest.model_validate(found)
    except ValidationError as error:
        raise IndexRefused(
            subject,
            [
                Difference(".".join(map(str, problem["loc"])) or "content", *_expected_and_found(dict(problem)))
                for problem in error.errors()
            ],
        ) from error
    if manifest.digest != manifest.computed_digest:
        raise IndexRefused(subject, [Difference("digest", manifest.digest, manifest.computed_digest)])
    return manifest


def write_manifest(manifest: Manifest, path: Path) -> bool:
    """Publish `manifest` at `path` atomically; False when the file already holds exactly these bytes."""
    content = manifest.text().encode()
    if path.is_file() and path.read_bytes() == content:
        return False
    write_atomically(path, content)
    return True


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _expected_and_found(problem: dict[str, Any]) -> tuple[str, str]:
    """One fault of the schema in words."""
    match problem["type"]:
        case "extra_forbidden":
            return "no such key", _shown(problem["input"])
        case "missing":
            return "the key", "no such key"
        case _:
            return str(problem["msg"]), _shown(problem["input"])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."  # noqa: PLR2004 -- one terminal line
