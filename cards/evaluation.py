"""Draw and write down how two models compare on held-out tasks: a picture and a Markdown report."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from cards.plots import COLOUR
from cards.render import cell, number

Json = dict[str, Any]


def write_comparison(report: Json, folder: Path, name: str = "report") -> None:
    """Write `NAME.md` and `NAME.png`; the same report gives the same bytes."""
    figure = Figure(figsize=(12, 6), layout="constrained")
    axes = figure.subplots(2, 3).flatten()
    labels = list(report["runs"])
    for one, (metric, told) in zip(axes, report["metrics"].items(), strict=True):
        for place, label in enumerate(labels):
            found = told[label]
            if found["mean"] is None:
                continue
            one.plot([place], [found["mean"]], marker="o", color=COLOUR)
            if found["low"] is not None:
                one.vlines(place, found["low"], found["high"], color=COLOUR)
        one.set_xticks(range(len(labels)), labels)
        one.set_xlim(-0.5, len(labels) - 0.5)
        one.set_title(metric)
        one.spines[["top", "right"]].set_visible(False)
    # Without these the file would name the version that drew it.
    figure.savefig(folder / f"{name}.png", format="png", dpi=110, metadata={"Software": None})
    (folder / f"{name}.md").write_text(_markdown(report, labels, name))


def _markdown(report: Json, labels: list[str], picture: str) -> str:
    shown = [*labels, "difference"] if len(labels) > 1 else labels
    lines = [f"# Evaluation on {cell(report['suite'])}", ""]
    lines += [
        f"{label} ({', '.join(map(cell, report['models'][label]))}): "
        f"{report['runs'][label]} runs of {report['tasks'][label]} tasks, "
        f"{report['left_out'][label]} left out for faults that are not the model's."
        for label in labels
    ]
    lines += [f"Warning: {warning}." for warning in report["warnings"]]
    lines += ["", "| metric | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for name, told in report["metrics"].items():
        lines.append(f"| {name} | " + " | ".join(_told(told[label]) for label in shown) + " |")
    lines += ["", "Means with 95 % bootstrap intervals, whole tasks resampled"]
    paired = "; the difference is that of each task's means, tuned less baseline."
    lines[-1] += paired if len(labels) > 1 else "."
    return "\n".join([*lines, "", f"![Evaluation]({picture}.png)", ""])


def _told(found: Json) -> str:
    if found["low"] is None:
        return number(found["mean"])
    return f"{number(found['mean'])} ({number(found['low'])} to {number(found['high'])})"
