"""What the model reads of sessions: a clean label, times in UTC, bounded."""

from __future__ import annotations

from serve import session_answers
from serve.session import Session, SessionLimits

LIMITS = SessionLimits(21_600, 10_000, 200, 5_000)


def test_session_texts_carry_a_clean_label_and_times_in_utc():
    session = Session(1, "my\u202e topic", 5, "", 1_800_000_000, 1_800_003_600, 3, 30)

    status = session_answers.session_status(session, LIMITS, 1_800_003_660)
    assert status == (
        'Session "my topic": 30 papers returned in 3 rounds. Opened 2027-01-15 08:00 UTC, last used'
        " 2027-01-15 09:00 UTC, expires in 6 h without use. default_top_k 5. Left: 197 rounds, 4,970 papers."
    )
    assert session_answers.session_closed(session, 1_800_007_200).startswith(
        'Session "my topic" closed: 30 papers returned in 3 rounds over 2 h.'
    )


def test_session_papers_are_bounded():
    session = Session(1, "", None, "", 0, 0, 3, 900)
    titles = [(f"paper{number:03}", "title " * 20) for number in range(200)]

    listed = session_answers.session_papers("Status.", session, titles, chars_max=4_000)

    assert len(listed) <= 4_000
    assert "more not shown" in listed
    assert session_answers.session_papers("Status.", session._replace(papers=0), [], chars_max=4_000).endswith(
        "No papers returned yet."
    )
