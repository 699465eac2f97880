"""Writing a snapshot: provenance and records -> snapshots/NAME.

Reads    records as their source gives them
Writes   NAME/ whole or not at all, the same bytes for the same records
Holds    an existing snapshot is never changed
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from manifests.errors import InputRefused
from manifests.files import file_sha256, sync_folder, write_atomically
from pipeline.records import RECORD_KEYS
from pipeline.snapshot import CARD, GZIP, NAME_GRAMMAR, Card, PapersFile, Provenance, Snapshot

GZIP_LEVEL = 9


def free_folder(snapshots: Path, name: str) -> Path:
    """Where a new snapshot of this name will stand; asked before the work, not after it.

    Raises:
        InputRefused: the name does not fit the grammar, or there is such a snapshot.
    """
    if not re.fullmatch(NAME_GRAMMAR, name):
        raise InputRefused(f"{name!r} is no snapshot name; expected letters, digits, `.`, `_` and `-`, at most 64")
    folder = snapshots / name
    _require_free(folder)
    return folder


def provenance_of(**facts: str) -> Provenance:
    """The provenance of these facts.

    Raises:
        InputRefused: a fact that snapshot.json may not hold; names each.
    """
    try:
        return Provenance(**facts)
    except ValidationError as error:
        faults = "; ".join(f"{fault['loc'][0]} {fault['input']!r:.80}: {fault['msg']}" for fault in error.errors())
        raise InputRefused(f"snapshot.json may not hold this: {faults}") from error


def write_snapshot(
    folder: Path,
    provenance: Provenance,
    records: Iterable[Mapping[str, Any]],
    *,
    file: PapersFile = GZIP,
) -> Snapshot:
    """Write a new snapshot at `folder`: everything in a temporary folder beside it, fsync, one rename.

    Known keys are written in the order of the record table, others after them by name; records keep their order, so
    the same records give the same bytes. `load` judges the records; here they only have to be JSON.

    Raises:
        InputRefused: `folder` exists (a snapshot is never changed), no record at all, or a record that is not JSON.
        OSError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    _require_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        papers = _write_records(building / file, records)
        card = Card(**provenance.model_dump(), papers=papers, files={file: file_sha256(building / file)})
        write_atomically(building / CARD, json.dumps(card.model_dump(), ensure_ascii=False, indent=2).encode() + b"\n")
        building.chmod(0o755)
        building.rename(folder)
    except BaseException:  # also Ctrl-C must leave nothing behind; raised again
        shutil.rmtree(building, ignore_errors=True)
        raise
    sync_folder(folder.parent)
    return Snapshot(folder, card)


def _require_free(folder: Path) -> None:
    if folder.exists():
        raise InputRefused(f"{folder} exists and a snapshot is never changed: choose another name or remove it first")


def _write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> int:
    count = 0
    with path.open("wb") as raw:
        # No name and no time in the gzip header: the same records give the same bytes.
        target = gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0) if path.suffix == ".gz" else raw
        for count, record in enumerate(records, 1):
            target.write(_line(record, count))
        if target is not raw:
            target.close()
        raw.flush()
        os.fsync(raw.fileno())
    if not count:
        raise InputRefused("no record to write; a snapshot holds at least one paper")
    return count


def _line(record: Mapping[str, Any], number: int) -> bytes:
    known = [key for key in RECORD_KEYS if key in record]
    ordered = {key: record[key] for key in (*known, *sorted(record.keys() - set(known)))}
    try:
        return json.dumps(ordered, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise InputRefused(
            f"record {number}, id {record.get('id')!r:.80} cannot be written as JSON: {error}"
        ) from error
