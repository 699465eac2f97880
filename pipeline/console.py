"""What a person sees while a build runs: a live bar on a terminal, plain lines elsewhere; always standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from manifests.visible import visible, visible_lines
from pipeline.progress import Report

PLAIN_EVERY_S = 5.0


class Console:
    """Progress of one command on standard error."""

    def __init__(self) -> None:
        self._rich = RichConsole(stderr=True, highlight=False, markup=False)

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
                note = visible(note)
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
        print(visible_lines(line), file=sys.stderr, flush=True)  # noqa: T201 -- the plain console itself
