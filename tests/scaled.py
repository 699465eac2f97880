"""Run `python -m pipeline` or `python -m serve` with a shorter minute in its ledger, beside an emulator with the same.

python -m tests.scaled WINDOW_S IN_FLIGHT_S pipeline|serve ARGUMENTS...
"""

from __future__ import annotations

import importlib
import sys

from manifests.ledger import Ledger


def shorten(window_s: float, in_flight_s: float) -> None:
    """Every ledger that this program opens has this window."""
    defaults = Ledger.__init__.__kwdefaults__
    assert defaults is not None
    assert {"window_s", "in_flight_s"} <= defaults.keys()
    defaults |= {"window_s": window_s, "in_flight_s": in_flight_s}


if __name__ == "__main__":
    shorten(float(sys.argv[1]), float(sys.argv[2]))
    main = importlib.import_module(f"{sys.argv[3]}.__main__").main
    sys.exit(main(sys.argv[4:]))
