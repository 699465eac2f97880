"""Blocks of lines -> frames of papers, in this interpreter or in worker processes, always in order.

Holds    the frames have the one explicit schema; at most a few blocks are in memory at a time
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import polars as pl

from manifests.collection import RECORD_FIELDS, paper_digest
from pipeline.errors import MachineRefused
from pipeline.records import TEXT_KEY, BadRecord, Paper, read_record
from pipeline.snapshot import Block, split

_TYPES: dict[str, pl.DataType] = {"text": pl.String(), "texts": pl.List(pl.String()), "flag": pl.Boolean()}
# papers.parquet, column by column: never inferred.
SCHEMA = pl.Schema({**{field.name: _TYPES[field.kind] for field in RECORD_FIELDS}, TEXT_KEY: pl.String()})

# White space of JSON: a line of nothing else is blank.
_BLANK = b" \t\r\n"


class Tabulated(NamedTuple):
    """What one block held: `numbers` and `digests` (paper_digest) go with the rows of `frame`."""

    frame: pl.DataFrame
    numbers: list[int]
    digests: list[bytes]
    bad: list[tuple[int, BadRecord]]
    lines: int
    blank: int
    unknown: Counter[str]


def tabulate_blocks(blocks: Iterable[Block], workers: int, scratch: Path) -> Generator[tuple[Block, Tabulated]]:
    """Each block with what it held, in the order of the snapshot.

    `workers` above 1 are processes, which hand their frames over as files in the folder `scratch`: made here, and
    gone at the end.
    """
    if workers <= 1:
        for block in blocks:
            yield block, tabulate_block(block)
        return
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    # Spawned, not forked: a fork would copy the locks of polars' threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_follow_parent, initargs=(os.getpid(),))
    waiting: deque[tuple[Block, Future[Tabulated]]] = deque()
    try:
        for block in blocks:
            waiting.append((block, pool.submit(_tabulate_apart, block, scratch)))
            if len(waiting) > workers + 1:
                first, future = waiting.popleft()
                yield first, _received(future.result(), first, scratch)
        for block, future in waiting:
            yield block, _received(future.result(), block, scratch)
    except BrokenProcessPool as error:
        raise MachineRefused(
            "a worker process of the load stage was ended from outside (out of memory?); run the same command again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
        shutil.rmtree(scratch, ignore_errors=True)


def tabulate_block(block: Block) -> Tabulated:
    """Read every line of the block; pure, so that it may run in any process."""
    lines = split(block.text)
    papers: list[Paper] = []
    numbers: list[int] = []
    bad: list[tuple[int, BadRecord]] = []
    unknown: Counter[str] = Counter()
    blank, last = 0, block.first + len(lines) - 1
    for number, line in enumerate(lines, block.first):
        if not line.strip(_BLANK):
            blank += 1
            continue
        read = read_record(line, unknown)
        if isinstance(read, BadRecord):
            cut = number == last and not block.text.endswith(b"\n")
            bad.append((number, read.cut_short(line) if cut else read))
        else:
            papers.append(read)
            numbers.append(number)
    return Tabulated(
        _frame(papers), numbers, [paper_digest(paper) for paper in papers], bad, len(lines), blank, unknown
    )


def _frame(papers: list[Paper]) -> pl.DataFrame:
    """The papers as columns.

    Lists of Python lists are slow to convert. Each is sent as one text in which NUL, which no record may hold, comes
    before every element, and split again by polars: the empty list and the list of one empty text stay apart.
    """
    columns: dict[str, pl.Series] = {}
    for name, kind in SCHEMA.items():
        if isinstance(kind, pl.List):
            joined = pl.Series(name, ["".join(["\0" + text for text in paper[name]]) for paper in papers], pl.String())
            columns[name] = joined.str.split("\0").list.slice(1)
        else:
            columns[name] = pl.Series(name, [paper[name] for paper in papers], kind, strict=True)
    return pl.DataFrame(columns, schema=SCHEMA, strict=True)


def _tabulate_apart(block: Block, scratch: Path) -> Tabulated:
    """In a worker: the frame goes into a file, which costs a third of sending it through the pipe of the pool."""
    found = tabulate_block(block)
    found.frame.write_ipc(_passage(block, scratch), compression="uncompressed")
    return found._replace(frame=found.frame.clear())


def _received(found: Tabulated, block: Block, scratch: Path) -> Tabulated:
    path = _passage(block, scratch)
    frame = pl.read_ipc(path)
    path.unlink()
    return found._replace(frame=frame)


def _passage(block: Block, scratch: Path) -> Path:
    return scratch / f"{block.first}.arrow"


def _follow_parent(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it even when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # records make no cycles, and looking for some among a block's lists costs time
    process = multiprocessing.parent_process()
    if process is None or os.getppid() != parent:
        os._exit(1)

    def watch() -> None:
        wait([process.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
