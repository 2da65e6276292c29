"""Draw what a card shows. The same numbers give the same bytes.

reads   report.json or run.json / writes PNGs, small and on a light ground
"""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pimono_sdpo.report import MEASURES

Json = dict[str, Any]
COLOUR, PALE, CUT = "#4a6fa5", "#ccd3df", "#b06a00"
FUNNEL, SCORES, CATEGORIES = "funnel.png", "scores.png", "categories.png"
BESIDE: Json = {"textcoords": "offset points", "va": "center", "fontsize": 9}
# Measures that are no shares of something.
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
    save(figure, folder / FUNNEL)
    figure = Figure(figsize=(8, 3), layout="constrained")
    _draw_scores(figure.subplots(), report["score"])
    save(figure, folder / SCORES)
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    _draw_categories(figure.subplots(), report["category_counts"])
    save(figure, folder / CATEGORIES)


def _draw_funnel(axes: Axes, report: Json) -> None:
    """A bar per stage that dropped rows: what came out, and behind it what did not."""
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
    plain(axes)


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
    plain(axes)


def _draw_categories(axes: Axes, counts: dict[str, int]) -> None:
    ranked = sorted(counts.items(), key=lambda item: (item[1], item[0]))
    bars = axes.barh([name for name, _ in ranked], [n for _, n in ranked], color=COLOUR)
    axes.bar_label(bars, padding=4)
    axes.set_title("selected rows by category")
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    plain(axes)


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
        plain(axes)
        if name == CURVES["sdpo"][0][0]:
            threshold = run["arguments"]["success_reward_threshold"]
            axes.axhline(threshold, color="grey", linestyle="--", linewidth=1)
            axes.annotate("success", (1, threshold), color="grey", fontsize=8, va="bottom")
    save(figure, path)


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
        plain(axes)
    save(figure, path)


def plain(axes: Axes) -> None:
    """Leave out the lines that frame nothing."""
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """Write a figure to the same bytes each time."""
    # Without these the file would name the version that drew it.
    figure.savefig(path, format="png", dpi=110, metadata={"Software": None})
