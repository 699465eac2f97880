"""JSON with one reading and one writing: no key twice, and the bytes that every digest is taken over."""

from __future__ import annotations

import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces: what every digest is taken over."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these pairs, as `object_pairs_hook`.

    Raises:
        ValueError: a key occurs twice; names it.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} occurs twice")
        found[key] = value
    return found
