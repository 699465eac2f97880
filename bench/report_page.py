"""The page of `bench.report`: one file, no network, every text escaped."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifests.collection import AREA_SEPARATOR
from manifests.contract import Manifest
from manifests.embedding.spec import Vectors
from pipeline.evaluate import Metrics

TEMPLATE = Path(__file__).with_name("report.html")
BYTES_MAX = 2_800_000
# Characters of an abstract a point shows; as many as the page has room for.
SNIPPETS = (240, 160, 100, 50, 0)
AREAS_COLOURED = 12
AUTHORS_SHOWN = 3
BINS = 20
COORDINATES = 10_000


@dataclass(frozen=True)
class Report:
    """Everything the page shows. `points` are in [0, 1]; `before` is the evaluation of the last other collection."""

    manifest: Manifest
    papers: Sequence[Mapping[str, Any]]
    points: Vectors
    projection: str
    neighbours: Sequence[tuple[int, Sequence[tuple[int, float]]]]
    tokens: int
    price_per_million: float | None
    seconds: Mapping[str, float]
    versions: Mapping[str, str]
    built_at: str
    validation_s: float
    evaluation: Metrics
    before: Metrics | None
    made_at: str


def page(report: Report) -> str:
    """The whole page, below `BYTES_MAX` unless titles alone are more."""
    template = TEMPLATE.read_text(encoding="utf-8")
    parts = {
        "title": html.escape(report.manifest.snapshot.title),
        "facts": _facts(report),
        "areas": bars(Counter(paper["area"] for paper in report.papers).most_common()),
        "types": bars(Counter(paper["paper_type"] or "not stated" for paper in report.papers).most_common()),
        "lengths": bars(_lengths(report.papers), narrow=True),
        "stages": _stages(report),
        "validation": _validation(report),
        "evaluation": _evaluation(report.evaluation, report.before),
        "neighbours": _neighbours(report),
        "projection": html.escape(report.projection),
    }
    for name, text in parts.items():
        template = template.replace(f"<!--{name}-->", text)
    text = ""
    for chars in SNIPPETS:
        # JSON inside a script element ends at no `<` of a paper.
        points = json.dumps(_points(report, chars), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        text = template.replace("<!--points-->", points)
        if len(text.encode()) <= BYTES_MAX:
            break
    return text


def _facts(report: Report) -> str:
    manifest = report.manifest
    counts = manifest.snapshot.counts
    spotlight = sum(bool(paper["spotlight"]) for paper in report.papers)
    oral = sum(bool(paper["oral"]) for paper in report.papers)
    cost = "nothing: the model runs on this machine"
    if manifest.embedding.provider != "local":
        cost = "the provider's price"
    if report.price_per_million is not None:
        cost = f"{report.tokens / 1e6 * report.price_per_million:,.2f} at {report.price_per_million:g} a million"
    rows = [
        ("papers", f"{len(report.papers):,}"),
        ("rejected records", f"{counts.rejected:,}"),
        ("spotlight / oral", f"{spotlight:,} / {oral:,}"),
        ("without abstract", f"{sum(not paper['abstract'] for paper in report.papers):,}"),
        ("collection", manifest.collection.name),
        ("manifest digest", manifest.digest[:16]),
        ("embedding", str(manifest.embedding)),
        ("tokens embedded", f"{report.tokens:,} (counted by the local tokenizer)"),
        ("cost of the vectors", cost),
        ("built", report.built_at),
        ("this page", report.made_at),
    ]
    return "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in rows)


def bars(rows: Iterable[tuple[str, int]], *, narrow: bool = False) -> str:
    """A bar a row, as long as its number."""
    rows = list(rows)
    longest = max((number for _, number in rows), default=1) or 1
    return (
        f'<div class="bars{" narrow" if narrow else ""}">'
        + "".join(
            f'<span class="name" title="{html.escape(name)}">{html.escape(name)}</span>'
            f'<span class="track"><span class="bar" style="width:{100 * number / longest:.1f}%"></span></span>'
            f'<span class="number">{number:,}</span>'
            for name, number in rows
        )
        + "</div>"
    )


def _lengths(papers: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Papers by the length of their abstract in characters."""
    lengths = [len(paper["abstract"]) for paper in papers]
    step = max(100, -(-max(lengths, default=0) // (BINS * 100)) * 100)
    counted = Counter(length // step for length in lengths if length)
    rows = [("none", sum(not length for length in lengths))]
    return rows + [(f"{at * step:,}-{(at + 1) * step:,}", counted[at]) for at in range(max(counted, default=-1) + 1)]


def _stages(report: Report) -> str:
    rows = [*report.seconds.items(), ("validate (now)", report.validation_s)]
    cells = "".join(f"<tr><td>{html.escape(name)}</td><td>{seconds:,.1f} s</td></tr>" for name, seconds in rows)
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    return f"<table>{cells}</table><p class=note>{html.escape(versions)}</p>"


def _validation(report: Report) -> str:
    checks = "".join(f"<li>{html.escape(check.replace('_', ' '))}</li>" for check in report.manifest.checks)
    return f"<p>Everything the manifest pins was compared now, and is in place:</p><ul class=checks>{checks}</ul>"


def _evaluation(evaluation: Metrics, before: Metrics | None) -> str:
    if not evaluation:
        return "<p>Not measured: queries to this provider cost money, or no paper suits.</p>"
    kinds = list(next(iter(evaluation.values())))
    head = "".join(f"<th>{html.escape(kind)}</th>" for kind in kinds)
    body = ""
    for leg, found in evaluation.items():
        cells = ""
        for kind in kinds:
            change = found[kind] - before[leg][kind] if before and kind in before.get(leg, {}) else None
            cells += f"<td>{found[kind]:.3f}{'' if change is None else f' <small>({change:+.3f})</small>'}</td>"
        body += f"<tr><th>{html.escape(leg)}</th>{cells}</tr>"
    against = (
        "in brackets the change against the collection before" if before else "no collection before to compare with"
    )
    return f"<table><tr><th></th>{head}</tr>{body}</table><p class=note>{against}</p>"


def _neighbours(report: Report) -> str:
    return "".join(
        f"<li><b>{html.escape(report.papers[row]['title'])}</b><ol>"
        + "".join(
            f"<li><span class=number>{cosine:.3f}</span> {html.escape(report.papers[other]['title'])}</li>"
            for other, cosine in found
        )
        + "</ol></li>"
        for row, found in report.neighbours
    )


def _points(report: Report, snippet_chars: int) -> dict[str, Any]:
    """What the map draws: areas by size, and one list a paper."""
    parents = _alike([paper["area"].split(AREA_SEPARATOR)[0] for paper in report.papers])
    areas = [area for area, _ in Counter(parents).most_common()]
    number = {area: at for at, area in enumerate(areas)}
    rows = [
        [
            round(float(x) * COORDINATES),
            round(float(y) * COORDINATES),
            number[parent],
            paper["title"],
            _authors(paper["authors"]),
            _shortened(paper["abstract"], snippet_chars),
            paper["area"],
            paper["forum_url"],
        ]
        for paper, parent, (x, y) in zip(report.papers, parents, report.points, strict=True)
    ]
    # Areas repeat: the page holds each once.
    full = sorted({row[6] for row in rows})
    at = {area: place for place, area in enumerate(full)}
    for row in rows:
        row[6] = at[row[6]]
    return {"areas": areas, "full": full, "coloured": AREAS_COLOURED, "papers": rows}


def _alike(areas: Sequence[str]) -> list[str]:
    """Areas that differ in case or `_` alone as the form that most papers have."""
    spelled = dict[str, str]()
    for area, _ in Counter(areas).most_common():
        spelled.setdefault(area.replace("_", " ").casefold(), area)
    return [spelled[area.replace("_", " ").casefold()] for area in areas]


def _authors(authors: Sequence[str]) -> str:
    more = len(authors) - AUTHORS_SHOWN
    return ", ".join(authors[:AUTHORS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _shortened(text: str, chars: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= chars else text[:chars].rsplit(" ", 1)[0] + "…" if chars else ""
