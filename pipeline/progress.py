"""How a stage says how far it is; the console decides how that looks."""

from __future__ import annotations

from collections.abc import Callable

# (done, total or None when unknown, note such as the quota in use): called as often as the stage likes
Report = Callable[[int, int | None, str], None]


def silent(_done: int, _total: int | None, _note: str) -> None:
    """A report nobody reads."""
