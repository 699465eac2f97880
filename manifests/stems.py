"""English word stems: `training`, `trained` and `train` are one word of the search text.

Snowball's English stemmer and one rule for the plurals it does not know, applied until nothing changes, so that a
text stemmed again stays as it is. The words of a corpus repeat, so each is stemmed once and looked up ever after.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

import Stemmer

# Words kept; a corpus of a million papers has some more, which costs one clearing every 50,000 papers or so.
_WORDS_KEPT_MAX = 65_536
# The longest word of a language; longer ones are strings that somebody glued together.
_WORD_CHARS_MAX = 40
# No word of a million needed more than 4.
_ROUNDS_MAX = 8
# `LLMs`, `PDEs`, `GPUs`: Snowball takes an `s` only after a vowel and another letter.
_ABBREVIATIONS = re.compile(r"[bcdfghjklmnpqrstvwxz]{2,}[aeu]?(?<!s)s")


class _Stems(dict[str, str]):
    """Word -> stem, filled as words are asked for; safe to ask from several threads."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()  # the stemmer works in a buffer of its own
        self._stemmer = Stemmer.Stemmer("english", 0)

    def __missing__(self, word: str) -> str:
        if len(word) > _WORD_CHARS_MAX or not (word.isascii() and word.isalpha()):
            return word
        with self._lock:
            stem = word
            for _ in range(_ROUNDS_MAX):
                shorter = stem[:-1] if _ABBREVIATIONS.fullmatch(stem) else self._stemmer.stemWord(stem)
                if shorter == stem:
                    break
                stem = shorter
        if len(self) >= _WORDS_KEPT_MAX:
            self.clear()
        self[word] = stem
        return stem


_stem_of = _Stems().__getitem__


def stemmed(words: Iterable[str]) -> str:
    """The stems of `words` (lower case), divided by single spaces; other scripts and words with digits stay."""
    return " ".join(map(_stem_of, words))
