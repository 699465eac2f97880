"""The little Markdown that the generated pages need; tables are aligned in the source too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def paragraphs(parts: Sequence[str]) -> str:
    """Parts with a blank line between them and one newline at the end."""
    return "\n\n".join(parts) + "\n"


def sentence(text: str | None) -> str:
    """One paragraph, as one line."""
    return " ".join((text or "").split())


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table whose columns are aligned in the source too; `right` are the positions of right-aligned ones."""
    header, *rows = [[cell.replace("|", r"\|") for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    rule = ["-" * (width - 1) + ":" if at in right else "-" * width for at, width in enumerate(widths)]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(padded(cells, widths, right)) + " |" for cells in lines)


def padded(cells: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> Iterator[str]:
    """Every cell at its column's width."""
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        yield cell.rjust(width) if at in right else cell.ljust(width)
