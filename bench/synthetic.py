"""Made-up papers, alike in every run: as long as real ones, and as often with LaTeX and letters outside ASCII."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.snapshot import GZIP, PapersFile, Provenance, Snapshot
from pipeline.snapshot_write import write_snapshot

SEED = 2026
WORDS = """
we propose a method for learning representations of graphs with diffusion models that improves robustness under
distribution shift and scales to large language attention sparse kernel bounds regret policy gradient inference
Bayesian posterior causal discovery federated optimisation convergence stochastic adaptive benchmark evaluation
reasoning alignment safety protein molecule robotics vision speech transformer token memory efficient training
"""
# As among the papers of a real conference: a third hold LaTeX, a quarter something outside ASCII.
LATEX = (r"$\mathcal{O}(n \log n)$", r"$\epsilon$-greedy", r"$\tau^2$-Bench", r"\textbf{bold}", "$k$", r"$\ell_2$ norm")
UNICODE = (
    "Rényi",
    "naïve",
    "Schrödinger",
    "ﬁne-tuning",
    "Poincaré",
    "state\u2011of\u2011the\u2011art",
    "“curly”",
    "β-VAE",
)
LATEX_SHARE, UNICODE_SHARE, NAME_SHARE = 0.06, 0.025, 0.03
NAMES = "Ada Wei Ivan Kenji Amara Okafor Smith Chen Kumar Rossi Novak Silva Tanaka Brown Ali Weber"
ACCENTED = "José Łukasz Müller Nguyễn Søren Chloé Zoë Petrović García"
AREAS = [f"{parent}->Topic {child}" for parent in ("Deep Learning", "Theory", "Applications") for child in range(25)]


def synthetic_snapshot(folder: Path, records: Iterable[Mapping[str, Any]], *, file: PapersFile = GZIP) -> Snapshot:
    """A snapshot of `records`, named after its folder."""
    provenance = Provenance(
        name=folder.name, title="Made up", source="bench", url="", retrieved_at="2026-01-01T00:00:00Z", licence="none"
    )
    return write_snapshot(folder, provenance, records, file=file)


def synthetic_records(count: int, seed: int = SEED) -> Iterator[dict[str, Any]]:
    """`count` records of a snapshot."""
    chance = random.Random(seed)
    words, names, accented = WORDS.split(), NAMES.split(), ACCENTED.split()
    sentences = [_sentence(chance, words) for _ in range(20_000)]
    authors = [
        f"{chance.choice(accented if chance.random() < NAME_SHARE else names)} {chance.choice(names)}"
        for _ in range(2_000)
    ]
    for number in range(count):
        paper_id = f"{number:010x}"
        yield {
            "id": paper_id,
            "title": chance.choice(sentences)[:80].strip().title() + f" {number}",
            "abstract": " ".join(chance.choices(sentences, k=6)),
            "authors": chance.choices(authors, k=1 + number % 8),
            "keywords": chance.choices(words, k=number % 4),
            "primary_area": chance.choice(AREAS) if number % 12 else None,
            "paper_type": "regular",
            "spotlight": number % 11 == 0,
            "oral": number % 44 == 0,
            "forum_url": f"https://example.org/forum?id={paper_id}",
            "pdf_url": None,
        }


def _sentence(chance: random.Random, known: list[str]) -> str:
    words = chance.choices(known, k=18)
    for share, special in ((LATEX_SHARE, LATEX), (UNICODE_SHARE, UNICODE)):
        if chance.random() < share:
            words.insert(chance.randrange(len(words)), chance.choice(special))
    return " ".join(words).capitalize() + "."
