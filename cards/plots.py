"""Draw what a card shows. The same numbers give the same bytes.

reads   report.json or run.json / writes one PNG
"""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Json = dict[str, Any]
COLOUR = "#4a6fa5"
CURVES = (
    ("self_distillation/reward_mean", "mean reward"),
    ("sdpo/distillation_loss", "distillation loss"),
    ("completions/mean_length", "completion length (tokens)"),
)


def write_report_plot(report: Json, path: Path) -> None:
    """Draw rows per category beside the histogram of scores."""
    figure = Figure(figsize=(10, 4))
    left, right = figure.subplots(1, 2)
    # A layout that is found by drawing takes half of the time; these names do not change.
    figure.subplots_adjust(left=0.21, right=0.98, top=0.91, bottom=0.13, wspace=0.12)
    counts = sorted(report["category_counts"].items(), key=lambda item: (item[1], item[0]))
    bars = left.barh([name for name, _ in counts], [count for _, count in counts], color=COLOUR)
    left.bar_label(bars, padding=2)
    left.set_title("rows per category")
    bins = report["score"]["histogram"]
    right.bar(
        [bin_["from"] for bin_ in bins],
        [bin_["rows"] for bin_ in bins],
        width=[bin_["to"] - bin_["from"] for bin_ in bins],
        align="edge",
        color=COLOUR,
        edgecolor="white",
    )
    right.set_title("rows per score")
    right.set_xlabel("score")
    left.xaxis.get_major_locator().set_params(integer=True)
    right.yaxis.get_major_locator().set_params(integer=True)
    for axes in (left, right):
        plain(axes)
    save(figure, path)


def write_run_plot(run: Json, path: Path) -> None:
    """Draw reward, distillation loss and completion length per optimizer step."""
    steps = [entry for entry in run["log_history"] if "loss" in entry]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(CURVES)), CURVES, strict=True):
        points = [(entry["step"], entry[name]) for entry in steps if entry.get(name) is not None]
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", color=COLOUR)
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        plain(axes)
        if name == CURVES[0][0]:
            threshold = run["arguments"]["success_reward_threshold"]
            axes.axhline(threshold, color="grey", linestyle="--", linewidth=1)
            axes.annotate("success", (1, threshold), color="grey", fontsize=8, va="bottom")
    save(figure, path)


def write_evaluation_plot(evaluation: Json, path: Path) -> None:
    """Draw reward and pass rate of held-out rows before and after, with their intervals."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    names = (("reward", "mean reward"), ("pass_rate", "pass rate"))
    for axes, (name, title) in zip(figure.subplots(1, 2), names, strict=True):
        for place, when in enumerate(("before", "after")):
            found = evaluation[name][when]
            axes.plot([place], [found["mean"]], marker="o", color=COLOUR)
            if found["low"] is not None:
                axes.vlines(place, found["low"], found["high"], color=COLOUR)
        axes.set_xticks([0, 1], ["before", "after"])
        axes.set_xlim(-0.5, 1.5)
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
