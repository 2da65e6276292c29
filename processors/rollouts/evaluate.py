"""Compare rollouts of two models on the same held-out tasks.

reads   ROLLOUT rows, small columns only
writes  per metric the mean of each model, and the paired difference, with intervals by task

A difference is paired by task: the mean of a task's rollouts under one model against that under the
other. Runs that a fault of ours ended are left out and counted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pimono_sdpo.stats import Interval, cluster_interval

COLUMNS = ("task_id", "tests_ok", "steps", "n_steps", "parse_errors", "loop_detections", "error")
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


def measured(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, dict[str, list[float]]], int]:
    """Return the values of each metric by task, and how many runs were left out."""
    values: dict[str, dict[str, list[float]]] = {name: {} for name in METRICS}
    left_out = 0
    for row in rows:
        if row["error"]:
            left_out += 1
            continue
        for name, metric in METRICS.items():
            value = metric(row)
            if value is not None:
                values[name].setdefault(row["task_id"], []).append(value)
    return values, left_out


def compared(
    baseline: Iterable[Mapping[str, Any]], tuned: Iterable[Mapping[str, Any]] | None
) -> Json:
    """Return runs, tasks and metrics of the baseline and, when given, of the tuned model."""
    models = {"baseline": measured(baseline)}
    if tuned is not None:
        models["tuned"] = measured(tuned)
    report: Json = {"metrics": {}, "tasks": {}, "left_out": {}, "runs": {}}
    for label, (values, left_out) in models.items():
        steps = values["avg_steps"]
        report["runs"][label] = sum(map(len, steps.values()))
        report["tasks"][label] = len(steps)
        report["left_out"][label] = left_out
    for name in METRICS:
        found = {label: values[name] for label, (values, _) in models.items()}
        told = {label: _interval(list(by_task.values())) for label, by_task in found.items()}
        if tuned is not None:
            told["difference"] = _difference(found["baseline"], found["tuned"])
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
