"""Errors of the offline program, beside those of the contract (manifests/errors.py).

ContractError
├── InputRefused          3
│   └── BadRecords        3  the snapshot holds records that break the record table
├── WorkFolderHeld        7  another build works in this folder
└── MachineRefused        1  disk full, no permission: nothing was lost, the same command resumes
"""

from __future__ import annotations

from manifests.errors import ContractError, InputRefused


class BadRecords(InputRefused):
    """Records that break the record table; names the first twenty by line, id, field and reason."""


class WorkFolderHeld(ContractError):
    """Another build holds the work folder."""

    exit_code = 7


class MachineRefused(ContractError):
    """The machine refused a write: disk full, no permission. The same command resumes."""

    exit_code = 1
