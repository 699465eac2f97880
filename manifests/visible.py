"""What of a text can be seen: the one definition by which load refuses a title, and whatever shows one shows it."""

from __future__ import annotations

import functools
import re
import unicodedata

# Characters that show nothing, or change how their neighbours show, outside the categories dropped whole: Unicode's
# Default_Ignorable_Code_Point, the blank Braille pattern, and noncharacters.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufdd0-\ufdef\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\ufffe\uffff\U000e0000-\U000e0fff]"
)
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Co"})
# All that can be one of these; an abstract with a single dash must not have each of its letters looked up.
_UNUSUAL = re.compile(r"[^\x20-\x7e]")


def visible(text: str) -> str:
    """`text` on one line: white space collapsed; control, format, bidi, invisible and private characters gone."""
    spaced = " ".join(text.split())
    if spaced.isascii() and spaced.isprintable():
        return spaced
    return " ".join(_cleaned(spaced).split())


def visible_lines(text: str) -> str:
    """`text` for a terminal: as it is, its line ends and spaces too, without what `visible` takes out of a line."""
    return "\n".join(map(_cleaned, text.split("\n")))


def _cleaned(line: str) -> str:
    return _UNUSUAL.sub(lambda found: _shown(found[0]), line)


@functools.lru_cache(maxsize=4_096)
def _shown(character: str) -> str:
    dropped = unicodedata.category(character) in _DROPPED or _INVISIBLE.fullmatch(character)
    return "" if dropped else character
