"""Evaluate a baseline and a tuned model on the same held-out tasks, from stored or new rollouts.

reads   ROLLOUT rows, small columns only
writes  per metric the mean of each model, and the paired difference, with confidence intervals
        clustered by task

Differences are paired by task: the mean over a task's rollouts of one model minus that of the other.
Runs with an infrastructure error are left out and counted.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from cards.plots import write_evaluation_plot
from cards.render import render_comparison
from pimono_sdpo.agent.rollout import Echo, OnFinished, RolloutOptions, check_errors, run_rollouts
from pimono_sdpo.errors import EmptySelection, OutputError, SourceError
from pimono_sdpo.runs.folders import (
    REPORT,
    make_output,
    only_run,
    publish_folder,
    read_json,
    require_disjoint,
    writing,
)
from pimono_sdpo.runs.parquet import read_rows, write_atomically
from pimono_sdpo.stats import cluster_interval
from pimono_sdpo.suites.stored_rollouts import open_rollouts
from pimono_sdpo.suites.suite import NAME, load_suite
from pimono_sdpo.version import __version__
from processors.rollouts.conversation import has_worked

Json = dict[str, Any]
METRICS: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "pass_rate": lambda row: row["tests_ok"],
    "parse_errors": lambda row: row["parse_errors"],
    # The share of steps with a readable call or report that worked.
    "tool_call_validity": lambda row: fmean(map(has_worked, row["steps"])) if row["steps"] else None,
    # Other agents write with other tools, so changed files count as well.
    "pct_runs_with_write_file": lambda row: (
        bool(row["files_touched"]) or any(step["name"] == "write_file" and step["ok"] for step in row["steps"])
    ),
    "loop_detections": lambda row: row["loop_detections"],
    "avg_steps": lambda row: row["n_steps"],
}
COLUMNS = (
    "task_id", "model", "tests_ok", "steps", "n_steps", "parse_errors", "loop_detections", "error",
    "files_touched",
)  # fmt: skip
STAGE = "evaluation"
# Options that should be equal for two models to be compared.
COMPARED = (
    "agent", "temperature", "max_tokens", "protocol", "test_policy", "max_iters", "max_tool_chars",
)  # fmt: skip


def evaluate_models(
    options: RolloutOptions,
    out: Path,
    echo: Echo,
    on_finished: OnFinished,
    baseline: Path | None = None,
    tuned: Path | None = None,
    baseline_model: str | None = None,
) -> Json:
    """Compare stored rollouts and new rollouts of models, and write the report under `out`.

    The rollouts of each model go to a folder named after it below OUT_rollouts. The models share the
    journal beside these folders, so `options.max_cost` limits their total cost.
    """
    out = out.resolve()
    parent = out.with_name(f"{out.name}_rollouts")
    stored = {label: folder for label, folder in (("baseline", baseline), ("tuned", tuned)) if folder}
    label = "tuned" if baseline or baseline_model else "model"
    models = {name: model for name, model in (("baseline", baseline_model), (label, options.model)) if model}
    folders = {
        name: parent / (re.sub(r"[^A-Za-z0-9._-]+", "--", model).strip(".-") or "model")
        for name, model in models.items()
    }
    if len(set(folders.values())) < len(folders):
        raise SourceError(f"The baseline `{baseline_model}` is the model itself; name another model, or none.")
    # Check the stored rollouts before the first call.
    report = _compare(options.suite, stored, options.limit, [out, *folders.values()])
    options = replace(options, journal=options.journal or parent / "calls.sqlite")
    with only_run(out, stage=STAGE) as work:
        for label, folder in folders.items():
            echo(f"Model: {models[label]}")
            check_errors(run_rollouts(replace(options, model=models[label]), folder, echo, on_finished), echo)
        if folders:
            report = _compare(options.suite, {**stored, **folders}, options.limit)
        finished = make_output(work)
        _write(report, finished, "report")
        publish_folder(finished, out)
    return report


def evaluate_to_file(
    options: RolloutOptions,
    rollouts: Path,
    file: Path,
    echo: Echo,
    on_finished: OnFinished,
    baseline: Path | None = None,
) -> Json:
    """Run rollouts, or use those in `rollouts` if no model is named; write NAME.json, NAME.md and NAME.svg."""
    if file.suffix != ".json":
        raise OutputError(f"`{file}` is not the name of a JSON file; give NAME.json.")
    files = [file.with_suffix(ending) for ending in (".json", ".md", ".svg")]
    if read_json(file).get("stage") != STAGE and (existing := next(filter(Path.exists, files), None)):
        raise OutputError(f"`{existing}` exists and is not the report of an evaluation; use another name.")
    stored = {"baseline": baseline} if baseline else {}
    _compare(options.suite, stored, options.limit, [rollouts.resolve()])
    if options.model or open_rollouts(rollouts) is None:
        check_errors(run_rollouts(options, rollouts, echo, on_finished), echo)
    report = _compare(options.suite, {**stored, "tuned" if baseline else "model": rollouts}, options.limit)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(report, file.parent, file.stem)
    return report


def _write(report: Json, folder: Path, stem: str) -> None:
    # The JSON comes first: it marks the other files as output of an evaluation.
    write_atomically(folder / f"{stem}.json", (json.dumps(report, indent=2) + "\n").encode())
    text = f"{render_comparison(report)}\n![Evaluation]({stem}.svg)\n"
    write_atomically(folder / f"{stem}.md", text.encode())
    write_evaluation_plot(report, folder / f"{stem}.svg")


def _compare(suite: Path, folders: Mapping[str, Path], limit: int | None, outputs: Sequence[Path] = ()) -> Json:
    """Return the report on the rollouts of the first `limit` tasks, by label.

    Raises OutputError if a folder and one of `outputs` lie inside each other.
    """
    name, task_ids = _find_tasks(suite, limit)
    report: Json = {
        "pimono_sdpo": __version__, "stage": STAGE, "suite": name, "models": {}, "runs": {}, "tasks": {},
        "left_out": {}, "metrics": {}, "warnings": [],
    }  # fmt: skip
    # The values of each metric, by label and task.
    values: dict[str, dict[str, dict[str, list[float]]]] = {name: {label: {} for label in folders} for name in METRICS}
    options: list[Json] = []
    for label, folder in folders.items():
        rollouts = open_rollouts(folder)
        if rollouts is None:
            raise SourceError(f"`{folder}` has no rollouts; give a folder that `rollout` wrote.")
        for output in outputs:
            require_disjoint(rollouts.folder.resolve(), output)
        models, runs, left_out = set(), Counter[str](), 0
        for row in read_rows(rollouts.files, COLUMNS):
            task = row["task_id"]
            if task not in task_ids or row["error"]:
                left_out += task in task_ids
                continue
            models.add(row["model"])
            runs[task] += 1
            for metric, measure in METRICS.items():
                if (value := measure(row)) is not None:
                    values[metric][label].setdefault(task, []).append(float(value))
        if not runs:
            raise EmptySelection(
                f"The rollouts of the {label} have no finished run of a task of `{name}`; use rollouts of this suite."
            )
        report["models"][label] = sorted(filter(None, models))
        report["runs"][label], report["tasks"][label] = runs.total(), len(runs)
        report["left_out"][label] = left_out
        rollout_report = read_json(rollouts.folder / REPORT)
        options.append({**rollout_report.get("sampling", {}), **rollout_report.get("rules", {})})
    for metric, by_label in values.items():
        intervals = {label: cluster_interval(list(tasks.values())).as_json() for label, tasks in by_label.items()}
        if {"baseline", "tuned"} <= by_label.keys():
            old, new = by_label["baseline"], by_label["tuned"]
            both = sorted(old.keys() & new.keys())
            gaps = [[fmean(new[task]) - fmean(old[task])] for task in both]
            intervals["difference"] = {**cluster_interval(gaps).as_json(), "tasks": len(both)}
        report["metrics"][metric] = intervals
    for option in COMPARED if len(options) == 2 and all(options) else ():
        before, after = (chosen.get(option) for chosen in options)
        if before != after:
            report["warnings"].append(
                f"{option} is {before} for the baseline and {after} for the tuned model, so the "
                "models are not the only difference"
            )
    return report


def _find_tasks(suite_path: Path, limit: int | None) -> tuple[str, set[str]]:
    """Return name and task ids of a suite, or of imported rollouts, which come without a suite."""
    imported = open_rollouts(suite_path) if suite_path.is_dir() and not (suite_path / NAME).exists() else None
    if imported is not None and not imported.tasks:
        return imported.name, {*list(imported.by_task())[:limit]}
    suite = load_suite(suite_path, repos=False)
    if suite.split == "train":
        raise SourceError(f"`{suite_path}` is the suite to train on; evaluate on the test suite of `suite split`.")
    return suite.name, {task["task_id"] for task in suite.tasks[:limit]}
