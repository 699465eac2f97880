"""The dataset card of the sample tells the truth, and every hard case that it promises is there."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from difflib import SequenceMatcher
from typing import Any

import pytest

from manifests.collection import FIELD
from manifests.files import file_sha256
from manifests.texts import embed_text, normalise, search_text
from tests.programs import SAMPLE

Paper = dict[str, Any]


@pytest.fixture(scope="module")
def text() -> str:
    return (SAMPLE / "papers.jsonl").read_bytes().decode("utf-8")


@pytest.fixture(scope="module")
def papers(text: str) -> list[Paper]:
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


@pytest.fixture(scope="module")
def card() -> str:
    return " ".join((SAMPLE.parent / "README.md").read_text(encoding="utf-8").split())


def words(paper: Paper) -> set[str]:
    return set(search_text(paper["title"], paper.get("abstract"), paper["keywords"], paper["authors"]).split())


def embedded(paper: Paper) -> str:
    return embed_text(paper["title"], paper.get("abstract"))


def test_snapshot_json_states_count_digest_and_licence(papers: list[Paper]) -> None:
    snapshot = json.loads((SAMPLE / "snapshot.json").read_text(encoding="utf-8"))
    assert snapshot == {
        "name": "sample",
        "title": "Sample Conference 2026",
        "source": "written for this repository",
        "url": "https://example.org/sample-conference-2026",
        "retrieved_at": "2026-11-30T00:00:00Z",
        "licence": "CC0-1.0",
        "papers": len(papers),
        "files": {"papers.jsonl": file_sha256(SAMPLE / "papers.jsonl")},
    }
    assert {path.name for path in SAMPLE.iterdir()} == {"snapshot.json", "papers.jsonl"}


def test_file_is_plain_utf8_with_lf_and_no_needless_escapes(text: str) -> None:
    assert text.endswith("}\n")
    assert not text.startswith("\ufeff")
    assert "\r" not in text
    assert "\\u" not in text


def test_counts_are_those_of_the_card(papers: list[Paper], card: str) -> None:
    areas = {paper["primary_area"] for paper in papers} - {None}
    abstracts = [paper["abstract"] for paper in papers if "abstract" in paper]
    for claim in (
        f"{len(papers)} short papers",
        f"{len({paper['title'] for paper in papers})} distinct",
        f"{sum(bool(abstract.strip()) for abstract in abstracts)} with text",
        f"{abstracts.count('')} empty",
        f"{sum(bool(a) and not a.strip() for a in abstracts)} of white space only",
        f"absent in {len(papers) - len(abstracts)} records",
        f"{min(len(p['authors']) for p in papers)} to {max(len(p['authors']) for p in papers)} names",
        f"{len(areas)} areas",
        f"null in {sum(p['primary_area'] is None for p in papers)} records",
        f"{sum(p['paper_type'] == 'regular' for p in papers)} `regular`",
        f"{sum(p['paper_type'] == 'position' for p in papers)} `position`",
        f"{sum(p.get('spotlight', False) for p in papers)} spotlights",
        f"{sum(p.get('oral', False) for p in papers)} orals",
        f"({sum(p.get('oral', False) and p.get('spotlight', False) for p in papers)} are both)",
        f"both keys absent in {sum('spotlight' not in p and 'oral' not in p for p in papers)} records",
        f"null in {sum(p['forum_url'] is None for p in papers)} and in the first",
        f"in {sum('decision' in p for p in papers)} records",
        f"in {sum(has_latex(p['title']) for p in papers)} titles",
        f"and {sum(has_latex(p.get('abstract', '')) for p in papers)} abstracts",
        f"{len({embedded(p) for p in papers})} distinct embed texts",
    ):
        assert claim in card


def has_latex(text: str) -> bool:
    return "$" in text or "\\" in text


def test_types_change_late_in_the_file(papers: list[Paper]) -> None:
    assert [paper["pdf_url"] is None for paper in papers] == [True] * 120 + [False] * 30
    assert [paper["keywords"] == [] for paper in papers] == [True] * 12 + [False] * 138
    assert ["award" in paper for paper in papers] == [False] * 149 + [True]


def test_ids_are_ten_characters_and_two_pairs_differ_only_in_case(papers: list[Paper]) -> None:
    ids = [paper["id"] for paper in papers]
    folded = Counter(paper_id.lower() for paper_id in ids)

    assert len(set(ids)) == len(ids)
    assert {len(paper_id) for paper_id in ids} == {10}
    assert sorted(folded.values())[-3:] == [1, 2, 2]
    assert any(paper_id.startswith("-") for paper_id in ids)


def test_areas_have_two_levels_and_every_awkward_sign(papers: list[Paper]) -> None:
    areas = {paper["primary_area"] for paper in papers} - {None}

    assert all(area.count("->") == 1 for area in areas)
    assert len({area.split("->")[0] for area in areas}) == 11
    for sign in (",", "/", '"', "'", "\\", "&"):
        assert any(sign in area for area in areas), sign
    slugs = {area for area in areas if re.fullmatch("[a-z_]+->[a-z_]+", area)}
    assert len(slugs) == 4
    assert {"Deep Learning->Robustness", "deep_learning->robustness"} <= areas


@pytest.mark.parametrize(
    ("query", "raw"),
    [
        ("Renyi", "Rényi Divergence"),
        ("classification lesion", "Classiﬁcation"),
        ("tau2-bench", r"$\tau^2$-Bench"),
        ("A2DEPT", "$A_2$DEPT"),
        ("non-invasive glucose", "Non\u2011invasive"),
        ("flash attention", "flash_attention_2"),
        ("flash_attention_2", "flash_attention_2"),
        ("Levy polya", r"L\'evy"),
        ("l infinity", r"$\ell_\infty$"),
        ("L0 L1 smoothness", "$(L_0,L_1)$-Smoothness"),
        ("PRIM planner", "PRIM：A Planner"),
        ("phylogenetic", "phylo\u00adgenetic"),
        ("seismic picking", "Pick\u200bing"),
        ("C# clone", "C++ or C#?"),
        ("Quokkaformer", "Quokkaformer"),
        ("Zyzzyva", "Zyzzyva"),
        ("photoplethysmography", "Photoplethysmography"),
    ],
)
def test_hard_words_are_there_and_point_to_one_paper(query: str, raw: str, papers: list[Paper]) -> None:
    holding = [paper for paper in papers if set(normalise(query).split()) <= words(paper)]
    assert len(holding) == 1
    assert raw in holding[0]["title"] + "\n" + holding[0].get("abstract", "")


def test_names_of_many_scripts_are_there(papers: list[Paper]) -> None:
    names = [name for paper in papers for name in paper["authors"]]

    assert {"Fang DONG(董方)", "周欣", "TT", "l r"} <= set(names)
    for script in ("CJK UNIFIED", "HANGUL", "CYRILLIC", "GREEK", "HEBREW", "ARABIC"):
        assert any(unicodedata.name(name[0]).startswith(script) for name in names), script
    assert sum(not unicodedata.is_normalized("NFC", name) for name in names) >= 1
    assert max(len(set(paper["authors"])) for paper in papers) == 60


@pytest.mark.parametrize(
    "scrap",
    [
        *"“”’：（）＜Ｇ²³₂⁻×°≠🍜",
        "\u00a0",
        "\u2028",
        "\u200f",
        "&amp;",
        "&mdash;",
        "$5 and $6",
        "``",
        "---",
        "É",
        "\u0301",
    ],
)
def test_scrap_is_in_the_file(scrap: str, text: str) -> None:
    assert scrap in text


def test_near_identical_papers_are_there(papers: list[Paper]) -> None:
    by_title = Counter(paper["title"] for paper in papers)
    by_embed_text = Counter(embedded(paper) for paper in papers)
    raw = Counter((paper["title"], paper.get("abstract")) for paper in papers)
    twins = [title for title, count in by_title.items() if count == 2]
    layer = next(paper for paper in papers if "Learned per Layer" in paper["title"])
    head = next(paper for paper in papers if "Learned per Head" in paper["title"])

    assert sorted(by_embed_text.values())[-3:] == [1, 2, 2]
    assert sorted(raw.values())[-2:] == [1, 2]
    assert sorted(twins) == ["Exploration by Planning to Be Wrong", "Stein Thinning of Long Chains in Linear Time"]
    assert SequenceMatcher(None, embedded(layer).split(), embedded(head).split()).ratio() > 0.9


def test_one_title_is_in_capitals_and_one_begins_with_an_operator(papers: list[Paper]) -> None:
    titles = [paper["title"] for paper in papers]
    assert sum(title.isupper() for title in titles) == 1
    assert sum(title.startswith("NOT ") for title in titles) == 1


def test_every_record_is_within_the_limits_of_the_collection(papers: list[Paper]) -> None:
    for paper in papers:
        assert paper["title"].strip()
        assert len(paper["title"].encode()) <= FIELD["title"].bytes_max
        assert len(paper.get("abstract", "").encode()) <= FIELD["abstract"].bytes_max
        assert len(paper["authors"]) <= FIELD["authors"].count_max
        for url in (paper["forum_url"], paper["pdf_url"]):
            assert url is None or url.startswith("https://example.org/")
