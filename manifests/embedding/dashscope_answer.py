"""What an answer of DashScope means: its vectors, its usage, and whether asking again may help.

Status and code decide, never the message. Nothing of an answer is believed before it was checked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from manifests.embedding import VectorsUnusable, check_vectors
from manifests.embedding.spec import Vectors
from manifests.errors import ProviderBusy
from manifests.retry_after import asked_wait_s
from manifests.visible import visible

MESSAGE_CHARS_MAX = 300
# What a model may put around each text.
FRAME_TOKENS = 16

_BUSY_CODES = ("throttling", "internalerror", "serviceunavailable", "requesttimeout", "gatewaytimeout")
_INSPECTION_CODES = ("datainspection", "data_inspection")
_PARAMETER_CODES = ("invalidparameter",)
_KEY_LIKE = re.compile(r"sk-[\w.*-]{3,}")


def vectors_of(response: Any, count: int, dimension: int) -> Vectors:
    """The vectors of a 200, shape (count, dimension), each put where its `text_index` says.

    Raises:
        ProviderBusy: another count, an index absent or twice, anything but usable numbers; nothing is kept.
    """
    output = response.output
    embeddings = output.get("embeddings") if isinstance(output, dict) else None
    if not isinstance(embeddings, list) or not all(isinstance(entry, dict) for entry in embeddings):
        raise ProviderBusy("DashScope answered 200 without embeddings; nothing of it is kept")
    indexes = [entry.get("text_index") for entry in embeddings]
    if not all(type(index) is int for index in indexes) or sorted(indexes) != list(range(count)):
        raise ProviderBusy(
            f"DashScope answered {len(indexes)} vectors for {count} texts, or not one for each; nothing is kept"
        )
    placed = sorted(embeddings, key=lambda entry: entry["text_index"])
    vectors = [entry.get("embedding") for entry in placed]
    if not all(isinstance(vector, list) for vector in vectors):
        raise ProviderBusy("DashScope answered 200 with something else than vectors; nothing of it is kept")
    try:
        return check_vectors(vectors, count, dimension)
    except VectorsUnusable as error:  # may be right the next time
        raise ProviderBusy(f"DashScope answered 200 with {error}; nothing of it is kept") from error


def total_tokens(usage: Any, texts: Sequence[str]) -> int | None:
    """The usage reported, None when none was or these texts cannot have been counted so."""
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    most = sum(len(text.encode()) for text in texts) + FRAME_TOKENS * len(texts)  # no token is shorter than a byte
    return total if type(total) is int and len(texts) <= total <= most else None


def code_of(response: Any) -> str:
    """The service's code in characters a code has; it may come from something that is not the service."""
    return re.sub(r"[^\w.-]", "", str(response.code or ""))[:64] or "without a code"


def is_throttled(status: int, code: str) -> bool:
    """Refused for a quota, however the message words it."""
    return status == HTTPStatus.TOO_MANY_REQUESTS or code.lower().startswith("throttling")


def is_busy(status: int, code: str) -> bool:
    """Whether the same call may succeed later."""
    return (
        is_throttled(status, code)
        or status == HTTPStatus.REQUEST_TIMEOUT
        or status >= HTTPStatus.INTERNAL_SERVER_ERROR
        or code.lower().startswith(_BUSY_CODES)
    )


def is_about_a_text(status: int, code: str, *, over_long: bool) -> bool:
    """By content inspection, or an invalid parameter where a text may be longer than the model takes."""
    return status == HTTPStatus.BAD_REQUEST and (
        code.lower().startswith(_INSPECTION_CODES) or (over_long and code.lower().startswith(_PARAMETER_CODES))
    )


def retry_after_s(response: Any) -> float | None:
    """Seconds of a Retry-After header; None when there is none or none can be read."""
    headers = dict(response.headers or {})
    value = next((value for name, value in headers.items() if name.lower() == "retry-after"), None)
    return None if value is None else asked_wait_s(str(value))


def shown(message: object, key: str) -> str:
    """The service's message for the user: one line any terminal takes, bounded, without a key it may quote."""
    return _KEY_LIKE.sub("[key]", visible(str(message).replace(key, "[key]")))[:MESSAGE_CHARS_MAX]
