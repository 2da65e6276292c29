"""Compare rollouts of two models on the same held-out tasks.

reads   ROLLOUT rows, small columns only
writes  per metric the mean of each model, and the paired difference, with intervals by task

Differences are paired by task: the mean of a task's rollouts under one model minus that under the
other. Runs that ended because of a fault of ours are left out and counted.
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


def _passed(row: Mapping[str, Any]) -> float | None:
    return None if row["tests_ok"] is None else float(row["tests_ok"])


def _share_valid_calls(row: Mapping[str, Any]) -> float | None:
    """Return the share of steps with a readable call or report that worked."""
    steps = row["steps"]
    good = sum(step["kind"] in {"tool_call", "final"} and step["ok"] is not False for step in steps)
    return good / len(steps) if steps else None


def _wrote_file(row: Mapping[str, Any]) -> float:
    return float(any(step["name"] == "write_file" and step["ok"] for step in row["steps"]))


METRICS: dict[str, Metric] = {
    "pass_rate": _passed,
    "parse_errors": lambda row: float(row["parse_errors"]),
    "tool_call_validity": _share_valid_calls,
    "pct_runs_with_write_file": _wrote_file,
    "loop_detections": lambda row: float(row["loop_detections"]),
    "avg_steps": lambda row: float(row["n_steps"]),
}


@dataclass
class Measurements:
    """The values of each metric by task, the models, and the number of runs left out."""

    values: dict[str, dict[str, list[float]]]
    models: set[str]
    left_out: int = 0


def measure(rows: Iterable[Mapping[str, Any]]) -> Measurements:
    """Measure every run that did not end because of a fault of ours."""
    found = Measurements({name: {} for name in METRICS}, set())
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


def compare(given: Mapping[str, Iterable[Mapping[str, Any]]]) -> Json:
    """Return models, runs, tasks and metrics by label, and how `tuned` differs from `baseline`."""
    found = {label: measure(rows) for label, rows in given.items()}
    report: Json = {"models": {}, "runs": {}, "tasks": {}, "left_out": {}, "metrics": {}}
    for label, one in found.items():
        steps = one.values["avg_steps"]
        report["models"][label] = sorted(one.models)
        report["runs"][label] = sum(map(len, steps.values()))
        report["tasks"][label] = len(steps)
        report["left_out"][label] = one.left_out
    for name in METRICS:
        by_task = {label: one.values[name] for label, one in found.items()}
        described = {label: _describe(list(values.values())) for label, values in by_task.items()}
        if {"baseline", "tuned"} <= by_task.keys():
            described["difference"] = _compare_tasks(by_task["baseline"], by_task["tuned"])
        report["metrics"][name] = described
    return report


def _compare_tasks(
    before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]
) -> Json:
    both = sorted(set(before) & set(after))
    gaps = [[_mean(after[task]) - _mean(before[task])] for task in both]
    return {**_describe(gaps), "tasks": len(both)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _describe(clusters: Sequence[Sequence[float]]) -> Json:
    """Return a mean and its bounds; null where there are too few values."""
    found: Interval = cluster_interval(clusters)
    bounds = {"mean": found.mean, "low": found.low, "high": found.high}
    return {name: None if value != value else value for name, value in bounds.items()}
