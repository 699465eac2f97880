r"""The two texts of a paper: what BM25 indexes and what is embedded. Display text is never changed.

*Search text*: one normaliser for documents and queries. It gives only words of letters and digits, folded, stemmed and
divided by single spaces, so that every engine's standard tokenizer finds the same words: `Rényi` and `Renyi`,
`classiﬁcation` and `classification`, `$\tau^2$-Bench`, `τ²-Bench` and `tau2-bench`, `training` and `trained`.

*Embed text*: title, newline, abstract, in NFC with white space collapsed. Its sha256 keys the vectors, so another
version of the search text buys no vector again.

Any change in what these functions return raises the version beside them: published indexes hold the old words.
"""
# ruff: noqa: RUF001 (look-alike characters are this module's business)

from __future__ import annotations

import functools
import hashlib
import html
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from manifests.latex import GREEK, without_latex
from manifests.stems import stemmed

SEARCH_TEXT_VERSION = 1
EMBED_TEXT_VERSION = 1

# Times the title stands in the search text (docs/retrieval.md has the evidence).
TITLE_TIMES = 2
# No character's words take more bytes than this for each of its own: U+FDFA, three bytes, becomes 33.
_GROWTH_MAX = 12

# Lucene's English stop words, as stems. Documents keep them, so that `Will` finds an author and a query of nothing else
# still finds something; a query drops them, which ranks better and spares Milvus the longest postings.
_FUNCTION_WORDS_PLAIN = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
FUNCTION_WORDS = frozenset(stemmed(_FUNCTION_WORDS_PLAIN.split()).split())

_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# `&amp;lt;` is `<` encoded twice; texts encoded more often than this are not worth a loop without an end.
_ENTITY_ROUNDS_MAX = 3

_NON_ASCII = re.compile(r"[^\x00-\x7f]+")
_WORD = re.compile(r"[^\W_]+")
_JOINED_SIGNS = re.compile(r"[\^{}]+")

# `L_2`, `L_p`, `pi_0` are subscripts also where nobody typed dollars; in `flash_attention_2` the `_` divides words.
# (Patterns begin with the rare character, which the engine finds quickly; what precedes it is looked up from there.)
_BASE = "|".join(rf"(?<=(?<!\w){base}_)" for base in (r"[^\W\d_]", *GREEK.values()))
_SUBSCRIPT = re.compile(rf"_(?:{_BASE})(?=[0-9]|[A-Za-z](?!\w))", re.IGNORECASE)
# The possessive is no part of the name: `Doob's` is found by `Doob`. Inside a word (`don't`, `O'Brien`) it joins.
_APOSTROPHE = re.compile(r"'(?<=\w')(?:[sS](?!\w)|(?=\w))")
_C_PLUS_PLUS = re.compile(r"(?<!\w)[cC]\+\+")
_C_SHARP = re.compile(r"(?<!\w)([cCfF])#")

_ASCII_WORDS = bytes(
    ord(character.lower()) if character.isascii() and character.isalnum() else ord(" ")
    for character in map(chr, range(256))
)

