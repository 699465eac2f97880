"""`fetch`: from flags and environment to a new snapshot, and what became of every note or row in words."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.fetch.importers import Import, import_file
from pipeline.fetch.openreview import Fetch, fetch_openreview
from pipeline.fetch.openreview_access import access_from
from pipeline.fetch.openreview_api import Limits
from pipeline.progress import Report

SHOWN = ("count", "rows", "excluded", "cases", "venues", "statuses", "columns", "unused_columns", "bad")
BUILDS = Path("builds")


def fetch(args: argparse.Namespace, environment: Mapping[str, str], report: Report) -> dict[str, Any]:
    """Write the snapshot that the flags ask for; the result of `fetch_openreview` or `import_file`."""
    if args.source == "openreview":
        task = Fetch(
            venue_ids=args.venue_ids,
            name=args.name,
            snapshots=args.snapshots,
            work=args.work or BUILDS / args.name,
            title=args.title,
            licence=args.licence,
            quarantine=args.quarantine,
        )
        limits = Limits(requests_per_minute=args.requests_per_minute)
        return fetch_openreview(task, access_from(environment), limits, report=report)
    return import_file(
        Import(
            path=args.path,
            name=args.name,
            snapshots=args.snapshots,
            mapping=dict(args.map),
            form=args.format,
            separator=args.separator,
            decoded=None if args.entities is None else frozenset(filter(None, args.entities.split(","))),
            title=args.title,
            url=args.url,
            licence=args.licence,
            quarantine=args.quarantine,
        ),
        report=report,
    )


def words(result: Mapping[str, Any]) -> str:
    """The result for people, a fact a line; nothing that was left out is left out here."""
    lines = [f"{result['snapshot']}: {result['papers']:,} papers, sha256 {result['sha256']}"]
    for key in SHOWN:
        value = result.get(key)
        if isinstance(value, Mapping):
            lines += [f"  {key:<15}{one}: {times}" for one, times in value.items()]
        elif isinstance(value, list):
            lines += [f"  {key:<15}{', '.join(value)}"] if value else []
        elif value is not None:
            lines.append(f"  {key:<15}{value:,}")
    return "\n".join(lines)
