"""The one retry policy towards a provider: busy is tried again, later and later; everything else is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from manifests.errors import ProviderBusy, ProviderError

R = TypeVar("R")


@dataclass(frozen=True)
class Patience:
    """How patient a caller may be.

    Attributes:
        attempts_max: times one call is made before the caller gives up.
        wait_max_s: longest wait between two of them, unless the provider asks for another.
        retry_after_max_s: longest wait a provider may ask for; past it the caller gives up.
    """

    attempts_max: int = 6
    wait_max_s: float = 30.0
    retry_after_max_s: float = 90.0


class Stopped(ProviderError):
    """Not called: the caller is ending."""


def patiently(call: Callable[[], R], patience: Patience, stopping: threading.Event) -> R:
    """What `call` returns; `stopping` ends every wait.

    Raises:
        ProviderError: the last one that `call` raised, or `Stopped`.
    """

    def once() -> R:
        if stopping.is_set():
            raise Stopped
        return call()

    def gives_up(state: tenacity.RetryCallState) -> bool:
        return state.attempt_number >= patience.attempts_max or (_asked_s(state) or 0.0) > patience.retry_after_max_s

    def wait_s(state: tenacity.RetryCallState) -> float:
        asked = _asked_s(state)
        if asked is not None:
            return asked
        return tenacity.wait_random_exponential(multiplier=1, max=patience.wait_max_s)(state)

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(ProviderBusy),
        stop=gives_up,
        wait=wait_s,
        sleep=tenacity.sleep_using_event(stopping),
        reraise=True,
    )(once)


def _asked_s(state: tenacity.RetryCallState) -> float | None:
    """The wait that the provider asked for."""
    error = state.outcome.exception() if state.outcome else None
    return error.retry_after_s if isinstance(error, ProviderBusy) else None
