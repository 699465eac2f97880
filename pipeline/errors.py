"""Errors of the offline program, beside those of the contract (manifests/errors.py).

ContractError
├── InputRefused          3
│   └── BadRecords        3  the snapshot holds records that break the record table
├── SourceError           4  a snapshot's source did not give its notes; pages that came are kept
│   ├── SourceBusy        4  the same call may succeed later (429, 5xx, timeout, cut connection, truncated answer)
│   └── SourceRefused     4  the same call will be refused again (login, access, base URL)
├── WorkFolderHeld        7  another build works in this folder
└── MachineRefused        1  disk full, no permission: nothing was lost, the same command resumes
"""

from __future__ import annotations

from manifests.errors import ContractError, InputRefused


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


class WorkFolderHeld(ContractError):
    """Another build holds the work folder."""

    exit_code = 7


class MachineRefused(ContractError):
    """The machine refused a write: disk full, no permission. The same command resumes."""

    exit_code = 1
