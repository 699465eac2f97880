"""Milvus, embedded or on a server, by one code path; the only module that knows its SDK.

Only features proven on Milvus Lite and documented for Milvus >= 2.5 and Zilliz Cloud are used. Whatever the SDK
raises, its own exceptions or raw gRPC ones, leaves here as `MilvusError` or `MilvusTimeout`.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

# gRPC's C core writes keep-alive noise to standard error unless told before it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from pymilvus import AnnSearchRequest, DataType, Function, FunctionType, MilvusClient, RRFRanker
from pymilvus.exceptions import MilvusException

from manifests.collection import (
    ANALYZER,
    BM25_FUNCTION,
    BM25_PARAMS,
    DENSE,
    DENSE_METRIC,
    FIELDS,
    HNSW_PARAMS,
    KEY,
    SEARCH_TEXT,
    SPARSE,
    SPARSE_METRIC,
)
from manifests.contract import CollectionFacts, FieldFacts, FunctionFacts, IndexFacts
from manifests.embedding.spec import Vectors
from manifests.errors import MilvusError, MilvusTimeout

logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs what it then raises

# Rows a page of a full read; the SDK refuses more than 16,384, a server answers at most 64 MB.
PAGE_ROWS = 2_000
# Candidates of a filtered dense request: all of a collection of this size, at some milliseconds a query.
FILTERED_EF = 16_384
CALL_TIMEOUT_S = 60.0
_SEAL_TIMEOUT_S = 3_600.0

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def _translating(uri: str) -> Iterator[None]:
    """The SDK's failures inside it, as ours."""
    try:
        yield
    except MilvusException as error:
        raise _ours(error, uri, error.message or f"code {error.code}") from error
    except grpc.RpcError as error:
        raise _ours(error, uri, _grpc_cause(error)) from error


