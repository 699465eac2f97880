"""The report page: one file that needs nobody, with every paper, and nothing a paper holds gets out of its place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bench.report import projected
from bench.report_page import bars
from tests.programs import REPOSITORY, SAMPLE, Build

BYTES_MAX = 3_000_000


class Elements(HTMLParser):
    """Every element's attributes, and the text of the script elements."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.scripts[-1] += data


def report_page(build: Build, out: Path) -> str:
    places = ("--work", build.work, "--manifest", build.manifest, "--store", build.store, "--out", out)
    command = [sys.executable, "-m", "bench.report", "sample", *map(str, places)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(sample_build: Build, tmp_path_factory: pytest.TempPathFactory) -> str:
    return report_page(sample_build, tmp_path_factory.mktemp("report") / "report.html")


def test_the_page_holds_every_paper_and_what_the_manifest_says(page: str, sample_build: Build) -> None:
    elements = Elements()
    elements.feed(page)
    points = json.loads(elements.scripts[0])

    lines = (SAMPLE / "papers.jsonl").read_text(encoding="utf-8").split("\n")
    assert sorted(row[3] for row in points["papers"]) == sorted(json.loads(line)["title"] for line in lines if line)
    assert all(0 <= coordinate <= 10_000 for row in points["papers"] for coordinate in row[:2])
    assert sample_build.result["digest"][:16] in page
    for check in json.loads(sample_build.manifest.read_text(encoding="utf-8"))["checks"]:
        assert f"<li>{check.replace('_', ' ')}</li>" in page
    assert "<!--" not in page
    assert len(page.encode()) < BYTES_MAX


def test_the_page_loads_nothing(page: str) -> None:
    elements = Elements()
    elements.feed(page)

    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'") in (
        elements.attributes
    )
    assert not [each for each in elements.attributes if each[1] == "src" or each[0] == "link"]
    assert {value for _, name, value in elements.attributes if name == "href"} <= {
        f"#{section}" for section in re.findall(r'id="(\w+)"', page)
    }
    assert "@import" not in page
    assert "url(" not in page


def test_text_of_a_paper_stays_text() -> None:
    assert "<b>" not in bars([("<b>&\"'", 1)])
    assert "&lt;b&gt;&amp;" in bars([("<b>&\"'", 1)])


def test_near_vectors_are_near_on_the_map_and_equal_input_gives_the_equal_map() -> None:
    chance = np.random.default_rng(1)
    centres = np.repeat(np.eye(3, 16, dtype=np.float32) * 9, 40, axis=0)
    vectors = (centres + chance.standard_normal((120, 16))).astype(np.float32)
    points, _ = projected(vectors)
    again, _ = projected(vectors.copy())

    assert np.array_equal(points, again)
    assert points.min() >= 0
    assert points.max() <= 1
    groups = points.reshape(3, 40, 2)
    spread = np.linalg.norm(groups - groups.mean(axis=1, keepdims=True), axis=2).mean()
    between = np.linalg.norm(groups.mean(axis=1)[0] - groups.mean(axis=1)[1])
    assert between > 2 * spread


@pytest.mark.parametrize("papers", [1, 2, 3])
def test_a_map_of_few_papers_is_a_map(papers: int) -> None:
    points, _ = projected(np.eye(papers, 8, dtype=np.float32))

    assert points.shape == (papers, 2)
    assert np.isfinite(points).all()
