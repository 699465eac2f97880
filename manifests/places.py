"""Where all builds and servers of a machine keep what they share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from manifests.errors import HomeUnknown

APPLICATION = "icml-paper-search"


def state_home(environment: Mapping[str, str]) -> Path:
    """The folder of vectors, provider minutes and server state (XDG Base Directory Specification).

    Raises:
        HomeUnknown: neither `XDG_STATE_HOME` nor the user's home folder says where.
    """
    try:
        return Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / APPLICATION
    except RuntimeError as error:
        raise HomeUnknown(f"{error}; set XDG_STATE_HOME") from error
