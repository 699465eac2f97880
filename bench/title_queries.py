"""Known items: queries a person might type who has seen a paper, made from its title by rule and seed.

Five kinds: a few title words in any order, title words with typing errors, the name before the colon, a formula
typed without its markup, and a paraphrase (abbreviations spelled out or the other way round, plainer words, another
order). The paper is the one right answer, so success@10 says whether search finds what is known to be there. A
title that another paper shares is left out.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

SEED = 20260710
QUERIES_PER_KIND = 100

_WORDS_MIN = 4
_WORDS_TAKEN = 4
_TYPO_LETTERS_MIN = 5  # shorter words become other words
_TYPOS_WORDS_MAX = 6
_REPLACED_MIN = 2

_WORD = re.compile(r"[A-Za-z][A-Za-z-]+[A-Za-z]")
_NAME = re.compile(r"([A-Za-z][\w.+-]{2,24}): ")
_FORMULA = re.compile(r"\$[^$]+\$")
_STYLE = re.compile(r"\\(?:text|math)[a-z]{2}\s*|\\(?:boldsymbol|operatorname|underline|emph|text)\b\s*")
_MARKUP = re.compile(r"[$\\{}^_]")
_SMALL_WORDS = (
    "a an and are as at be by can do does for from how in into is it its of on or out over than that the their this "
    "through to toward towards under use using via we what when where which who why with without"
)
_SMALL = frozenset(_SMALL_WORDS.split())
# What people type instead. Read in both directions where both sides are what a title may hold.
_PARAPHRASES = {
    "large language models": "LLMs",
    "large language model": "LLM",
    "vision-language models": "VLMs",
    "multimodal large language models": "MLLMs",
    "reinforcement learning": "RL",
    "graph neural networks": "GNNs",
    "neural networks": "neural nets",
    "stochastic gradient descent": "SGD",
    "mixture-of-experts": "MoE",
    "retrieval-augmented generation": "RAG",
    "chain-of-thought": "CoT",
    "variational autoencoders": "VAEs",
    "out-of-distribution": "OOD",
    "partial differential equations": "PDEs",
    "time series": "temporal sequences",
    "text-to-image": "image generation from text",
    "fine-tuning": "finetuning",
    "pre-training": "pretraining",
}
_PLAINER = {
    "efficient": "fast",
    "scalable": "large scale",
    "novel": "new",
    "accelerating": "speeding up",
    "improving": "better",
    "enhancing": "improve",
    "mitigating": "reducing",
    "understanding": "analysis of",
    "leveraging": "using",
    "towards": "for",
    "toward": "for",
    "benchmarking": "benchmark for",
    "rethinking": "revisiting",
    "optimal": "best",
    "unified": "single",
    "adaptive": "adapting",
    "learning": "learn",
    "training": "train",
    "generation": "generating",
    "reasoning": "reason",
    "optimization": "optimizing",
    "estimation": "estimating",
    "detection": "detecting",
    "prediction": "predicting",
    "models": "model",
    "agents": "agent",
    "framework": "method",
    "approach": "method",
    "robust": "robustness",
}


class KnownItem(NamedTuple):
    """A query and the one paper it is after."""

    kind: str
    query: str
    paper_id: str


def known_items(
    papers: Iterable[tuple[str, str]], *, seed: int = SEED, per_kind: int = QUERIES_PER_KIND
) -> list[KnownItem]:
    """Up to `per_kind` queries of each kind over `papers`, (paper_id, title) each; the same for the same seed."""
    rows = sorted(papers)
    seen = Counter(title.casefold() for _, title in rows)
    rows = [(paper_id, title) for paper_id, title in rows if seen[title.casefold()] == 1]
    items: list[KnownItem] = []
    for kind, make in _KINDS.items():
        chance = random.Random(f"{seed} {kind}")
        shuffled = chance.sample(rows, len(rows))
        made = ((paper_id, make(title, chance)) for paper_id, title in shuffled)
        found = [KnownItem(kind, query, paper_id) for paper_id, query in made if query]
        items += found[:per_kind]
    return items


def _some_words(title: str, chance: random.Random) -> str:
    words = _content_words(title)
    return " ".join(chance.sample(words, _WORDS_TAKEN)) if len(words) >= _WORDS_TAKEN else ""


def _typing_errors(title: str, chance: random.Random) -> str:
    """A third of the words, at least one, with two letters swapped, one missing, or one doubled."""
    words = _content_words(title)[:_TYPOS_WORDS_MAX]
    long = [at for at, word in enumerate(words) if len(word) >= _TYPO_LETTERS_MIN]
    if len(words) < _WORDS_MIN or not long:
        return ""
    for at in chance.sample(long, min(len(long), max(1, len(words) // 3))):
        words[at] = _mistyped(words[at], chance)
    return " ".join(words)


def _mistyped(word: str, chance: random.Random) -> str:
    at = chance.randrange(1, len(word) - 1)
    match chance.choice(("swap", "miss", "double")):
        case "swap" if word[at] != word[at + 1]:
            return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        case "double":
            return word[:at] + word[at] + word[at:]
        case _:
            return word[:at] + word[at + 1 :]


def _name(title: str, _: random.Random) -> str:
    """`LoRA` of `LoRA: Low-Rank ...`: one word that no dictionary holds, by its capitals or digits."""
    named = _NAME.match(title)
    if named is None or not re.search(r"[A-Z0-9].*[A-Z0-9]", named[1]):
        return ""
    return named[1].lower()


def _typed_formula(title: str, _: random.Random) -> str:
    if not _FORMULA.search(title) and "\\" not in title:
        return ""
    return " ".join(_MARKUP.sub("", _STYLE.sub("", title)).split())


def _paraphrase(title: str, chance: random.Random) -> str:
    text = title.lower()
    replaced = 0
    for longer, shorter in _PARAPHRASES.items():
        for old, new in ((longer, shorter), (shorter, longer)):
            if re.search(rf"\b{re.escape(old.lower())}\b", text):
                text = re.sub(rf"\b{re.escape(old.lower())}\b", new, text)
                replaced += 1
                break
    parts = []
    for word in re.findall(r"[\w$\\^{}+-]+", text):
        if word in _PLAINER:
            replaced += 1
            parts.append(_PLAINER[word])
        elif word not in _SMALL:
            parts.append(word)
    if replaced < _REPLACED_MIN or len(parts) < _WORDS_MIN or ": " in title[:25]:
        return ""
    middle = chance.randrange(1, len(parts))
    return " ".join(parts[middle:] + parts[:middle])


def _content_words(title: str) -> list[str]:
    plain = _FORMULA.sub(" ", title)
    return list(dict.fromkeys(word for word in _WORD.findall(plain) if word.lower() not in _SMALL))


_KINDS: dict[str, Callable[[str, random.Random], str]] = {
    "words": _some_words,
    "typos": _typing_errors,
    "name": _name,
    "formula": _typed_formula,
    "paraphrase": _paraphrase,
}
