"""Print rows of text as a Markdown table with aligned columns."""

from collections.abc import Sequence


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print a header and its rows; a short row leaves its last columns empty."""
    count = len(rows[0])
    full = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = [max(len(row[column]) for row in full) for column in range(count)]
    full.insert(1, ["-" * width for width in widths])
    for row in full:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("| " + " | ".join(cells) + " |")
