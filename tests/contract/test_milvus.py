"""What the SDK raises while a collection is read leaves as ours, wherever in the reading it happens."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from pymilvus.exceptions import MilvusException
from pymilvus.orm.iterator import QueryIterator

from manifests.collection import KEY
from manifests.errors import MilvusError
from manifests.gate import Index
from manifests.milvus import Milvus


@pytest.fixture
def milvus(sample_index: Index) -> Milvus:
    """A connection to the sample's engine."""
    return sample_index._engines[0]


def test_rows_of_a_collection_that_is_gone_are_a_milvus_error(milvus: Milvus) -> None:
    with pytest.raises(MilvusError, match="no_such_collection"):
        list(milvus.rows("no_such_collection", [KEY]))


@pytest.mark.parametrize("failure", [grpc.RpcError("cut"), MilvusException(1, "cut")], ids=["grpc", "sdk"])
@pytest.mark.parametrize("step", ["__init__", "next", "close"])
def test_a_server_that_fails_at_any_step_of_the_iterator_is_a_milvus_error(
    sample_index: Index, milvus: Milvus, monkeypatch: pytest.MonkeyPatch, step: str, failure: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(QueryIterator, step, fail)

    with pytest.raises(MilvusError, match="cut"):
        list(milvus.rows(sample_index.manifest.collection.name, [KEY]))
