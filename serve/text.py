"""What may be shown: text on one line, of bounded length, free of invisible characters.

Text of papers, labels and arguments goes through `clean` before a model reads it.
"""

from __future__ import annotations

import functools
import re
import unicodedata

ID_CHARS_MAX = 64
WORDS_CHARS_MAX = 120
# Kept free for the first and the last lines of an answer.
FRAME_CHARS = 1_200

# Characters that show nothing, or change how their neighbours show, outside the categories dropped whole.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0000-\U000e0fff\ufdd0-\ufdef\ufffe\uffff]"
)
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Co"})
# All that can be one of these; an abstract with a single dash must not have each of its letters looked up.
_UNUSUAL = re.compile(r"[^\x20-\x7e]")


def clean(text: str) -> str:
    """`text` on one line: white space collapsed; control, format, bidi, invisible and private characters gone."""
    spaced = " ".join(text.split())
    if spaced.isascii() and spaced.isprintable():
        return spaced
    return " ".join(_UNUSUAL.sub(lambda found: _shown(found[0]), spaced).split())


# An answer is laid out before it is written, and good papers are found again and again.
paper_text = functools.lru_cache(maxsize=8_192)(clean)


@functools.lru_cache(maxsize=4_096)
def _shown(character: str) -> str:
    dropped = unicodedata.category(character) in _DROPPED or _INVISIBLE.fullmatch(character)
    return "" if dropped else character


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
    return shortened(clean(paper_id), ID_CHARS_MAX)


def counted(number: int, noun: str) -> str:
    """Such as `1 paper` and `6,341 papers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
