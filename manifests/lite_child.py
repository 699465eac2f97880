"""Run Milvus Lite on one folder behind one private Unix socket until standard input closes.

Started by lite.py as a script of its own: the engine's Python loops then cost the parent no interpreter lock, its
unauthenticated port is a socket only the parent's user can reach, and it cannot outlive the parent, whatever kills
the parent closes the pipe.

    python -P lite_child.py FOLDER SOCKET

Prints `ready` or `failed: CAUSE` and nothing else.
"""

from __future__ import annotations

import signal
import sys


def main(folder: str, socket: str) -> int:
    """Serve `folder` on `socket`; 0 after an orderly end, 1 when the folder cannot be opened."""
    # Ctrl-C goes to the whole foreground group; the parent decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from milvus_lite.adapter.grpc.server import start_server_in_thread

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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
