"""Errors of the offline program, beside those of the contract (manifests/errors.py).

ContractError
├── InputRefused          3
│   └── BadRecords        3  the snapshot holds records that break the record table
├── SourceError           4  a snapshot's source did not give its notes; pages that came are kept
│   ├── SourceBusy        4  the same call may succeed later (429, 5xx, timeout, cut connection, truncated answer)
│   └── SourceRefused     4  the same call will be refused again (login, access, base URL)
├── UsageError            2  flags or environment that do not fit together
├── WorkFolderHeld        7  another build works in this folder
├── StoreHeld             7  the embedding store is held: a build against `store prune`, or the other way round
├── StoreDamaged          6  a part of the embedding store is not what was written
│   ├── SpecDamaged       6  nothing says of which embedding spec a folder of the store is
│   └── ReferenceDamaged  6  a list of needed texts is not what was written, so nothing may be pruned
├── EmbedStopped          4  provider, quota or budget ended the embed stage; the same command resumes
└── MachineRefused        1  disk full, no permission: nothing was lost, the same command resumes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manifests.errors import ContractError, InputRefused

if TYPE_CHECKING:
    from pathlib import Path


class BadRecords(InputRefused):
    """Records that break the record table; names the first twenty by line, id, field and reason."""


class SourceError(ContractError):
    """The source of a snapshot (OpenReview) did not give what was asked; pages already saved are kept."""

    exit_code = 4


class SourceBusy(SourceError):
    """The same call may succeed later; `retry_after_s` is what the source asked for, None when it asked for nothing."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SourceRefused(SourceError):
    """The same call would be refused again; `status` is the HTTP status, None when there was no answer."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class UsageError(ContractError):
    """Flags or environment that do not fit together."""

    exit_code = 2


class WorkFolderHeld(ContractError):
    """Another build holds the work folder."""

    exit_code = 7


class StoreHeld(ContractError):
    """Builds and `store prune` keep each other out of the embedding store."""

    exit_code = 7


class StoreDamaged(ContractError):
    """The part at `path` of the embedding store is not what was written, for the stated reason."""

    exit_code = 6
    advice = (
        "None of its vectors are used. `python -m pipeline store verify` names every damaged part; restore them from a "
        "copy, or let `python -m pipeline store prune` set them aside: the next build then embeds their texts again"
    )

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the embedding store is damaged: {path}: {reason}. {self.advice}")
        self.path = path
        self.reason = reason


class SpecDamaged(StoreDamaged):
    """The spec.json at `path` is absent or is not that of its folder."""

    advice = (
        "The vectors beside it are left alone. Restore it from a copy, or remove it: the next build with its "
        "provider, model and dimension writes it again"
    )


class ReferenceDamaged(StoreDamaged):
    """The list at `path` of the texts that a manifest or a corpus needs is not what was written."""

    advice = (
        "While it cannot be read, none of the vectors beside it are removed: an index may need them. Restore it from a "
        "copy, or remove it and run `python -m pipeline index --work WORK`, with the other options of its build, for "
        "every index of this machine (an unfinished build: its own command); that lists again what each needs. Then "
        "run this again"
    )


class EmbedStopped(ContractError):
    """The embed stage ended before the last text; what came back is stored and the same command resumes."""

    exit_code = 4


class MachineRefused(ContractError):
    """The machine refused a write: disk full, no permission. The same command resumes."""

    exit_code = 1
