"""What a service asks for that answers "later": the value of a Retry-After header."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# Beyond it a wait says nothing more than "long".
WAIT_MAX_S = 366 * 86_400.0


def asked_wait_s(value: str) -> float | None:
    """Seconds of a number or a date (UTC where it names no zone), a year at most; None when none can be read."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
        except (ValueError, OverflowError):  # a zone of twenty digits is the second
            return None
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (aware - datetime.now(UTC)).total_seconds()
    return min(seconds, WAIT_MAX_S) if math.isfinite(seconds) and seconds >= 0 else None
