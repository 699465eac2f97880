r"""LaTeX in running text, taken off for the search text: `L\'evy`, `$\tau^2$`, `\textbf{A}bc`.

Titles and abstracts hold LaTeX in pieces, not documents: unbalanced, unknown commands, prices that look like formulas.
pylatexenc's parser needs 10 ms for one abstract, so only its tables are used: which command stands for which
character. One pass, linear in the text, no recursion, never an error.
"""

from __future__ import annotations

import functools
import re
import unicodedata

from pylatexenc import latex2text

# Unicode calls it LAMDA; nobody searches for that. codespell:ignore lamda
GREEK = {
    letter: unicodedata.name(letter).rsplit(" ", 1)[1].lower().replace("lamda", "lambda")  # codespell:ignore lamda
    for letter in "αβγδεζηθικλμνξοπρστυφχψω"
}

# Stands for `_` where LaTeX means a subscript. A noncharacter: no text should hold it, and if one does, it only
# reads as a subscript.
_SUBSCRIPT = "\ufdd0"

_FORMULA_CHARS_MAX = 1_000

# Commands whose argument is no text: it goes with the command.
_WITH_ARGUMENT = re.compile(
    r"\\(?:[A-Za-z]{0,10}cite[A-Za-z]{0,10}|(?:eq|c|C|auto|page)?ref|label|begin|end|[vh]space|includegraphics)\*?"
    r"(?:\[[^\[\]]{0,100}\]){0,2}\{[^{}]{0,300}\}"
)
_WITH_ARGUMENT_INSIDE_WORDS = re.compile(r"\\(?:(?:text)?color|fontfamily|fontsize)\{[^{}]{0,50}\}")

_DELIMITER = re.compile(r"\\[()\[\]]")
_COMMAND = re.compile(r"\\(?:([A-Za-z]+)\*?( *)|([^A-Za-z]))")
_TEXT_SUBSCRIPT = re.compile(r"(\\[A-Za-z]+|\})_|_(?=\{)")
# A subscript joins its base when it is a number or one letter: `A_2`, `L_{0}`, `L_p`. Longer ones are words of their
# own, as they are where people type them without dollars: `D_{KL}`, `f_\theta`.
_JOINING = re.compile(_SUBSCRIPT + r"(?=\{*\s?[0-9]|[A-Za-z](?![A-Za-z0-9])|\{+\s?[A-Za-z]\s?\})")

_ACCENTS_AND_JOINTS = dict.fromkeys("'`\"^~=.-/!", "")
_SIGNS = {**_ACCENTS_AND_JOINTS, "_": "_", "#": "#"}

# What pylatexenc does not list, or not for this purpose (its `\today` would read the clock), by effect:
# the argument stays, joined to what stands before it; or a space.
_TRANSPARENT = (
    "em bf it rm tt sc sf sl cal operatorname boldsymbol bm textsf texttt textup textmd textnormal underline uline "
    "textsuperscript textsubscript left right middle big Big bigg Bigg bigl bigr Bigl Bigr limits nolimits "
    "displaystyle textstyle selectfont xspace mbox hbox enquote ensuremath url t"
)
_SPACES = (
    "frac tfrac dfrac cfrac nicefrac binom sqrt quad qquad choose item newline par noindent colon footnote href today"
)


def without_latex(text: str) -> str:
    r"""`text` with commands replaced by what they stand for, formulas opened and subscripts joined.

    Braces and `^` stay for the caller, who deletes them from every text.
    """
    text = _formulas_opened(text)
    if "\\" in text:
        if "{" in text:
            text = _WITH_ARGUMENT.sub(" ", text)
            text = _WITH_ARGUMENT_INSIDE_WORDS.sub("", text)
        text = _COMMAND.sub(_meaning, text)
    return _JOINING.sub("", text).replace(_SUBSCRIPT, " ")


def _formulas_opened(text: str) -> str:
    r"""Dollars of formulas deleted, so that `$A_2$DEPT` is one word; other dollars are spaces."""
    commands = "\\" in text
    if commands:
        text = text.replace("\\$", " ")
    text = text.replace("$$", "$")
    if commands:
        text = _DELIMITER.sub("$", text)
    pieces = text.split("$")
    opened = [_marked(pieces[0])]
    at = 1
    while at < len(pieces):
        if at + 1 < len(pieces) and _is_formula(pieces[at], pieces[at + 1]):
            opened.append(_formula(pieces[at]))
            opened.append(_marked(pieces[at + 1]))
            at += 2
        else:
            opened.append(" ")
            opened.append(_marked(pieces[at]))
            at += 1
    return "".join(opened)


def _formula(piece: str) -> str:
    r"""A formula ready to stand against the next letter: `$\times$D` must not become the command `\timesD`."""
    piece = piece.replace("_", _SUBSCRIPT)
    return piece + "{}" if piece[-1].isalpha() and "\\" in piece else piece


def _is_formula(piece: str, after: str) -> bool:
    """Whether the text between two dollars is a formula and not, say, the price in `$5 and $6`."""
    if not piece or len(piece) > _FORMULA_CHARS_MAX:
        return False
    if piece[0].isspace() or piece[-1].isspace():
        return piece[0].isspace() and piece[-1].isspace() and any(sign in piece for sign in "\\^_")
    return not (piece[0].isdigit() and after[:1].isdigit())


def _marked(text: str) -> str:
    r"""Outside formulas, only `\tau_2`, `}_2` and `_{2}` can be subscripts; `flash_attention_2` is a name."""
    return _TEXT_SUBSCRIPT.sub(rf"\1{_SUBSCRIPT}", text) if "_" in text else text


def _meaning(command: re.Match[str]) -> str:
    r"""The text that one command stands for; an unknown one without argument (`\OurMethod`) stands for its name."""
    name, spaces, sign = command.groups()
    if sign is not None:
        return _SIGNS.get(sign, " ")
    following = command.string[command.end() : command.end() + 2]
    word = _command_words().get(name)
    if word is None:
        return spaces if following[:1] == "{" and following != "{}" else f" {name} "
    if len(name) <= 2 and len(word) <= 1:  # noqa: PLR2004 (`\o re`, `\ss e`, `\v s`: the space only ends the command)
        return word
    return f"{word} " if spaces or (following[:1] == "\\" and word) else word


@functools.cache
def _command_words() -> dict[str, str]:
    """Command name → its text: a letter, a spelled Greek letter, ` log ` as a word apart, a sign, or nothing."""
    words: dict[str, str] = {}
    for spec in latex2text.get_default_latex_context_db().iter_macro_specs():
        text = spec.simplify_repl
        words[spec.macroname] = _word(text) if isinstance(text, str) and "%" not in text else ""
    words.update(dict.fromkeys(_TRANSPARENT.split(), ""))
    words.update(dict.fromkeys(_SPACES.split(), " "))
    words["varTheta"] = "theta"
    words["LaTeX"] = "latex"
    words["TeX"] = "tex"
    return words


def _word(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    if folded in GREEK:
        return GREEK[folded]
    if text.isalpha() and len(text) == 1:
        return text
    if folded == "∞":
        return text
    return f" {text} " if text.isalpha() and text.isascii() else " "