def _translated(method: Callable[Concatenate[Milvus, P], R]) -> Callable[Concatenate[Milvus, P], R]:
    """`method`, which is no generator, with the SDK's failures as ours."""

    def translated(self: Milvus, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with _translating(self.uri):
            return method(self, *args, **kwargs)

    return translated


class Milvus:
    """One connection to a Milvus server or a Lite engine.

    Args:
        uri: `http(s)://…`, or the `unix:…` address of a server or of a Lite engine.
        token: of a server or Zilliz Cloud; None for none.
        connect_s: for the connection; a call that does not state its own limit has `CALL_TIMEOUT_S`.

    Raises:
        MilvusError: nobody answers at `uri`.
    """

    def __init__(self, uri: str, *, token: str | None = None, connect_s: float = CALL_TIMEOUT_S) -> None:
        self.uri = uri
        try:
            with _translating(uri):
                self._client = MilvusClient(uri, token=token or "", timeout=connect_s)
        except ValueError as error:  # such as a port out of range
            raise _ours(error, uri, str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @_translated
    def close(self) -> None:
        """Close the connection; the engine itself runs on."""
        self._client.close()

    @_translated
    def collections(self) -> list[str]:
        """Names of all collections."""
        return sorted(self._client.list_collections(timeout=CALL_TIMEOUT_S))

    @_translated
    def create(self, name: str, dimension: int) -> None:
        """An empty collection `name` with the fields of the spec and every index, its parameters in force."""
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        for field in FIELDS:
            match field.kind:
                case "text" if field.name == SEARCH_TEXT:
                    schema.add_field(
                        field.name,
                        DataType.VARCHAR,
                        max_length=field.bytes_max,
                        enable_analyzer=True,
                        analyzer_params=ANALYZER,
                    )
                case "text":
                    schema.add_field(
                        field.name, DataType.VARCHAR, max_length=field.bytes_max, is_primary=field.name == KEY
                    )
                case "texts":
                    schema.add_field(
                        field.name,
                        DataType.ARRAY,
                        element_type=DataType.VARCHAR,
                        max_length=field.bytes_max,
                        max_capacity=field.count_max,
                    )
                case "flag":
                    schema.add_field(field.name, DataType.BOOL)
        schema.add_field(DENSE, DataType.FLOAT_VECTOR, dim=dimension)
        schema.add_field(SPARSE, DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(
            Function(
                name=BM25_FUNCTION,
                function_type=FunctionType.BM25,
                input_field_names=[SEARCH_TEXT],
                output_field_names=[SPARSE],
            )
        )
        self._client.create_collection(
            name,
            schema=schema,
            index_params=self._index_params(),
            num_shards=1,  # a server keeps BM25 statistics per shard
            consistency_level="Strong",
            timeout=CALL_TIMEOUT_S,
        )

    def _index_params(self) -> Any:
        params = self._client.prepare_index_params()
        # Lite reads only a nested `params`, a server merges it into the top level: given both ways, they are in force
        # on both.
        params.add_index(
            SPARSE,
            index_type="SPARSE_INVERTED_INDEX",
            metric_type=SPARSE_METRIC,
            params={"inverted_index_algo": "DAAT_MAXSCORE", **BM25_PARAMS, "params": BM25_PARAMS},
        )
        params.add_index(
            DENSE,
            index_type="HNSW",
            metric_type=DENSE_METRIC,
            params={**HNSW_PARAMS, "params": HNSW_PARAMS},
        )
        for field in FIELDS:
            if field.filtered:
                params.add_index(field.name, index_type="INVERTED")
        return params

    @_translated
    def insert(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add `rows` (every scalar field and `dense`); all of them or none."""
        self._client.insert(name, list(rows), timeout=CALL_TIMEOUT_S)

    @_translated
    def seal(self, name: str) -> None:
        """Flush, wait until every index covers every row, and load.

        Raises:
            MilvusTimeout: the indexes were not finished within an hour.
        """
        # Lite calls every index finished, and builds those of a loaded collection after a flush when nobody waits: one
        # that is still at it when the engine ends is lost. Of a released collection it builds them in `load`.
        self._client.release_collection(name, timeout=CALL_TIMEOUT_S)
        self._client.flush(name, timeout=_SEAL_TIMEOUT_S)
        deadline = time.monotonic() + _SEAL_TIMEOUT_S
        for index in self._client.list_indexes(name, timeout=CALL_TIMEOUT_S):
            while not _finished(self._client.describe_index(name, index, timeout=CALL_TIMEOUT_S)):
                if time.monotonic() > deadline:
                    raise MilvusTimeout(f"index {index} of {name} at {self.uri} is not finished after an hour")
                time.sleep(0.5)
        self._client.load_collection(name, timeout=_SEAL_TIMEOUT_S)

    @_translated
    def load(self, name: str, timeout_s: float) -> None:
        """Make `name` searchable."""
        self._client.load_collection(name, timeout=timeout_s)

    @_translated
    def drop(self, name: str) -> None:
        """Remove the collection `name`."""
        self._client.drop_collection(name, timeout=CALL_TIMEOUT_S)

    @_translated
    def describe(self, name: str) -> CollectionFacts:
        """What Milvus says of `name`, in the manifest's words."""
        description = self._client.describe_collection(name, timeout=CALL_TIMEOUT_S)
        indexes = [
            self._client.describe_index(name, index, timeout=CALL_TIMEOUT_S)
            for index in sorted(self._client.list_indexes(name, timeout=CALL_TIMEOUT_S))
        ]
        return observed_facts(description, indexes)

    @_translated
    def count(self, name: str) -> int:
        """Rows that a query sees."""
        rows = self._client.query(name, filter="", output_fields=["count(*)"], timeout=CALL_TIMEOUT_S)
        return int(rows[0]["count(*)"])

    def rows(self, name: str, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Every row of `name` with `fields`."""
        with _translating(self.uri):
            iterator = self._client.query_iterator(
                name, batch_size=PAGE_ROWS, output_fields=list(fields), timeout=CALL_TIMEOUT_S
            )
            try:
                while page := iterator.next():
                    yield from page
            finally:
                iterator.close()

    @_translated
    def vector(self, name: str, paper_id: str) -> list[float]:
        """The stored vector of one paper."""
        rows = self._client.get(name, ids=[paper_id], output_fields=[DENSE], timeout=CALL_TIMEOUT_S)
        if not rows:
            raise MilvusError(f"{name} at {self.uri} holds no paper {paper_id!r}")
        return [float(value) for value in rows[0][DENSE]]

    @_translated
    def hybrid(
        self, name: str, vector: Vectors, text: str, *, where: str, depth: int, timeout_s: float
    ) -> list[tuple[str, float]]:
        """One dense COSINE and one BM25 request of `depth` hits each, fused by `RRFRanker()`.

        `where` is on both requests. Gives the first `depth` of the fused (paper id, RRF score): the engine
        orders equal scores by id before it cuts, on Lite as on a server.
        """
        requests = [
            AnnSearchRequest(
                data=[vector], anns_field=DENSE, param=_dense_param(depth, where), limit=depth, expr=where or None
            ),
            AnnSearchRequest(
                data=[text],
                anns_field=SPARSE,
                param={"metric_type": SPARSE_METRIC},
                limit=depth,
                expr=where or None,
            ),
        ]
        found = self._client.hybrid_search(
            name,
            requests,
            RRFRanker(),
            limit=depth,
            output_fields=[KEY],
            timeout=timeout_s,
        )
        return [(hit[KEY], float(hit["distance"])) for hit in found[0]]

    @_translated
    def lexical(self, name: str, text: str, *, where: str, depth: int, timeout_s: float) -> list[str]:
        """The ids of one BM25 request, best first. Its scores are left out: Lite's have the other sign."""
        found = self._client.search(
            name,
            data=[text],
            anns_field=SPARSE,
            search_params={"metric_type": SPARSE_METRIC},
            limit=depth,
            filter=where,
            output_fields=[KEY],
            timeout=timeout_s,
        )
        return [hit[KEY] for hit in found[0]]

    @_translated
    def dense(self, name: str, vector: Vectors, *, where: str, depth: int, timeout_s: float) -> list[str]:
        """The ids of one dense COSINE request, best first."""
        found = self._client.search(
            name,
            data=[vector],
            anns_field=DENSE,
            search_params=_dense_param(depth, where),
            limit=depth,
            filter=where,
            output_fields=[KEY],
            timeout=timeout_s,
        )
        return [hit[KEY] for hit in found[0]]


def observed_facts(description: Mapping[str, Any], indexes: Sequence[Mapping[str, Any]]) -> CollectionFacts:
    """Milvus' own description in the words of the manifest, server and Lite alike."""
    fields = []
    analyzer = ""
    for field in description["fields"]:
        params = field.get("params", {})
        kind = DataType(field["type"]).name
        if kind == "ARRAY":
            kind = f"ARRAY<{DataType(field['element_type']).name}>"
        kept = {key: str(params[key]) for key in ("max_length", "max_capacity", "dim") if key in params}
        if kind.startswith("ARRAY"):
            kept.pop("max_length", None)  # Lite does not keep the bound of an element
        fields.append(FieldFacts(name=field["name"], type=kind, params=kept))
        if "analyzer_params" in params:
            declared = params["analyzer_params"]
            analyzer = json.dumps(json.loads(declared) if isinstance(declared, str) else declared, sort_keys=True)
    functions = [
        FunctionFacts(
            name=function["name"],
            type=FunctionType(function["type"]).name,
            inputs=list(function["input_field_names"]),
            outputs=list(function["output_field_names"]),
        )
        for function in description.get("functions", [])
    ]
    return CollectionFacts(
        name=description["collection_name"],
        fields=sorted(fields, key=lambda field: field.name),
        functions=functions,
        analyzer=analyzer,
        indexes=sorted((_index_facts(index) for index in indexes), key=lambda index: index.field),
    )


def _index_facts(index: Mapping[str, Any]) -> IndexFacts:
    # Lite nests the parameters, a server flattens them.
    flat = {**index, **index.get("params", {})}
    metric = str(flat.get("metric_type", ""))
    return IndexFacts(
        field=str(flat["field_name"]),
        type=str(flat["index_type"]),
        metric="" if metric == "NONE" else metric,
        params={key: str(flat[key]) for key in (*HNSW_PARAMS, *BM25_PARAMS) if key in flat},
    )


def _dense_param(depth: int, where: str) -> dict[str, Any]:
    # HNSW looks at `ef` candidates and cannot return more; twice the window keeps its recall near one. Lite counts
    # candidates before the filter: under one it must look at far more, or it misses the few that match.
    return {"metric_type": DENSE_METRIC, "params": {"ef": max(FILTERED_EF if where else 64, 2 * depth)}}


def _finished(index: Mapping[str, Any]) -> bool:
    return str(index.get("state")) == "Finished" and int(index.get("pending_index_rows", 0)) == 0


def _grpc_cause(error: grpc.RpcError) -> str:
    code = getattr(error, "code", None)
    details = getattr(error, "details", None)
    return f"{code().name if code else 'RPC'}: {details() if details else error}"


def _ours(error: Exception, uri: str, cause: str) -> MilvusError:
    code = getattr(error, "code", None)
    timed_out = callable(code) and code() == grpc.StatusCode.DEADLINE_EXCEEDED
    kind = MilvusTimeout if timed_out or "DEADLINE_EXCEEDED" in cause else MilvusError
    return kind(f"Milvus at {uri} failed: {cause}")