_COMBINING = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")
_GREEK_LETTER = re.compile("(?<![\u0370-\u03ff\u1f00-\u1fff])[α-ω](?![\u0370-\u03ff\u1f00-\u1fff])")
# Chinese, Japanese and Korean words stand against Latin ones without a space.
_EAST_ASIAN = re.compile(
    "[\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)
# After case folding, before NFKD.
_VARIANTS = str.maketrans(
    {
        **dict.fromkeys("’‘‛ʼʻ´＇", "'"),
        **dict.fromkeys("™℠", " "),  # NFKC would glue TM and SM to the word before
        "∞": " infinity ",
        "∆": "δ",  # the sign of an increment is typed for the letter
    }
)
# Letters that Unicode does not decompose into a base letter and an accent.
_BASE_LETTERS = str.maketrans({**dict(zip("łøđðħŧıȷƒ", "loddhtijf", strict=True)), "æ": "ae", "œ": "oe", "þ": "th"})
# Letters by category, but nothing to see: Hangul fillers. The Arabic tatweel only stretches a word.
_INVISIBLE_LETTERS = frozenset("\u115f\u1160\u3164\uffa0\u0640")
_RUN_CACHED_CHARS_MAX = 32


def search_text(title: str, abstract: str | None, keywords: Sequence[str], authors: Sequence[str]) -> str:
    """What BM25 indexes of a paper: the words of all four, normalised, divided by single spaces; the title's twice."""
    parts = [*[title] * TITLE_TIMES, abstract or "", *keywords, *authors]
    together = "\n".join(parts)
    # Only markup can reach over the end of a part, and an entity may hide some.
    if not _may_hold_markup(together) and not _may_hold_entities(together):
        return normalise(together)
    return " ".join(filter(None, map(normalise, _runs(parts))))


def search_text_of(paper: Mapping[str, Any]) -> str:
    """The search text of a paper by its stored fields."""
    return search_text(paper["title"], paper["abstract"], paper["keywords"], paper["authors"])


def search_text_bytes_max(title: str, abstract: str | None, keywords: Sequence[str], authors: Sequence[str]) -> int:
    """A bound on the UTF-8 bytes of that search text, without making it."""
    parts = [*[title] * TITLE_TIMES, abstract or "", *keywords, *authors]
    return _GROWTH_MAX * len("\n".join(parts).encode())


def query_text(query: str) -> str:
    """What BM25 is asked for: the query's words, normalised, without function words unless it holds no others."""
    words = normalise(query)
    return " ".join(word for word in words.split() if word not in FUNCTION_WORDS) or words


def normalise(text: str) -> str:
    """`text` as words of letters and digits, folded, stemmed, divided by single spaces; "" if it holds none.

    For a query (see `query_text`) as for each part of a paper. Never raises; linear in the text.
    """
    if _may_hold_entities(text):
        text = _without_entities(text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if _may_hold_markup(text):
        text = without_latex(text)
    if "_" in text:
        text = _SUBSCRIPT.sub("", text)
    if not text.isascii():
        text = _NON_ASCII.sub(_folded, text)
    if "'" in text:
        text = _APOSTROPHE.sub("", text)
    if "+" in text or "#" in text:
        text = _C_SHARP.sub(r" \1sharp ", _C_PLUS_PLUS.sub(" cplusplus ", text))
    if "{" in text:
        text = text.replace("}{", " ")
    if text.isascii():
        return stemmed(text.encode().translate(_ASCII_WORDS, b"^{}").decode().split())
    return stemmed(_WORD.findall(_JOINED_SIGNS.sub("", text).lower()))


def embed_text(title: str, abstract: str | None) -> str:
    """What is embedded of a paper: title, newline, abstract, each collapsed; without abstract the title alone."""
    abstract = collapsed(abstract or "")
    return f"{collapsed(title)}\n{abstract}" if abstract else collapsed(title)


def collapsed(text: str) -> str:
    """`text` in NFC, every run of white space one space, none at the ends: a query as it is embedded and cached."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()  # most texts: the only white space is single spaces
    return " ".join(unicodedata.normalize("NFC", text).split())


def text_sha256(text: str) -> str:
    """Sha256 (hex) of the UTF-8 bytes of an embed text or a query; a lone surrogate is hashed, not refused."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _runs(parts: Sequence[str]) -> list[str]:
    """The parts, neighbours without markup and entities put together: calls cost more than short texts."""
    runs: list[str] = []
    plain = False
    for part in parts:
        was_plain, plain = plain, not _may_hold_markup(part) and not _may_hold_entities(part)
        if was_plain and plain:
            runs[-1] += "\n" + part
        else:
            runs.append(part)
    return runs


def _may_hold_markup(text: str) -> bool:
    return "\\" in text or "$" in text or ("_" in text and "_{" in text)


def _may_hold_entities(text: str) -> bool:
    return "&" in text and ";" in text


def _without_entities(text: str) -> str:
    for _ in range(_ENTITY_ROUNDS_MAX):
        decoded = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
        if decoded == text:
            break
        text = decoded
    return text


def _folded(run: re.Match[str]) -> str:
    text = run[0]
    return _folded_cached(text) if len(text) <= _RUN_CACHED_CHARS_MAX else _folded_run(text)


@functools.lru_cache(maxsize=16_384)
def _folded_cached(run: str) -> str:
    return _folded_run(run)


def _folded_run(run: str) -> str:
    """One run of non-ASCII characters without case, accents and variants; spaces for signs, nothing for the unseen."""
    text = unicodedata.normalize("NFKD", run.casefold().translate(_VARIANTS))
    text = unicodedata.normalize("NFKC", _COMBINING.sub("", text)).casefold()
    text = _GREEK_LETTER.sub(lambda letter: GREEK[letter[0]], text)
    text = text.translate(_KEPT)
    return _EAST_ASIAN.sub(r" \g<0> ", text)


class _Kept(dict[int, str]):
    """What stays of a folded character, learned as they come: letters, digits and `'`; else nothing or a space."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if character in _INVISIBLE_LETTERS or category[0] == "M" or category == "Cf":
            kept = ""
        else:
            kept = character if character.isalnum() or character == "'" else " "
        self[code] = kept
        return kept


_KEPT = _Kept(_BASE_LETTERS)
