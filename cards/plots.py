"""Draw the pictures of cards and reports as small PNGs; the same numbers give the same bytes.

reads   report.json, run.json
"""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pimono_sdpo.report import MEASURES
from pimono_sdpo.schema import FINAL_SCORE, PARITY, REFINED_SCORE

Json = dict[str, Any]
COLOUR, PALE, CUT = "#4a6fa5", "#ccd3df", "#b06a00"
FUNNEL, SCORES, CATEGORIES = "funnel.png", "scores.png", "categories.png"
BESIDE: Json = {"textcoords": "offset points", "va": "center", "fontsize": 9}
# Measures that are not shares between 0 and 1.
UNBOUNDED = frozenset({"loss", "log_ratio"})
CURVES = {
    "sdpo": (
        ("self_distillation/reward_mean", "mean reward"),
        ("sdpo/distillation_loss", "distillation loss"),
        ("completions/mean_length", "completion length (tokens)"),
    ),
    "sft": (
        ("loss", "loss"),
        ("mean_token_accuracy", "token accuracy"),
        ("entropy", "entropy (nats per token)"),
    ),
    "dpo": (
        ("loss", "loss"),
        ("rewards/margins", "reward margin"),
        ("rewards/accuracies", "pairs with the higher reward for the chosen answer"),
    ),
}


