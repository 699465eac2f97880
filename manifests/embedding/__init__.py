"""Embedders: one interface, one module a provider, and the check that vectors pass wherever they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from manifests.embedding.spec import Vectors


class VectorsUnusable(ValueError):
    """Not the vectors that were asked for; the message names the first at fault. What that means, the caller knows."""


def check_vectors(vectors: Any, count: int, dimension: int) -> Vectors:
    """`vectors` (an array, or one sequence of numbers a text) as float32 of shape (count, dimension).

    Raises:
        VectorsUnusable: another count or dimension, not numbers, not finite in float32, or of a length that is zero
            or not finite there.
    """
    found = len(vectors)
    if found != count:
        raise VectorsUnusable(f"{found} vectors for {count} texts")
    for position, vector in enumerate(vectors):
        if len(vector) != dimension:
            raise VectorsUnusable(f"vector {position} has {len(vector)} numbers where {dimension} are expected")
        if not _holds_numbers(vector):
            raise VectorsUnusable(f"vector {position} of {count} holds something else than numbers")
    try:
        with np.errstate(over="ignore", under="ignore"):
            checked = np.asarray(vectors, dtype=np.float32).reshape(count, dimension)
            squares = np.einsum("ij,ij->i", checked, checked)
    except OverflowError as error:
        raise VectorsUnusable("a number that no vector can hold") from error
    unusable = ~(np.isfinite(squares) & (squares >= np.finfo(np.float32).tiny))
    if unusable.any():
        position = int(unusable.argmax())
        raise VectorsUnusable(f"vector {position} of {count} is {_fault(checked[position])}")
    return checked


def _holds_numbers(vector: Any) -> bool:
    """Neither text nor truth values, which NumPy would take for numbers."""
    if isinstance(vector, np.ndarray):
        return vector.dtype.kind in "fiu"
    return set(map(type, vector)) <= {int, float}


def _fault(vector: Vectors) -> str:
    if not np.isfinite(vector).all():
        return "not finite"
    return "of a length that float32 cannot hold" if vector.any() else "zero"
