"""A diff in words: for a terminal, and as a Markdown changelog entry."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from manifests.visible import visible
from pipeline.diff import Diff, Papers

SHOWN_MAX = 20
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def diff_text(diff: Diff) -> str:
    """Counts, sums and the first papers of each kind, for a terminal."""
    rows = [("", diff.a.name, diff.b.name, "")]
    rows += [(what, f"{a:,}", f"{b:,}", f"{b - a:+,}" if a != b else "") for what, a, b in _counts(diff)]
    rows += [(what, a, b, "") for what, a, b in diff.pins()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{visible(what):<{widths[0]}}  {a:>{widths[1]}}  {b:>{widths[2]}}  {change}".rstrip()
        for what, a, b, change in rows
    ]
    if diff.papers is None:
        return "\n".join([*lines, "", diff.missing()])
    return "\n".join(
        [*lines, "", *_summary(diff.papers), *_lists(diff.papers, "{sign} {id}  {title}{fields}", visible)]
    )


def diff_markdown(diff: Diff) -> str:
    """A changelog entry: heading, table of counts, sums, and the first papers of each kind."""
    lines = [f"### {_escaped(diff.b.snapshot.title)}: {_escaped(diff.a.name)} → {_escaped(diff.b.name)}", ""]
    lines += ["| | before | after |", "|---|--:|--:|"]
    lines += [f"| {_escaped(what)} | {a:,} | {b:,} |" for what, a, b in _counts(diff)]
    lines += [f"| {_escaped(what)} | {_escaped(a)} | {_escaped(b)} |" for what, a, b in diff.pins()]
    if diff.papers is None:
        return "\n".join([*lines, "", _escaped(diff.missing())])
    lines += ["", *(f"- {_escaped(line)}" for line in _summary(diff.papers))]
    return "\n".join([*lines, *_lists(diff.papers, "- `{id}` {title}{fields}", _escaped)])


def _counts(diff: Diff) -> list[tuple[str, int, int]]:
    areas = [(f"area {name}", a, b) for name, a, b in diff.area_counts()]
    rest = areas[SHOWN_MAX:]
    if rest:
        others = (f"{len(rest):,} other areas that changed", sum(row[1] for row in rest), sum(row[2] for row in rest))
        return [*diff.counts(), *areas[:SHOWN_MAX], others]
    return [*diff.counts(), *areas]


def _summary(papers: Papers) -> list[str]:
    fields = ", ".join(f"{field} {count:,}" for field, count in papers.fields().items())
    lines = [
        f"{len(papers.added):,} added, {len(papers.removed):,} removed, {len(papers.changed):,} changed"
        + (f" ({fields})" if fields else "")
    ]
    moves = list(papers.area_moves.items())
    lines += [f"area {visible(old)} → {visible(new)}: {count:,}" for (old, new), count in moves[:SHOWN_MAX]]
    if len(moves) > SHOWN_MAX:
        lines.append(f"and {len(moves) - SHOWN_MAX:,} other area moves")
    return lines


def _lists(papers: Papers, pattern: str, shown: Callable[[str], str]) -> list[str]:
    lines: list[str] = []
    kinds: tuple[tuple[str, str, Iterable[str]], ...] = (
        ("Added", "+", papers.added),
        ("Removed", "-", papers.removed),
        ("Changed", "~", papers.changed),
    )
    for heading, sign, ids in kinds:
        chosen = list(ids)
        if chosen:
            lines += ["", f"{heading}:", ""]
        for paper_id in chosen[:SHOWN_MAX]:
            fields = f" ({', '.join(papers.changed[paper_id])})" if sign == "~" else ""
            lines.append(pattern.format(sign=sign, id=paper_id, title=shown(papers.titles[paper_id]), fields=fields))
        if len(chosen) > SHOWN_MAX:
            lines += ["", f"and {len(chosen) - SHOWN_MAX:,} more ({heading.lower()} ids: --json)"]
    return lines


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", visible(text))
