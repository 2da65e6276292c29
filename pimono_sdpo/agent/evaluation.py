"""Compare a baseline and a tuned model on the same held-out tasks: their rollouts, stored or new.

reads   ROLLOUT rows, small columns only
writes  per metric the mean of each model, and the paired difference, with intervals by task

Differences are paired by task: the mean of a task's rollouts under one model minus that under the
other. Runs that ended because of a fault of ours are left out and counted.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from cards.plots import write_comparison_plot
from cards.render import render_comparison
from pimono_sdpo import __version__
from pimono_sdpo.agent.rollout import Done, RolloutOptions, Tell, check_errors, run_rollouts
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
from processors.rollouts.conversation import has_worked

Json = dict[str, Any]


METRICS: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "pass_rate": lambda row: row["tests_ok"],
    "parse_errors": lambda row: row["parse_errors"],
    # The share of steps with a readable call or report that worked.
    "tool_call_validity": lambda row: fmean(map(has_worked, row["steps"])) if row["steps"] else None,
    # Other agents write with other tools; the files that a run changed tell.
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
# Options that must be equal for two models to be compared.
COMPARED = (
    "agent", "temperature", "max_tokens", "protocol", "test_policy", "max_iters", "max_tool_chars",
)  # fmt: skip


def evaluate_models(
    options: RolloutOptions,
    out: Path,
    tell: Tell,
    done: Done,
    baseline: Path | None = None,
    tuned: Path | None = None,
    baseline_model: str | None = None,
) -> Json:
    """Compare stored rollouts, and those of models that are run now, and write the report under `out`.

    Each model gets a folder named after it below OUT_rollouts; the journal beside these folders has
    all answers, so `options.max_cost` limits the models together.
    """
    out = out.resolve()
    made = out.with_name(f"{out.name}_rollouts")
    stored = {label: folder for label, folder in (("baseline", baseline), ("tuned", tuned)) if folder}
    label = "tuned" if baseline or baseline_model else "model"
    models = {name: model for name, model in (("baseline", baseline_model), (label, options.model)) if model}
    folders = {
        name: made / (re.sub(r"[^A-Za-z0-9._-]+", "--", model).strip(".-") or "model")
        for name, model in models.items()
    }
    if len(set(folders.values())) < len(folders):
        raise SourceError(f"The baseline `{baseline_model}` is the model itself; name another, or none.")
    # What cannot be compared is refused before the first call.
    report = _compare(options.suite, stored, options.limit, [out, *folders.values()])
    options = replace(options, journal=options.journal or made / "calls.sqlite")
    with only_run(out, stage=STAGE) as work:
        for label, folder in folders.items():
            tell(f"Model: {models[label]}")
            check_errors(run_rollouts(replace(options, model=models[label]), folder, tell, done), tell)
        if folders:
            report = _compare(options.suite, {**stored, **folders}, options.limit)
        finished = make_output(work)
        _write(report, finished, "report")
        publish_folder(finished, out)
    return report


def evaluate_to_file(
    options: RolloutOptions, made: Path, file: Path, tell: Tell, done: Done, baseline: Path | None = None
) -> Json:
    """Run rollouts, or take those in `made` when no model is named; write NAME.json, NAME.md and NAME.svg."""
    if file.suffix != ".json":
        raise OutputError(f"`{file}` is not a name for a JSON file; give NAME.json.")
    files = [file.with_suffix(ending) for ending in (".json", ".md", ".svg")]
    if read_json(file).get("stage") != STAGE and (there := next(filter(Path.exists, files), None)):
        raise OutputError(f"`{there}` exists and is not the report of an evaluation; give another name.")
    stored = {"baseline": baseline} if baseline else {}
    _compare(options.suite, stored, options.limit, [made.resolve()])
    if options.model or open_rollouts(made) is None:
        check_errors(run_rollouts(options, made, tell, done), tell)
    given = {**stored, "tuned" if baseline else "model": made}
    report = _compare(options.suite, given, options.limit)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(report, file.parent, file.stem)
    return report


def _write(report: Json, folder: Path, stem: str) -> None:
    # The report comes first: it marks the others as ours.
    write_atomically(folder / f"{stem}.json", (json.dumps(report, indent=2) + "\n").encode())
    text = f"{render_comparison(report)}\n![Evaluation]({stem}.svg)\n"
    write_atomically(folder / f"{stem}.md", text.encode())
    write_comparison_plot(report, folder / f"{stem}.svg")


def _compare(suite: Path, given: Mapping[str, Path], limit: int | None = None, written: Sequence[Path] = ()) -> Json:
    """Compare the rollouts of the first `limit` tasks, by label; refuse folders that contain one of `written`."""
    name, wanted = _find_tasks(suite, limit)
    report: Json = {
        "pimono_sdpo": __version__, "stage": STAGE, "suite": name, "models": {}, "runs": {}, "tasks": {},
        "left_out": {}, "metrics": {}, "warnings": [],
    }  # fmt: skip
    # The values of each metric by label and task.
    values: dict[str, dict[str, dict[str, list[float]]]] = {metric: {} for metric in METRICS}
    options: list[Json] = []
    for label, folder in given.items():
        rollouts = open_rollouts(folder)
        if rollouts is None:
            raise SourceError(f"`{folder}` has no rollouts; give a folder that `rollout` wrote.")
        for other in written:
            require_disjoint(rollouts.folder.resolve(), other)
        models, runs, left_out = set(), Counter[str](), 0
        for row in read_rows(rollouts.files, COLUMNS):
            task = row["task_id"]
            if task not in wanted or row["error"]:
                left_out += task in wanted
                continue
            models.add(row["model"])
            runs[task] += 1
            for metric, measure in METRICS.items():
                if (value := measure(row)) is not None:
                    values[metric].setdefault(label, {}).setdefault(task, []).append(float(value))
        if not runs:
            raise EmptySelection(
                f"The rollouts of the {label} have no finished run of a task of `{name}`; give rollouts of this suite."
            )
        report["models"][label] = sorted(filter(None, models))
        report["runs"][label], report["tasks"][label] = runs.total(), len(runs)
        report["left_out"][label] = left_out
        made = read_json(rollouts.folder / REPORT)
        options.append({**made.get("sampling", {}), **made.get("rules", {})})
    for metric, by_label in values.items():
        by_task = {label: by_label.get(label, {}) for label in given}
        described = {label: cluster_interval(list(found.values())).as_json() for label, found in by_task.items()}
        if {"baseline", "tuned"} <= by_task.keys():
            old, new = by_task["baseline"], by_task["tuned"]
            both = sorted(old.keys() & new.keys())
            gaps = [[fmean(new[task]) - fmean(old[task])] for task in both]
            described["difference"] = {**cluster_interval(gaps).as_json(), "tasks": len(both)}
        report["metrics"][metric] = described
    for option in COMPARED if len(options) == 2 and all(options) else ():
        before, after = (given.get(option) for given in options)
        if before != after:
            report["warnings"].append(
                f"{option} is {before} for the baseline and {after} for the tuned model, so the "
                "models are not the only difference"
            )
    return report


def _find_tasks(suite: Path, limit: int | None) -> tuple[str, set[str]]:
    """Return the name and the tasks of a suite, or of imported rollouts, which have none."""
    rollouts = open_rollouts(suite) if suite.is_dir() and not (suite / NAME).exists() else None
    if rollouts is not None and not rollouts.tasks:
        return rollouts.name, {*list(rollouts.by_task())[:limit]}
    tasks = load_suite(suite, repos=False)
    if tasks.split == "train":
        raise SourceError(f"`{suite}` is the suite to train on; evaluate on the test suite of `suite split`.")
    return tasks.name, {task["task_id"] for task in tasks.tasks[:limit]}
