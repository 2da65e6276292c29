"""Put the runs of the benchmark of learning into one table and one picture.

reads FOLDER/runs/*.json, FOLDER/base/knowledge.json / writes FOLDER/learning.{md,png,json}
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

DRAWS = 4000
TITLES = {
    "feedback": "What the teacher is told",
    "weight": "Beside the policy loss",
    "mode": "What is distilled",
    "teacher": "The teacher's weights",
    "small": "24 steps, 2 completions a prompt; alone right in 1 of 20",
    "never": "Alone right in 1 answer of 1,400",
    "rivals": "384 completions; alone right in 1 of 20",
    "rivals, never": "1,920 completions; alone right in 1 of 1,400",
}
# The arm with which the others of its part are compared, seed by seed.
BESIDE = "SDPO, feedback, 1 update"
DRAWN = ("feedback", "never", "small", "teacher")
Json = dict[str, Any]


def interval(passes: Any) -> tuple[float, float, float]:
    """Return mean and 95 % bootstrap interval of passes (seeds x requests), both drawn anew.

    >>> interval([[1, 1], [1, 1]])
    (1.0, 1.0, 1.0)
    """
    table = np.asarray(passes, dtype=float)
    chance = np.random.default_rng(0)
    seeds = chance.integers(len(table), size=(DRAWS, len(table)))
    asked = chance.integers(table.shape[1], size=(DRAWS, table.shape[1]))
    weights = np.stack([np.bincount(draw, minlength=table.shape[1]) for draw in asked])
    by_seed = table @ weights.T / table.shape[1]
    means = by_seed[seeds, np.arange(DRAWS)[:, None]].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(table.mean()), float(low), float(high)


def write_results(folder: Path, order: Sequence[str]) -> None:
    """Write table, picture and all numbers of the runs that are there, settings in this order."""
    every = [json.loads(path.read_text()) for path in sorted((folder / "runs").glob("*.json"))]
    grouped: dict[str, dict[str, list[Json]]] = {part: {} for part in TITLES}
    every = [run for run in every if run["setting"] in order]
    for run in sorted(every, key=lambda run: (order.index(run["setting"]), run["seed"])):
        grouped[run["part"]].setdefault(run["setting"], []).append(run)
    known = json.loads((folder / "base" / "knowledge.json").read_text())
    lines = ["| base model, held-out requests | right |", "|---|---|"]
    lines += [f"| {name} | {share:.3f} |" for name, share in known.items()]
    for part, settings in grouped.items():
        if settings:
            lines += ["", *_table(TITLES[part], settings)]
    (folder / "learning.md").write_text("\n".join(lines) + "\n")
    _draw({part: grouped[part] for part in DRAWN if grouped[part]}, folder / "learning.png")
    for run in every:
        run["passes"] = {at: "".join(map(str, passes)) for at, passes in run["passes"].items()}
    (folder / "learning.json").write_text(json.dumps({"base": known, "runs": every}, indent=1))


def _table(title: str, settings: dict[str, list[Json]]) -> list[str]:
    beside = next((runs for name, runs in settings.items() if name.endswith(BESIDE)), [])
    lines = [f"| {title} | before | after, 95 % interval | each seed |", "|---|---|---|---|"]
    if beside:
        lines = [f"{lines[0]} beside {BESIDE} | CPU s |", f"{lines[1]}---|---|"]
    for name, runs in settings.items():
        before = np.mean([run["passes"]["0"] for run in runs])
        last = [list(run["passes"].values())[-1] for run in runs]
        mean, low, high = interval(last)
        each = " ".join(f"{np.mean(one):.2f}" for one in last)
        lines.append(f"| {_short(name)} | {before:.2f} | {mean:.2f} ({low:.2f}-{high:.2f}) | {each} |")
        if beside:
            cpu = np.mean([run["cpu_seconds"] for run in runs])
            lines[-1] += f" {_difference(runs, beside)} | {cpu:.0f} |"
    return lines


def _difference(runs: list[Json], others: list[Json]) -> str:
    """Return the mean difference of the runs of each seed, with its 95 % t interval."""
    passes = [{run["seed"]: list(run["passes"].values())[-1] for run in one} for one in (runs, others)]
    apart = [np.mean(passes[0][seed]) - np.mean(passes[1][seed]) for seed in passes[0] if seed in passes[1]]
    if runs is others or len(apart) < 2:
        return ""
    low, high = ttest_1samp(apart, 0.0).confidence_interval()
    return f"{np.mean(apart):+.2f} ({low:+.2f} to {high:+.2f})"


def _short(name: str) -> str:
    """Leave out the part that the title names."""
    return name.rpartition(": ")[2]


def _draw(parts: dict[str, dict[str, list[Json]]], path: Path) -> None:
    # Of the dependency group `bench`.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    grid = figure.subplots(2, 2, sharey=True).flat
    for axes, (part, settings) in zip(grid, parts.items(), strict=False):
        for name, runs in settings.items():
            steps = [int(step) for step in runs[0]["passes"]]
            each = np.array([[np.mean(p) for p in run["passes"].values()] for run in runs])
            (line,) = axes.plot(steps, each.mean(axis=0), marker="o", label=_short(name))
            axes.fill_between(steps, each.min(axis=0), each.max(axis=0), alpha=0.15, color=line.get_color())
        axes.set_title(TITLES[part])
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)
    figure.supylabel("right on held-out requests: mean and range of the seeds")
    figure.axes[0].set_ylim(0, 1)
    # Without this the file would name the version that drew it.
    figure.savefig(path, format="png", dpi=110, metadata={"Software": None})
