"""`just acceptance` installs each public suite once, whatever became of an install before."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.acceptance import once


def test_an_install_is_made_anew_until_it_ended_well_and_for_another_version(tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    made: list[list[Path]] = []

    def make() -> None:
        made.append(list(folder.iterdir()))
        (folder / "python").touch()
        if len(made) == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        once(folder, "suite==1", make)
    for wanted in ("suite==1", "suite==1", "suite==2"):
        once(folder, wanted, make)

    assert made == [[], [], []]
