"""Draw estimates with their intervals as a small SVG; the same numbers give the same bytes."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from pimono_sdpo.schema import PARITY
from pimono_sdpo.text import escape_controls

Json = dict[str, Any]
INK, COLOUR, GREY = "#222222", "#4a6fa5", "#808080"
# Pixels: the picture, the column of names, the margin at the right, a row.
WIDTH, NAMES, MARGIN, ROW = 720, 240, 60, 24


class Estimate(NamedTuple):
    """A value and its interval; numbers that are not known are None."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None


def write_evaluation_plot(report: Json, path: Path) -> None:
    """Draw each metric of an evaluation, by model."""
    panels = {
        metric: [
            Estimate(label, by_run[label]["mean"], by_run[label]["low"], by_run[label]["high"])
            for label in report["runs"]
        ]
        for metric, by_run in report["metrics"].items()
    }
    path.write_text(draw_intervals(panels), encoding="utf-8")


def write_duel_plot(report: Json, path: Path) -> None:
    """Draw the score of a duel and those of its judges, beside parity."""
    verdict = report["verdict"]
    rows = [Estimate("score", verdict["score"], verdict["low"], verdict["high"])]
    rows += [Estimate(judge["name"].rpartition("/")[2], judge["score"]) for judge in verdict["judges"]]
    path.write_text(draw_intervals({verdict["conclusion"]: rows}, (0, 100), PARITY), encoding="utf-8")


def draw_intervals(
    panels: Mapping[str, Sequence[Estimate]], scale: tuple[float, float] | None = None, mark: float | None = None
) -> str:
    """Return an SVG with a row for each estimate; a panel without a `scale` is as wide as its numbers."""
    drawn: list[str] = []
    top = 0.0
    for title, rows in panels.items():
        drawn.append(_text(NAMES, top + 16, title, "start", INK, 14))
        bottom = top + ROW * (len(rows) + 1)
        low, high = scale or _widen([n for row in rows for n in row[1:] if n is not None])

        def place(value: float, low: float = low, high: float = high) -> float:
            share = (min(max(value, low), high) - low) / (high - low)
            return NAMES + share * (WIDTH - NAMES - MARGIN)

        drawn.append(_line(NAMES, bottom, WIDTH - MARGIN, bottom, INK))
        drawn += [_text(place(end), bottom + 14, f"{end:.3g}", "middle", GREY, 11) for end in (low, high)]
        if mark is not None:
            drawn.append(_line(place(mark), top + ROW, place(mark), bottom, GREY))
        for number, row in enumerate(rows, 1):
            middle = top + ROW * (number + 0.5)
            drawn.append(_text(NAMES - 8, middle + 4, row.name, "end", INK, 12))
            if row.low is not None and row.high is not None:
                drawn.append(_line(place(row.low), middle, place(row.high), middle, COLOUR))
            if row.value is not None:
                drawn.append(f'<circle cx="{place(row.value):.1f}" cy="{middle:.1f}" r="4" fill="{COLOUR}"/>')
            label = "missing" if row.value is None else f"{row.value:.3g}"
            drawn.append(_text(WIDTH - MARGIN + 8, middle + 4, label, "start", GREY, 11))
        top = bottom + ROW
    size = f'viewBox="0 0 {WIDTH} {top:g}" width="{WIDTH}" height="{top:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top:g}" fill="white"/>', *drawn, "</svg>\n"])


def _widen(values: Sequence[float]) -> tuple[float, float]:
    """Return a range that holds all values, and is not empty."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="1.5"/>'


def _text(x: float, y: float, words: str, anchor: str, colour: str, size: int) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}"'
    return f"<text {place}>{escape(escape_controls(words))}</text>"
