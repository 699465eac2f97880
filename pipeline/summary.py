"""The closing words of a build: papers, vectors, seconds and memory, where things are, what to run next."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.table import Table

from manifests.visible import visible
from pipeline.build import Built
from pipeline.places import Places


def say_built(built: Built, places: Places) -> None:
    """Print them to standard error."""
    console = Console(stderr=True, highlight=False, markup=False)
    manifest, counts = built.manifest, built.manifest.snapshot.counts
    if built.vectors is None:
        console.print(
            f"{built.path} is up to date: {counts.papers:,} papers, digest {manifest.digest[:12]}; "
            "nothing embedded, nothing written",
            soft_wrap=True,
        )
        return
    table = Table(title=f"{visible(manifest.snapshot.title)}: {counts.papers:,} papers", title_justify="left")
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    table.add_column("peak memory", justify="right")
    for stage, seconds in built.meter.seconds.items():
        table.add_row(stage, f"{seconds:.1f}", f"{built.meter.peak_rss_mb[stage]:,.0f} MB")
    console.print(table)
    name = manifest.snapshot.name
    rejected = f"{counts.rejected:,}" + (f" (see {places.work}/rejected.jsonl)" if counts.rejected else "")
    for line in (
        f"vectors   {built.vectors.reused:,} reused, {built.vectors.embedded:,} new (in {places.store})",
        f"rejected  {rejected}",
        f"index     {places.target.uri} ({manifest.collection.name})",
        f"manifest  {built.path} (digest {manifest.digest[:12]})",
        f"next      {_next(name, built, places)}",
    ):
        console.print(line, soft_wrap=True)


def _next(name: str, built: Built, places: Places) -> str:
    if places.work == Path("builds") / name and built.path == Path("manifests") / f"{name}.json":
        return f'just validate {name} · just search "QUERY" {name} · just serve {name}'
    where = f"--manifest {quote(str(built.path))} --milvus-uri {quote(places.target.uri)}"
    return f'python -m serve search "QUERY" {where} · python -m serve {where}'
