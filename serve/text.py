"""What may be shown: text on one line, of bounded length, free of invisible characters.

Text of papers, labels and arguments goes through `visible` before a model reads it.
"""

from __future__ import annotations

import functools

from manifests.visible import visible

ID_CHARS_MAX = 64
WORDS_CHARS_MAX = 120
# Kept free for the first and the last lines of an answer.
FRAME_CHARS = 1_200

# An answer is laid out before it is written, and good papers are found again and again.
paper_text = functools.lru_cache(maxsize=8_192)(visible)


def bounded(text: str, chars_max: int) -> str:
    """`text` within `chars_max`: the last guard behind every answer."""
    return text if len(text) <= chars_max else text[: chars_max - 6] + "\n[cut]"


def shortened(text: str, chars_max: int) -> str:
    """`text` cut at a word within `chars_max`, with an ellipsis when something is missing."""
    if len(text) <= chars_max:
        return text
    cut = text[: chars_max - 1]
    return (cut.rpartition(" ")[0] or cut).rstrip(" ,;:") + "…"


def shown_id(paper_id: str) -> str:
    """A paper id as it is shown."""
    return shortened(visible(paper_id), ID_CHARS_MAX)


def counted(number: int, noun: str) -> str:
    """Such as `1 paper` and `6,341 papers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
