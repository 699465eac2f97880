"""Errors that cross the contract. Each carries the process exit code of DESIGN.md's table.

ContractError
├── HomeUnknown           2  nothing in the environment says where this user keeps state
├── InputRefused          3  a snapshot, manifest path or judged set cannot be used
├── ProviderError
│   ├── ProviderBusy      4  the same call may succeed later (429, 5xx, timeouts, dropped connections)
│   ├── ProviderRefused   4  the same call will be refused again (key, arrears, invalid parameter)
│   └── TextRefused       4  one text of the batch was refused; the others were not at fault
├── QuotaExhausted        4  no room under the provider-minute limits within the time allowed
├── MilvusError           5  Milvus failed or did not answer
│   └── MilvusTimeout     5  … within the deadline of the call
├── IndexRefused          6  manifest, files or collection differ; names every difference
│   └── ArtifactDamaged   6  artifact.json is not what a build wrote; a build writes it, and the collection, anew
└── ForeignDatabase       6  a ledger file is not ours, of another version, or cannot be opened
"""

from __future__ import annotations

from dataclasses import dataclass


class ContractError(Exception):
    """Base of every expected failure; `str(error)` is the whole message for the user."""

    exit_code: int = 1


class HomeUnknown(ContractError):
    """Neither the environment nor the system says where this user keeps state."""

    exit_code = 2


class InputRefused(ContractError):
    """The input cannot be used as it is: found, expected, what to do."""

    exit_code = 3


class ProviderError(ContractError):
    """The embedding provider did not give vectors."""

    exit_code = 4


class ProviderBusy(ProviderError):
    """The same call may succeed later.

    Attributes:
        reason: in the closed vocabulary of DESIGN.md: `timeout` or `busy`.
        retry_after_s: what the provider asked for, None when it asked for nothing.
    """

    def __init__(self, message: str, *, reason: str = "busy", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class ProviderRefused(ProviderError):
    """The same call would be refused again: key, arrears, access, parameter."""

    reason = "refused"


class TextRefused(ProviderError):
    """The provider refused the text at `position` of the batch, for instance by content inspection."""

    reason = "refused"

    def __init__(self, message: str, *, position: int) -> None:
        super().__init__(message)
        self.position = position


class QuotaExhausted(ContractError):
    """The provider-minute limits leave no room within the time allowed; nothing was sent."""

    exit_code = 4
    reason = "quota"

    def __init__(self, message: str, *, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class MilvusError(ContractError):
    """Milvus failed: connection, engine or request, whatever the SDK raised for it."""

    exit_code = 5


class MilvusTimeout(MilvusError):
    """Milvus did not answer within the deadline of the call."""


@dataclass(frozen=True)
class Difference:
    """One disagreement between what is pinned and what is there."""

    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"


class IndexRefused(ContractError):
    """Manifest, files or collection differ. `differences` holds every one of them."""

    exit_code = 6

    def __init__(self, subject: str, differences: list[Difference]) -> None:
        self.subject = subject
        self.differences = differences
        lines = "".join(f"\n  - {difference}" for difference in differences)
        super().__init__(f"{subject} refused, {len(differences)} difference(s):{lines}")


class ArtifactDamaged(IndexRefused):
    """There is an artifact.json and it is not what a build wrote, so nothing vouches for any collection beside it."""


class ForeignDatabase(ContractError):
    """A SQLite file this program did not write, of another schema version, or that cannot be opened or written."""

    exit_code = 6
