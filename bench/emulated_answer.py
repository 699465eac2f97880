"""What the emulated service answers: vectors of the texts, tokens as billed, and answers gone wrong."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections import Counter
from typing import Any, Literal

import numpy as np

WORD = re.compile(r"\w+|[^\w\s]")
HASHES = 3

Mangled = Literal[
    "short",
    "reversed",
    "duplicate_index",
    "missing_index",
    "nan",
    "infinity",
    "zero",
    "dimension",
    "no_output",
    "text",
    "true",
    "null",
    "list",
    "too_large",
    "huge",
    "norm_underflows",
    "norm_overflows",
]
# What the last vector is filled with; JSON and NumPy both take more for a number than a vector can hold.
FILLED: dict[Mangled, Any] = {
    "text": "0.1",
    "true": True,
    "null": None,
    "list": [0.1],
    "too_large": 1e39,
    "huge": 10**400,
    "norm_underflows": 1e-30,
    "norm_overflows": 3e38,
}


def count_tokens(text: str) -> int:
    """Tokens as this service bills them: pieces of six letters, and every sign. Not the tokenizer of the SDK."""
    return sum((len(word) + 5) // 6 for word in WORD.findall(text))


def vector(text: str, model: str, dimension: int) -> np.ndarray:
    """Signed feature hash of the words, length 1; each model has a geometry of its own."""
    found = np.zeros(dimension)
    for word, times in Counter(WORD.findall(text.lower())).items():
        for turn in range(HASHES):
            hashed = zlib.crc32(f"{model}\0{turn}\0{word}".encode())
            found[(hashed >> 1) % dimension] += math.sqrt(times) * (1 if hashed & 1 else -1)
    length = float(np.linalg.norm(found))
    if length == 0.0:
        found[0] = length = 1.0
    return found / length


def texts_of(asked: dict[str, Any]) -> list[str]:
    texts = asked.get("input", {}).get("texts", [])
    return [str(text) for text in texts] if isinstance(texts, list) else []


def dimension_of(asked: dict[str, Any]) -> int:
    return int(asked.get("parameters", {}).get("dimension", 1_024))


def embeddings(asked: dict[str, Any], texts: list[str], usage: Any, mangle: Mangled | None) -> bytes:
    model, dimension = str(asked["model"]), dimension_of(asked)
    vectors = [vector(text, model, dimension).round(6).tolist() for text in texts]
    entries: list[dict[str, Any]] = [
        {"text_index": index, "embedding": numbers} for index, numbers in enumerate(vectors)
    ]
    answer: dict[str, Any] = {
        "output": {"embeddings": entries},
        "usage": usage,
        "request_id": "emulated",
    }
    if mangle:
        _mangle(answer, entries, mangle)
    return json.dumps(answer).encode()


def _mangle(answer: dict[str, Any], embeddings: list[dict[str, Any]], mangle: Mangled) -> None:
    last = embeddings[-1]
    if mangle in FILLED:
        last["embedding"] = [FILLED[mangle]] * len(last["embedding"])
        return
    if mangle == "short":
        embeddings.pop()
    elif mangle == "reversed":
        embeddings.reverse()
    elif mangle == "duplicate_index":
        last["text_index"] = 0 if len(embeddings) > 1 else 1
    elif mangle == "missing_index":
        del last["text_index"]
    elif mangle == "nan":
        last["embedding"][3] = math.nan
    elif mangle == "infinity":
        last["embedding"][3] = math.inf
    elif mangle == "zero":
        last["embedding"] = [0.0] * len(last["embedding"])
    elif mangle == "dimension":
        last["embedding"].pop()
    else:
        answer["output"] = None
