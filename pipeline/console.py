"""What a person sees while a build runs: a live bar on a terminal, plain lines elsewhere; always standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipeline.progress import Report

if TYPE_CHECKING:
    from pipeline.build import Built
    from pipeline.index import Target

PLAIN_EVERY_S = 5.0


class Console:
    """Progress and closing words of one command on standard error; quiet for tests."""

    def __init__(self) -> None:
        self._rich = RichConsole(stderr=True, highlight=False)

    @contextmanager
    def stage(self, name: str) -> Iterator[Report]:
        """A report for the stage `name`."""
        reporter = self._live if self._rich.is_terminal else self._plain
        with reporter(name) as report:
            yield report

    @contextmanager
    def _live(self, name: str) -> Iterator[Report]:
        columns = (
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        started = time.monotonic()
        with Progress(*columns, console=self._rich, transient=True) as progress:
            task = progress.add_task(name, total=None, note="", rate="")

            def report(done: int, total: int | None, note: str) -> None:
                rate = done / max(time.monotonic() - started, 1e-3)
                progress.update(task, completed=done, total=total, note=note, rate=f"{rate:,.0f}/s" if done else "")

            yield report
        self._rich.print(f"{name:<9} done in {time.monotonic() - started:.1f} s")

    @contextmanager
    def _plain(self, name: str) -> Iterator[Report]:
        started = time.monotonic()
        said = started
        last_note = ""

        def report(done: int, total: int | None, note: str) -> None:
            nonlocal said, last_note
            now = time.monotonic()
            if now - said < PLAIN_EVERY_S and (note == last_note or done):
                return
            said, last_note = now, note
            rate = done / max(now - started, 1e-3)
            left = f", {(total - done) / rate:,.0f} s left" if total and done else ""
            of = f" of {total:,}" if total else ""
            line = f"{name}: {done:,}{of}, {rate:,.0f}/s{left}" if done else f"{name}:"
            self._say(f"{line} {note}".rstrip())

        self._say(f"{name}: started")
        yield report
        self._say(f"{name}: done in {time.monotonic() - started:.1f} s")

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201 -- the plain console itself

    def built(self, built: Built, target: Target) -> None:
        """The closing table: papers, vectors, seconds and memory, where things are, what to run next."""
        from rich.table import Table

        counts = built.manifest.snapshot.counts
        if built.vectors is None:
            self._rich.print(
                f"{built.path} is up to date: {counts.papers:,} papers, digest {built.manifest.digest[:12]}; "
                "nothing embedded, nothing written",
                soft_wrap=True,
            )
            return
        table = Table(title=f"{built.manifest.snapshot.title}: {counts.papers:,} papers", title_justify="left")
        table.add_column("stage")
        table.add_column("seconds", justify="right")
        table.add_column("peak memory", justify="right")
        for stage, seconds in built.meter.seconds.items():
            table.add_row(stage, f"{seconds:.1f}", f"{built.meter.peak_rss_mb[stage]:,.0f} MB")
        self._rich.print(table)
        name = built.manifest.snapshot.name
        for line in (
            f"vectors   {built.vectors.reused:,} reused, {built.vectors.embedded:,} new",
            f"rejected  {counts.rejected:,}" + (f" (see {target.work}/rejected.jsonl)" if counts.rejected else ""),
            f"index     {target.uri} ({built.manifest.collection.name})",
            f"manifest  {built.path} (digest {built.manifest.digest[:12]})",
            f'next      just validate {name} · just search "QUERY" {name} · just serve {name}',
        ):
            self._rich.print(line, soft_wrap=True)
