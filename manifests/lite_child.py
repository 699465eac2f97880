"""Run Milvus Lite on one folder behind one private Unix socket until standard input closes.

Started by lite.py as a script of its own: the engine's Python loops then cost the parent no interpreter lock, its
unauthenticated port is a socket only the parent's user can reach, and it cannot outlive the parent, whatever kills
the parent closes the pipe.

    python -P lite_child.py FOLDER SOCKET COLUMN…

Prints `ready` or `failed: CAUSE` and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

SEQ = "_seq"  # the engine's own column: which version of a row is the newest


def main(folder: str, socket: str, searched: Sequence[str]) -> int:
    """Serve `folder` on `socket`; 0 after an orderly end, 1 when the folder cannot be opened."""
    from milvus_lite.adapter.grpc.server import start_server_in_thread

    make_rows_lean(searched)
    try:
        # The engine joins host and port with a colon, so the socket's file name is `SOCKET:1`.
        server, database, _ = start_server_in_thread(folder, host=f"unix:{socket}", port=1)
    except Exception as error:  # noqa: BLE001 -- the parent reports the cause, whatever it is
        print(f"failed: {type(error).__name__}: {error}", flush=True)  # noqa: T201 -- the parent's pipe
        return 1
    print("ready", flush=True)  # noqa: T201 -- the parent's pipe
    sys.stdin.buffer.read()
    server.stop(grace=5).wait()
    database.close()
    return 0


def make_rows_lean(searched: Sequence[str]) -> None:
    """Spare a search the Python objects of stored columns that nobody asked for.

    Milvus Lite makes a row of every column of every hit, each float of its vector too, before it looks at
    `output_fields`. Its segments hold their vectors a second time, as the array that is searched.

    Args:
        searched: the columns that a search reads: the key, the BM25 field, and those that filters name.
    """
    from milvus_lite.engine import collection
    from milvus_lite.storage.segment import Segment

    class LeanSegment(Segment):  # type: ignore[misc]  # the engine has no types
        __slots__ = ("_columns",)

        def __init__(self, *, table: Any, vector_field: str, **others: Any) -> None:
            self._columns = {name: table.column(name) for name in table.column_names if name not in {SEQ, vector_field}}
            kept = [name for name in table.column_names if name in {SEQ, *searched}]
            super().__init__(table=table.select(kept), vector_field=vector_field, **others)

        def row_to_dict(self, row_idx: int) -> dict[str, Any]:
            row = {name: column[row_idx].as_py() for name, column in self._columns.items()}
            return {**row, self._vector_field: self.vectors[row_idx]}

    collection.Segment = LeanSegment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
