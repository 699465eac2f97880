"""BM25 as Lucene and Milvus Lite compute it, in numpy, to try parameters in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np


class BM25:
    """An inverted index of `documents` (their words) with every posting's weight."""

    def __init__(self, documents: Sequence[Sequence[str]], k1: float, b: float) -> None:
        self._terms: dict[str, int] = {}
        postings = [
            (self._terms.setdefault(term, len(self._terms)), row, count)
            for row, document in enumerate(documents)
            for term, count in Counter(document).items()
        ]
        terms, rows, counts = np.asarray(postings, dtype=np.int64).T
        order = np.argsort(terms, kind="stable")
        self._rows = rows[order]
        self._starts = np.searchsorted(terms[order], np.arange(len(self._terms) + 1))
        self._documents = len(documents)
        frequencies = np.diff(self._starts)
        idf = np.log(1 + (self._documents - frequencies + 0.5) / (frequencies + 0.5))
        lengths = np.asarray([len(document) for document in documents], dtype=np.float64)
        occurrences = counts[order]
        norm = k1 * (1 - b + b * lengths[self._rows] / lengths.mean())
        self._weights = idf[terms[order]] * occurrences * (k1 + 1) / (occurrences + norm)

    def ranked(self, query: Sequence[str], depth: int) -> list[int]:
        """Rows of the best `depth` documents that hold a word of `query`; equal scores in the order of the rows."""
        scores = np.zeros(self._documents)
        for term in query:
            number = self._terms.get(term)
            if number is not None:
                part = slice(self._starts[number], self._starts[number + 1])
                scores[self._rows[part]] += self._weights[part]
        best = np.argsort(-scores, kind="stable")[:depth]
        return [int(row) for row in best if scores[row] > 0]
