"""What the wording of a decision, a status or a venue string says: accepted or why not, and as what.

One definition for OpenReview and for lists. A wording is refused by a word in it, and accepted only when every word of
it is known: "Accept?" and "Accept unless withheld" hold an accepting word and accept nothing.
"""

from __future__ import annotations

import re

# The first that fits: "Desk Reject", "Withdraw", "Submitted to ICML 2026", "ICLR 2022 Submitted", "Not accepted".
REFUSED = (
    (re.compile(r"\bwithdr[ae]w", re.IGNORECASE), "withdrawn"),
    (re.compile(r"\bdesk[ -]*reject", re.IGNORECASE), "desk_rejected"),
    (re.compile(r"\b(?:reject|retract|declin|unaccept|(?:not|non)[ -]*(?:been )?accept)", re.IGNORECASE), "rejected"),
    (
        re.compile(
            r"^submi(?:tted|ssion)\b|\bsubmitted$|\b(?:under|in)[ -]review\b|^active$|\bpending\b|\bundecided\b",
            re.IGNORECASE,
        ),
        "submitted",
    ),
    # ICLR 2017 and 2018 invited papers that they did not take to the "Workshop Track".
    (re.compile(r"\bworkshops?\b", re.IGNORECASE), "other_venue"),
)

# "ICML 2023 OralPoster", "ICML 2025 spotlightposter", not "temporal"; ICLR 2023 named its orals and spotlights by their
# share, "notable-top-5%".
ORAL = re.compile(r"(?<![^\W_])oral|\btop[ _-]*5%", re.IGNORECASE)
SPOTLIGHT = re.compile(r"spotlight|\btop[ _-]*25%", re.IGNORECASE)
# "ICML 2026 Position Oral", ICML.cc/2026/Position_Paper_Track; not "composition".
POSITION = re.compile(r"(?<![^\W_])position(?![^\W_])", re.IGNORECASE)

# A venue's short name with its year says nothing about the decision; the name has two capitals ("NeurIPS 2025").
_VENUE = re.compile(r"\b[A-Z][A-Za-z]*[A-Z][A-Za-z]* (?:19|20)\d\d\b")
_BETWEEN = re.compile(r"[\s()\[\],;:|/+&_-]+")
_ACCEPTING = re.compile(r"accept(?:ed|ance)?|(?:oral|spotlight)?posters?|orals?|spotlights?|highlight|regular")
_SHARE = re.compile(r"\d{1,2}(?:\.\d)?%")
_BESIDE = re.compile(
    r"an?|and|as|award|benchmarks|best|conference|datasets|decision|final|for|full|long|main|notable|outstanding|papers?"
    r"|position|presentation|short|talk|the|top|track"
)


def refusal(wording: str, venue: str = "") -> str | None:
    """Why what is worded so is no accepted paper; None when no word of it refuses.

    Words that the venue's own name holds (a workshop's) say nothing.
    """
    said, own = _spaced(wording), _spaced(venue)
    return next((reason for pattern, reason in REFUSED if pattern.search(said) and not pattern.search(own)), None)


def accepts(wording: str) -> bool:
    """Whether every word is known and at least one says that the paper was accepted."""
    words = [word.lower() for word in _BETWEEN.split(_VENUE.sub(" ", wording)) if word]
    known = all(any(kind.fullmatch(word) for kind in (_ACCEPTING, _SHARE, _BESIDE)) for word in words)
    accepted = any(map(_ACCEPTING.fullmatch, words)) or ORAL.search(wording) or SPOTLIGHT.search(wording)
    return known and bool(accepted) and refusal(wording) is None


def _spaced(text: str) -> str:
    return " ".join(text.replace("_", " ").replace("/", " ").split())
