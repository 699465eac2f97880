"""The answers about search sessions. Nothing here searches or stores."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from manifests.visible import visible
from serve.session import Session, SessionLimits
from serve.text import FRAME_CHARS, WORDS_CHARS_MAX, counted, shortened, shown_id


def session_opened(session_id: str, limits: SessionLimits) -> str:
    """The answer of a new session."""
    return (
        f"session_id: {session_id}\n"
        "Pass it to search_papers and get_papers; papers returned in it are left out of later searches."
        f" It expires after {_duration(limits.ttl_s)} without use and holds at most {limits.rounds:,} rounds"
        f" and {limits.papers:,} papers. Close it with close_search_session."
    )


def session_closed(session: Session, now: float) -> str:
    """The summary of a session that ended."""
    return (
        f"Session{_label(session)} closed: {counted(session.papers, 'paper')} returned in"
        f" {counted(session.rounds, 'round')} over {_duration(now - session.opened_at)}."
        " Its id can no longer be used."
    )


def session_status(session: Session, limits: SessionLimits, now: float) -> str:
    """The progress of a live session."""
    top_k = f" default_top_k {session.default_top_k}." if session.default_top_k else ""
    return (
        f"Session{_label(session)}: {counted(session.papers, 'paper')} returned in {counted(session.rounds, 'round')}."
        f" Opened {_time(session.opened_at)}, last used {_time(session.used_at)},"
        f" expires in {_duration(session.used_at + limits.ttl_s - now)} without use.{top_k}"
        f" Left: {max(0, limits.rounds - session.rounds):,} rounds,"
        f" {max(0, limits.papers - session.papers):,} papers."
    )


def session_papers(status: str, session: Session, titles: Sequence[tuple[str, str]], *, chars_max: int) -> str:
    """`status` with the papers last returned, as many as fit; `titles` are (paper id, title), newest first."""
    lines = [status, "Papers returned, newest first:"]
    left = chars_max - FRAME_CHARS
    for paper_id, title in titles:
        line = f"[{shown_id(paper_id)}] {visible(title)}"
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    shown = len(lines) - 2
    if shown < session.papers:
        lines.append(f"{session.papers - shown:,} more not shown; get_papers shows papers by id.")
    return "\n".join(lines if session.papers else [status, "No papers returned yet."])


def _label(session: Session) -> str:
    return f' "{shortened(visible(session.label), WORDS_CHARS_MAX)}"' if visible(session.label) else ""


def _time(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _duration(seconds: float) -> str:
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit_s or (seconds >= unit_s and seconds % unit_s == 0):
            return f"{seconds / unit_s:.0f} {name}"
    return f"{max(0, seconds):.0f} s"
