"""Small snapshots made in tests, from records or from raw bytes."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.snapshot import CARD, GZIP, PLAIN, Snapshot, open_snapshot

CARD_FACTS = {
    "name": "made",
    "title": "Made for a test",
    "source": "tests",
    "url": "https://example.org/",
    "retrieved_at": "2026-07-10T00:00:00Z",
    "licence": "none",
}


def record(paper_id: str = "a", **changes: Any) -> dict[str, Any]:
    """A whole record; `changes` replace its keys."""
    return {
        "id": paper_id,
        "title": f"Title of {paper_id}",
        "abstract": f"Abstract of {paper_id}.",
        "authors": ["Ada Lovelace", "José García"],
        "keywords": ["bandits"],
        "primary_area": "Theory->Learning",
        "paper_type": "regular",
        "spotlight": False,
        "oral": False,
        "forum_url": f"https://example.org/forum?id={paper_id}",
        "pdf_url": None,
    } | changes


def lines(*records: dict[str, Any]) -> bytes:
    """The records as lines, each ended by a newline."""
    return b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in records)


def write_files(folder: Path, content: bytes, papers: int, /, *, zipped: bool = False, **facts: Any) -> Path:
    """A snapshot folder whose card pins exactly these bytes; `facts` replace keys of the card."""
    folder.mkdir(parents=True, exist_ok=True)
    name = GZIP if zipped else PLAIN
    stored = gzip.compress(content, mtime=0) if zipped else content
    (folder / name).write_bytes(stored)
    card = {**CARD_FACTS, "papers": papers, "files": {name: hashlib.sha256(stored).hexdigest()}} | facts
    (folder / CARD).write_text(json.dumps(card), encoding="utf-8")
    return folder


def snapshot_of(folder: Path, content: bytes, papers: int, *, zipped: bool = False) -> Snapshot:
    """The opened snapshot of these bytes."""
    return open_snapshot(write_files(folder, content, papers, zipped=zipped))
