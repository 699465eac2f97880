"""Embedders: one interface, one module a provider, and the check every answer must pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from manifests.errors import ProviderBusy

if TYPE_CHECKING:
    from manifests.embedding.spec import Vectors


def check_vectors(vectors: Any, count: int, dimension: int) -> Vectors:
    """`vectors` (an array, or one sequence of numbers a text) as float32 of shape (count, dimension).

    Raises:
        ProviderBusy: another count or dimension, not numbers, not finite in float32, or all zero. An answer
            that cannot be read may be right the next time; the message names the first vector at fault.
    """
    found = len(vectors)
    if found != count:
        raise ProviderBusy(f"the provider answered {found} vectors for {count} texts; nothing of them is kept")
    for position, vector in enumerate(vectors):
        if len(vector) != dimension:
            raise ProviderBusy(f"vector {position} has {len(vector)} numbers where {dimension} are expected")
    try:
        checked = np.asarray(vectors, dtype=np.float32).reshape(count, dimension)
    except (TypeError, ValueError) as error:
        raise ProviderBusy(f"the provider answered something else than numbers: {error}") from error
    unusable = ~(np.isfinite(checked).all(axis=1) & checked.any(axis=1))
    if unusable.any():
        position = int(unusable.argmax())
        kind = "zero" if np.isfinite(checked[position]).all() else "not finite"
        raise ProviderBusy(f"vector {position} of {count} is {kind}; nothing of the answer is kept")
    return checked
