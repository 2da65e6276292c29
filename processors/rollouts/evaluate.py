"""Compare rollouts of two models on the same held-out tasks.

reads   ROLLOUT rows, small columns only
writes  per metric the mean of each model, and the paired difference, with intervals by task

A difference is paired by task: the mean of a task's rollouts under one model against that under the
other. Runs that a fault of ours ended are left out and counted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pimono_sdpo.stats import Interval, cluster_interval

COLUMNS = (
    "task_id", "model", "tests_ok", "steps", "n_steps", "parse_errors", "loop_detections", "error",
)  # fmt: skip
Json = dict[str, Any]
Metric = Callable[[Mapping[str, Any]], "float | None"]


def _passes(row: Mapping[str, Any]) -> float | None:
    return None if row["tests_ok"] is None else float(row["tests_ok"])


def _valid_calls(row: Mapping[str, Any]) -> float | None:
    """The share of steps that were a call or a report that could be read and worked."""
    steps = row["steps"]
    good = sum(step["kind"] in {"tool_call", "final"} and step["ok"] is not False for step in steps)
    return good / len(steps) if steps else None


def _writes(row: Mapping[str, Any]) -> float:
    return float(any(step["name"] == "write_file" and step["ok"] for step in row["steps"]))


METRICS: dict[str, Metric] = {
    "pass_rate": _passes,
    "parse_errors": lambda row: float(row["parse_errors"]),
    "tool_call_validity": _valid_calls,
    "pct_runs_with_write_file": _writes,
    "loop_detections": lambda row: float(row["loop_detections"]),
    "avg_steps": lambda row: float(row["n_steps"]),
}


@dataclass
class Measured:
    """The values of each metric by task, of which models, and how many runs were left out."""

    values: dict[str, dict[str, list[float]]]
    models: set[str]
    left_out: int = 0


def measured(rows: Iterable[Mapping[str, Any]]) -> Measured:
    """Measure every run that no fault of ours ended."""
    found = Measured({name: {} for name in METRICS}, set())
    for row in rows:
        if row["error"]:
            found.left_out += 1
            continue
        found.models.update([row["model"]] if row.get("model") else [])
        for name, metric in METRICS.items():
            value = metric(row)
            if value is not None:
                found.values[name].setdefault(row["task_id"], []).append(value)
    return found


def compared(given: Mapping[str, Iterable[Mapping[str, Any]]]) -> Json:
    """Return models, runs, tasks and metrics by label; of `baseline` and `tuned` the difference."""
    found = {label: measured(rows) for label, rows in given.items()}
    report: Json = {"models": {}, "runs": {}, "tasks": {}, "left_out": {}, "metrics": {}}
    for label, one in found.items():
        steps = one.values["avg_steps"]
        report["models"][label] = sorted(one.models)
        report["runs"][label] = sum(map(len, steps.values()))
        report["tasks"][label] = len(steps)
        report["left_out"][label] = one.left_out
    for name in METRICS:
        by_task = {label: one.values[name] for label, one in found.items()}
        told = {label: _interval(list(values.values())) for label, values in by_task.items()}
        if {"baseline", "tuned"} <= by_task.keys():
            told["difference"] = _difference(by_task["baseline"], by_task["tuned"])
        report["metrics"][name] = told
    return report


def _difference(
    before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]
) -> Json:
    both = sorted(set(before) & set(after))
    gaps = [[_mean(after[task]) - _mean(before[task])] for task in both]
    return {**_interval(gaps), "tasks": len(both)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _interval(clusters: Sequence[Sequence[float]]) -> Json:
    """A mean and its bounds; null where there is too little to tell."""
    found: Interval = cluster_interval(clusters)
    told = {"mean": found.mean, "low": found.low, "high": found.high}
    return {name: None if value != value else value for name, value in told.items()}
