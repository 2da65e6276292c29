"""Draw the plots of cards and reports as small SVGs; the same numbers give the same bytes.

reads   report.json, run.json
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from pimono_sdpo.schema import FINAL_SCORE, PARITY, REFINED_SCORE
from pimono_sdpo.text import escape_controls

Json = dict[str, Any]
Point = tuple[float, float]
INK, COLOUR, PALE, CUT, GREY = "#222222", "#4a6fa5", "#ccd3df", "#b06a00", "#808080"
FUNNEL, SCORES, CATEGORIES = "funnel.svg", "scores.svg", "categories.svg"
REWARD = "self_distillation/reward_mean"
# The curves of a method: the metric logged at each step, and its title.
CURVES = {
    "sdpo": (
        (REWARD, "mean reward"),
        ("sdpo/distillation_loss", "distillation loss"),
        ("completions/mean_length", "completion length (tokens)"),
    ),
    "sft": (("loss", "loss"), ("mean_token_accuracy", "token accuracy"), ("entropy", "entropy (nats per token)")),
    "dpo": (
        ("loss", "loss"),
        ("rewards/margins", "reward margin"),
        ("rewards/accuracies", "pairs with the higher reward for the chosen answer"),
    ),
}
ROW_HEIGHT, CHAR_WIDTH, HEAD = 24, 7, 34


@dataclass
class Panel:
    """One chart: a rectangle in pixels, with the values at its edges."""

    left: float
    top: float
    width: float
    height: float
    title: str
    x: Point = (0, 1)
    y: Point = (0, 1)
    drawn: list[str] = field(default_factory=list)

    def place(self, x: float, y: float) -> Point:
        """Return the pixels of a pair of values."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return self.left + across * self.width, self.top + (1 - up) * self.height

    def draw_bar(self, x: Point, y: Point, colour: str) -> None:
        """Fill the rectangle between two pairs of values."""
        (left, bottom), (right, top) = self.place(x[0], y[0]), self.place(x[1], y[1])
        self.drawn.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{bottom - top:.1f}" fill="{colour}" stroke="white"/>'
        )

    def draw_line(self, points: Iterable[Point], colour: str, dashed: bool = False) -> None:
        """Connect points."""
        pixels = " ".join("{:.1f},{:.1f}".format(*self.place(x, y)) for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.drawn.append(f'<polyline points="{pixels}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>')

    def draw_dot(self, x: float, y: float) -> None:
        """Mark a point."""
        across, down = self.place(x, y)
        self.drawn.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4" fill="{COLOUR}"/>')

    def write(
        self, text: str, at: Point, shift: Point = (0, 0), anchor: str = "middle", colour: str = INK, size: int = 12
    ) -> None:
        """Write a text beside a pair of values, shifted by pixels."""
        across, down = self.place(*at)
        self.drawn.append(
            f'<text x="{across + shift[0]:.1f}" y="{down + shift[1]:.1f}" font-size="{size}" '
            f'text-anchor="{anchor}" fill="{colour}">{escape(escape_controls(text))}</text>'
        )

    def draw_axes(self, x_ticks: Iterable[tuple[float, str]], y_ticks: Iterable[float]) -> None:
        """Draw the left and the lower edge with their labels, and the title."""
        (left, right), (low, high) = self.x, self.y
        self.draw_line([(left, high), (left, low), (right, low)], INK)
        for value, label in x_ticks:
            self.write(label, (value, low), (0, 16), size=11)
        for value in y_ticks:
            self.write(f"{value:g}", (left, value), (-6, 4), "end", size=11)
        self.write_title()

    def write_title(self) -> None:
        """Write the title above the chart."""
        self.write(self.title, ((self.x[0] + self.x[1]) / 2, self.y[1]), (0, -10), size=14)


def choose_ticks(low: float, high: float, integers: bool = False) -> list[float]:
    """Return about five round numbers from `low` to `high`."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough * 0.99)
    if integers:
        step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def save_picture(path: Path, width: float, height: float, panels: Iterable[Panel]) -> None:
    """Write panels to an SVG."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">',
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
        *(line for panel in panels for line in panel.drawn),
        "</svg>\n",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


def write_report_plots(report: Json, folder: Path) -> None:
    """Draw the funnel from sessions to rows, the histogram of scores and the categories."""
    # A bar for each stage that changed the number of rows: rows out, and rows dropped.
    bars = [("sessions", report["sessions"], 0)]
    for stage in report["stages"]:
        before, after = stage["rows_in"], stage["rows_out"]
        if before != after:
            bars.append((stage["stage"], after, max(before - after, 0)))
    _save_bars("from sessions to rows", bars, folder / FUNNEL)
    ranked = sorted(report["category_counts"].items(), key=lambda item: (-item[1], item[0]))
    counted = [(name, count, 0) for name, count in ranked]
    _save_bars("selected rows by category", counted, folder / CATEGORIES)
    _draw_scores(report["score"], folder / SCORES)


def _save_bars(title: str, bars: Sequence[tuple[str, int, int]], path: Path) -> None:
    """Draw horizontal bars, from the top down: name, count, and a pale extension of the bar."""
    height = ROW_HEIGHT * len(bars)
    left = 20 + CHAR_WIDTH * max((len(name) for name, *_ in bars), default=0)
    longest = max((count + extra for _, count, extra in bars), default=1)
    panel = Panel(left, HEAD, 800 - left - 70, height, title, (0, longest or 1), (0, len(bars) or 1))
    for index, (name, count, extra) in enumerate(bars):
        middle = len(bars) - index - 0.5
        edges = middle - 0.4, middle + 0.4
        panel.draw_bar((0, count), edges, COLOUR)
        if extra:
            panel.draw_bar((count, count + extra), edges, PALE)
        panel.write(name, (0, middle), (-6, 4), "end")
        panel.write(f"{count:,.0f}", (count + extra, middle), (5, 4), "start")
    panel.write_title()
    save_picture(path, 800, height + HEAD + 10, [panel])


def _draw_scores(score: Json, path: Path) -> None:
    """Draw stacked bars of selected and rejected rows by score, and the cut between them."""
    bins = score["histogram"]
    highest = max(one["rows"] + one["rejected"] for one in bins)
    panel = Panel(60, HEAD, 720, 220, "rows by score", (bins[0]["from"], bins[-1]["to"]), (0, 1.12 * highest or 1))
    for one in bins:
        for kind, bottom, colour in (("rows", 0, COLOUR), ("rejected", one["rows"], PALE)):
            if one[kind]:
                panel.draw_bar((one["from"], one["to"]), (bottom, bottom + one[kind]), colour)
    panel.draw_axes(_label(choose_ticks(*panel.x)), choose_ticks(*panel.y, integers=True))
    legend = [("selected", COLOUR), ("rejected", GREY)] if any(one["rejected"] for one in bins) else []
    if score["cut"] is not None:
        # The cut may lie outside the range of the scores.
        cut = min(max(score["cut"], panel.x[0]), panel.x[1])
        panel.draw_line([(cut, 0), (cut, panel.y[1])], CUT, dashed=True)
        legend.append((f"cut {score['cut']:g}", CUT))
    for line, (name, colour) in enumerate(legend):
        panel.write(name, (panel.x[1], panel.y[1]), (0, 14 + 16 * line), "end", colour)
    save_picture(path, 800, 290, [panel])


def _label(ticks: Iterable[float]) -> list[tuple[float, str]]:
    return [(value, f"{value:g}") for value in ticks]


def write_run_plot(run: Json, path: Path) -> None:
    """Draw the curves of the method per optimizer step."""
    panels = []
    for number, (name, title) in enumerate(CURVES[run["method"]]):
        panel = Panel(60 + 390 * number, HEAD, 320, 230, title)
        points = [(entry["step"], entry[name]) for entry in run["log_history"] if entry.get(name) is not None]
        panel.x, values = _widen([x for x, _ in points]), [y for _, y in points]
        panel.y = _widen(values)
        if name == REWARD:
            threshold = run["arguments"]["success_reward_threshold"]
            panel.y = _widen([*values, threshold])
            panel.draw_line([(panel.x[0], threshold), (panel.x[1], threshold)], GREY, dashed=True)
            panel.write("success", (panel.x[0], threshold), (4, -4), "start", GREY, 11)
        panel.draw_line(points, COLOUR)
        for x, y in points:
            panel.draw_dot(x, y)
        panel.draw_axes(_label(choose_ticks(*panel.x, integers=True)), choose_ticks(*panel.y))
        panels.append(panel)
    save_picture(path, 1200, 300, panels)


def _widen(values: Sequence[float]) -> Point:
    """Return a range that contains all values, with a margin."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin


def write_comparison_plot(report: Json, path: Path) -> None:
    """Draw each metric of an evaluation per model, with its interval."""
    panels, labels = [], list(report["runs"])
    for number, (metric, by_run) in enumerate(report["metrics"].items()):
        row, column = divmod(number, 3)
        values = [by_run[label] for label in labels]
        known = [value[key] for value in values for key in ("mean", "low", "high") if value[key] is not None]
        left, top = 60 + 390 * column, HEAD + 270 * row
        panel = Panel(left, top, 320, 190, metric, (-0.5, len(values) - 0.5), _widen(known))
        for x, value in enumerate(values):
            if value["low"] is not None:
                panel.draw_line([(x, value["low"]), (x, value["high"])], COLOUR)
            if value["mean"] is not None:
                panel.draw_dot(x, value["mean"])
        panel.draw_axes(enumerate(labels), choose_ticks(*panel.y))
        panels.append(panel)
    save_picture(path, 1200, 20 + 270 * math.ceil(len(panels) / 3), panels)


def write_duel_plot(summary: Json, path: Path) -> None:
    """Draw the scores of the duel and of each judge, and the histograms of turns in duel and A/A test."""
    verdict = summary["verdict"]
    rows = [("score", verdict["score"])]
    rows += [(judge["name"].rpartition("/")[2], judge["score"]) for judge in verdict["judges"]]
    left = 20.0 + CHAR_WIDTH * max(len(name) for name, _ in rows)
    scores = Panel(left, HEAD, 340, ROW_HEIGHT * 1.4 * len(rows), verdict["conclusion"], (0, 100), (0, len(rows)))
    scores.draw_line([(PARITY, 0), (PARITY, len(rows))], GREY, dashed=True)
    for index, (name, value) in enumerate(rows):
        middle = len(rows) - index - 0.5
        scores.write(name, (0, middle), (-6, 4), "end")
        if value is None:
            scores.write("missing", (0, middle), (6, 4), "start", GREY)
            continue
        if index == 0 and verdict["low"] is not None and verdict["high"] is not None:
            scores.draw_line([(max(verdict["low"], 0), middle), (min(verdict["high"], 100), middle)], COLOUR)
        scores.draw_dot(value, middle)
        scores.write(f"{value:.1f}", (value, middle), (0, -8), size=11)
    scores.draw_axes([(0, "0"), (PARITY, "parity"), (100, "100")], [])
    judged = summary["panel"] or summary
    histograms = [(judged["histogram"], "whole panel" if summary["panel"] else "single judges", COLOUR)]
    if summary["aa_test"]:
        histograms.append((summary["aa_test"]["histogram"], "king against itself", CUT))
    shares = [[count / max(sum(counts), 1) for count in counts] for counts, *_ in histograms]
    highest, width = max(map(max, shares)), 100 / len(shares[0])
    turns = Panel(left + 420, HEAD, 340, 200, "share of turns by score", (0, 100), (0, 1.12 * highest or 1))
    for index, share in enumerate(shares[0]):
        turns.draw_bar((index * width, (index + 1) * width), (0, share), PALE)
    for number, ((_, name, colour), heights) in enumerate(zip(histograms, shares, strict=True)):
        outline = [((index + side) * width, height) for index, height in enumerate(heights) for side in (0, 1)]
        turns.draw_line(outline, colour)
        turns.write(name, (0, turns.y[1]), (6, 12 + 15 * number), "start", colour, 11)
    for limit in (REFINED_SCORE, FINAL_SCORE) if summary["panel"] else ():
        turns.draw_line([(limit, 0), (limit, turns.y[1])], GREY, dashed=True)
    turns.draw_axes(_label(choose_ticks(*turns.x)), choose_ticks(*turns.y))
    save_picture(path, left + 790, HEAD + max(scores.height, turns.height) + 30, [scores, turns])