def write_report_plots(report: Json, folder: Path) -> None:
    """Draw the funnel from sessions to rows, the histogram of scores and the categories."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    _draw_funnel(figure.subplots(), report)
    save_figure(figure, folder / FUNNEL)
    figure = Figure(figsize=(8, 3), layout="constrained")
    _draw_scores(figure.subplots(), report["score"])
    save_figure(figure, folder / SCORES)
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    _draw_categories(figure.subplots(), report["category_counts"])
    save_figure(figure, folder / CATEGORIES)


def _draw_funnel(axes: Axes, report: Json) -> None:
    """Draw a bar per stage that dropped rows: rows out, and behind it rows dropped."""
    bars = [("sessions", report["sessions"], 0)]
    for stage in report["stages"]:
        before, after = stage["rows_in"], stage["rows_out"]
        if before != after:
            bars.append((stage["stage"], after, max(before - after, 0)))
    names, kept, lost = zip(*reversed(bars), strict=True)
    axes.barh(names, kept, color=COLOUR)
    axes.barh(names, lost, left=kept, color=PALE)
    for place, (count, behind) in enumerate(zip(kept, lost, strict=True)):
        axes.annotate(f"{count:,}", (count + behind, place), xytext=(4, 0), **BESIDE)
    axes.set_title("from sessions to rows")
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    hide_frame(axes)


def _draw_scores(axes: Axes, score: Json) -> None:
    bins = score["histogram"]
    starts, widths = [b["from"] for b in bins], [b["to"] - b["from"] for b in bins]
    kept, rejected = [b["rows"] for b in bins], [b["rejected"] for b in bins]
    style: Json = {"width": widths, "align": "edge", "edgecolor": "white"}
    axes.bar(starts, kept, color=COLOUR, label="selected", **style)
    if any(rejected):
        axes.bar(starts, rejected, bottom=kept, color=PALE, label="rejected", **style)
    if score["cut"] is not None:
        axes.axvline(score["cut"], color=CUT, linestyle="--", label=f"cut {score['cut']:g}")
    if any(rejected) or score["cut"] is not None:
        axes.legend(frameon=False)
    axes.set_title("rows by score")
    axes.set_xlabel("score")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    hide_frame(axes)


def _draw_categories(axes: Axes, counts: dict[str, int]) -> None:
    ranked = sorted(counts.items(), key=lambda item: (item[1], item[0]))
    bars = axes.barh([name for name, _ in ranked], [n for _, n in ranked], color=COLOUR)
    axes.bar_label(bars, padding=4)
    axes.set_title("selected rows by category")
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    hide_frame(axes)


def write_run_plot(run: Json, path: Path) -> None:
    """Draw the curves of the method per optimizer step."""
    curves = CURVES[run["method"]]
    steps = [entry for entry in run["log_history"] if "loss" in entry]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(curves)), curves, strict=True):
        points = [(entry["step"], entry[name]) for entry in steps if entry.get(name) is not None]
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", color=COLOUR)
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        hide_frame(axes)
        if name == CURVES["sdpo"][0][0]:
            threshold = run["arguments"]["success_reward_threshold"]
            axes.axhline(threshold, color="grey", linestyle="--", linewidth=1)
            axes.annotate("success", (1, threshold), color="grey", fontsize=8, va="bottom")
    save_figure(figure, path)


def write_evaluation_plot(run: Json, path: Path) -> None:
    """Draw each measure of held-out rows before and after, with its interval."""
    evaluation, method = run["evaluation"], run["method"]
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    names = MEASURES[method].items()
    for axes, (name, title) in zip(figure.subplots(1, 2), names, strict=True):
        for place, when in enumerate(("before", "after")):
            found = evaluation[name][when]
            axes.plot([place], [found["mean"]], marker="o", color=COLOUR)
            if found["low"] is not None:
                axes.vlines(place, found["low"], found["high"], color=COLOUR)
        axes.set_xticks([0, 1], ["before", "after"])
        axes.set_xlim(-0.5, 1.5)
        if name not in UNBOUNDED:
            axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
        axes.set_title(title)
        hide_frame(axes)
    save_figure(figure, path)


def write_comparison_plot(report: Json, path: Path) -> None:
    """Draw each metric of an evaluation per model, with its interval."""
    figure = Figure(figsize=(12, 6), layout="constrained")
    labels = list(report["runs"])
    subplots = figure.subplots(2, 3).flatten()
    for axes, (metric, values) in zip(subplots, report["metrics"].items(), strict=True):
        for place, label in enumerate(labels):
            value = values[label]
            if value["mean"] is None:
                continue
            axes.plot([place], [value["mean"]], marker="o", color=COLOUR)
            if value["low"] is not None:
                axes.vlines(place, value["low"], value["high"], color=COLOUR)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.5, len(labels) - 0.5)
        axes.set_title(metric)
        hide_frame(axes)
    save_figure(figure, path)


def write_duel_plot(summary: Json, path: Path) -> None:
    """Draw the score with its interval beside those of the judges, and the scores per turn.

    With a duel of the king against itself, its turns are drawn over those of the duel.
    """
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    verdict = summary["verdict"]
    judges = [(judge["name"].rpartition("/")[2], judge["score"]) for judge in verdict["judges"]]
    rows = [("score", verdict["score"]), *judges]
    left.set_yticks(range(len(rows)), [name for name, _ in rows])
    for place, (_, value) in enumerate(rows):
        if value is None:
            left.text(PARITY + 1, place, "missing", va="center", color="grey")
            continue
        if place == 0 and verdict["low"] is not None and verdict["high"] is not None:
            left.plot([verdict["low"], verdict["high"]], [0, 0], color=COLOUR, linewidth=3)
        left.plot(value, place, "o", color=COLOUR if place == 0 else "grey")
        left.text(value, place - 0.15, f"{value:.1f}", ha="center", va="bottom", fontsize=8)
    left.axvline(PARITY, color="grey", linestyle="--", linewidth=1)
    left.set(xlim=(0, 100), ylim=(len(rows) - 0.5, -0.7))
    left.set_title(f"{verdict['conclusion']}; parity at {PARITY:g}")
    shown = summary["panel"] or summary
    edges = range(0, 101, 10)
    total = max(sum(shown["histogram"]), 1)
    shares = [count / total for count in shown["histogram"]]
    what = "whole panel" if summary["panel"] else "single judges"
    right.stairs(shares, edges, fill=True, color=COLOUR, alpha=0.5, label=what)
    if summary["aa_test"]:
        equal = summary["aa_test"]["histogram"]
        shares = [count / max(sum(equal), 1) for count in equal]
        right.stairs(shares, edges, color="black", label="king against itself")
    for limit in (REFINED_SCORE, FINAL_SCORE) if summary["panel"] else ():
        right.axvline(limit, color="grey", linestyle="--", linewidth=1)
    right.set_title("share of turns by score")
    right.legend(frameon=False, fontsize=8, loc="upper left")
    for axes in (left, right):
        hide_frame(axes)
    save_figure(figure, path)


def hide_frame(axes: Axes) -> None:
    """Hide the upper and right-hand frame lines."""
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure so that the same figure gives the same bytes."""
    # Matplotlib would write its version into the file.
    figure.savefig(path, format="png", dpi=110, metadata={"Software": None})
