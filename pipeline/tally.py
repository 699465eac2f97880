"""What happened to every line: counts that add up, ids met once, records set aside, catalogue and digests.

Holds    lines = blank + records, records = papers + rejected
         memory: about 200 bytes a paper (id, digest, line number), nothing of its text
"""

from __future__ import annotations

import base64
import json
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import polars as pl

from manifests.collection import KEY, content_sha256, ids_sha256
from manifests.contract import Catalogue, CorpusFacts, Counts
from manifests.errors import InputRefused
from pipeline.blocks import Tabulated
from pipeline.errors import BadRecords
from pipeline.records import BadRecord, Fault, count_key
from pipeline.snapshot import CARD, Block, Snapshot, split

SHOWN_MAX = 20
_DIGEST_BYTES = 32


class Tally:
    """Takes the blocks in order; `settle` judges the whole."""

    def __init__(self, snapshot: Snapshot, rejected: Path | None) -> None:
        """`rejected` is the file that bad records are moved to, None to refuse the snapshot for them."""
        self._snapshot = snapshot
        self._rejected = rejected
        self._rejections: IO[bytes] | None = None
        self._shown: list[tuple[int, BadRecord]] = []
        self._lines = self._blank = self._bad = 0
        self._unknown: Counter[str] = Counter()
        # id -> row; the digests and line numbers of the rows lie flat beside it
        self._rows: dict[bytes, int] = {}
        self._digests = bytearray()
        self._numbers = array("Q")
        self._areas: Counter[str] = Counter()
        self._types: Counter[str] = Counter()
        self._flags: Counter[str] = Counter()

    @property
    def papers(self) -> int:
        """Papers so far."""
        return len(self._rows)

    @property
    def records(self) -> int:
        """Records so far, good and bad."""
        return len(self._rows) + self._bad

    @property
    def refusing(self) -> bool:
        """Whether the snapshot will be refused, so that no further paper need be written."""
        return self._bad > 0 and self._rejected is None

    def take(self, block: Block, found: Tabulated) -> pl.DataFrame:
        """Count one block and return its papers: those whose id was not met before."""
        self._lines += found.lines
        self._blank += found.blank
        for key, times in found.unknown.items():
            count_key(self._unknown, key, times)
        kept, repeated = self._enter(found)
        self._set_aside(block, sorted([*found.bad, *repeated]))
        frame = found.frame if not repeated else found.frame.filter(pl.Series(kept, dtype=pl.Boolean))
        self._areas.update(_counts(frame, "area"))
        self._types.update(_counts(frame, "paper_type"))
        self._flags.update(
            spotlight=frame.filter("spotlight").height,
            oral=frame.filter("oral").height,
            without_abstract=frame.filter(pl.col("abstract") == "").height,
        )
        return frame

    def settle(self) -> tuple[Counts, CorpusFacts, Catalogue]:
        """The facts of the whole snapshot.

        Raises:
            BadRecords: records break the table and none are to be moved aside, or no paper is left.
            InputRefused: no record, or another number of records than snapshot.json says.
        """
        if self._rejections is not None:
            self._rejections.close()
        expected = self._snapshot.card.papers
        miscounted = (
            f"{self._snapshot.path}: {CARD} says {expected:,} papers, found {self.records:,} records; "
            "fetch the snapshot again"
        )
        if self.refusing or (self.records and not self.papers):
            raise BadRecords(self._refusal() + (f"\n{miscounted}" if self.records != expected else ""))
        if not self.records:
            raise InputRefused(f"{self._snapshot.path}: found no record, expected at least one; fetch it again")
        if self.records != expected:
            raise InputRefused(miscounted)
        return self._facts()

    def close(self) -> None:
        """Let go of the file of rejected records, whatever happened."""
        if self._rejections is not None:
            self._rejections.close()

    def _enter(self, found: Tabulated) -> tuple[list[bool], list[tuple[int, BadRecord]]]:
        """Remember the ids; say which rows are kept and which repeat an earlier id."""
        kept: list[bool] = []
        repeated: list[tuple[int, BadRecord]] = []
        for paper_id, number, digest in zip(found.frame[KEY].to_list(), found.numbers, found.digests, strict=True):
            new = len(self._rows)
            row = self._rows.setdefault(paper_id.encode(), new)
            kept.append(row == new)
            if row == new:
                self._digests += digest
                self._numbers.append(number)
            else:
                same = self._digest(row) == digest
                reason = f"occurs before, in line {self._numbers[row]}, with {'the same' if same else 'other'} content"
                repeated.append((number, BadRecord(paper_id, [Fault("id", f"{reason}; expected once")])))
        return kept, repeated

    def _set_aside(self, block: Block, bad: list[tuple[int, BadRecord]]) -> None:
        self._bad += len(bad)
        self._shown += bad[: SHOWN_MAX - len(self._shown)]
        if not bad or self._rejected is None:
            return
        if self._rejections is None:
            self._rejections = self._rejected.open("wb")
        lines = split(block.text)
        for number, record in bad:
            self._rejections.write(_rejection(number, record, lines[number - block.first]))

    def _refusal(self) -> str:
        shown = "".join(
            f"\n  - line {number}, id {json.dumps(record.paper_id)}: {'; '.join(map(str, record.faults))}"
            for number, record in self._shown
        )
        more = f"\n  - and {self._bad - len(self._shown):,} more" if self._bad > len(self._shown) else ""
        correct = "Correct them at the source and fetch again"
        advice = (
            f"{correct}, or run with --quarantine to move them to rejected.jsonl."
            if self.papers
            else f"{correct}: no paper is left."
        )
        return f"{self._snapshot.path}: {self._bad:,} of {self.records:,} records are bad:{shown}{more}\n{advice}"

    def _facts(self) -> tuple[Counts, CorpusFacts, Catalogue]:
        counts = Counts(
            lines=self._lines,
            blank=self._blank,
            records=self.records,
            rejected=self._bad,
            papers=self.papers,
            unknown_keys=dict(self._unknown),
        )
        corpus = CorpusFacts(
            rows=self.papers,
            ids_sha256=ids_sha256(paper_id.decode() for paper_id in self._rows),
            content_sha256=content_sha256(self._papers()),
        )
        catalogue = Catalogue(
            areas=dict(self._areas),
            paper_types=dict(self._types),
            spotlight=self._flags["spotlight"],
            oral=self._flags["oral"],
            without_abstract=self._flags["without_abstract"],
        )
        return counts, corpus, catalogue

    def _papers(self) -> Iterator[tuple[str, bytes]]:
        for paper_id, row in self._rows.items():
            yield paper_id.decode(), self._digest(row)

    def _digest(self, row: int) -> bytes:
        return bytes(self._digests[row * _DIGEST_BYTES : (row + 1) * _DIGEST_BYTES])


def _counts(frame: pl.DataFrame, column: str) -> dict[str, int]:
    return dict(frame.group_by(column).len().iter_rows())


def _rejection(number: int, record: BadRecord, line: bytes) -> bytes:
    """One line of rejected.jsonl: the record as it stood, as base64 where it is not UTF-8."""
    entry: dict[str, Any] = {"line": number, "id": record.paper_id, "reasons": [*map(str, record.faults)]}
    try:
        entry["record"] = line.decode()
    except UnicodeDecodeError:
        entry["record_base64"] = base64.b64encode(line).decode()
    return json.dumps(entry).encode() + b"\n"
