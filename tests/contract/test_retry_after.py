"""A Retry-After header is a number of seconds or a date; whatever else it holds asks for nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.retry_after import WAIT_MAX_S, asked_wait_s


@pytest.mark.parametrize("zone", [UTC, None], ids=["UTC", "no zone"])
def test_a_date_is_the_time_until_then_in_utc(zone):
    then = datetime.now(UTC).replace(tzinfo=zone) + timedelta(hours=2)

    assert 7_190 < (asked_wait_s(format_datetime(then)) or 0) <= 7_200


@pytest.mark.parametrize(
    "value",
    ["", "soon", "-3", "nan", "Sat, 01 Jan 2000 00:00:00 GMT", "Sat, 01 Jan 2000 00:00:00 +999999999999999999"],
)
def test_what_cannot_be_read_or_is_past_asks_for_nothing(value):
    assert asked_wait_s(value) is None


DATES = st.from_regex(r"(Mon, )?[0-9]{1,3} Jan [0-9]{1,6} [0-9]{1,3}:[0-9]{1,3}(:[0-9]{1,3})? [+-]?[0-9A-Z]{0,25}")


@given(st.text() | DATES)
def test_whatever_it_holds_is_a_wait_of_a_year_at_most_or_nothing(value):
    seconds = asked_wait_s(value)

    assert seconds is None or 0 <= seconds <= WAIT_MAX_S
