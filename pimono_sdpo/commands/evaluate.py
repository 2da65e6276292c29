"""A baseline and a tuned model, compared on a held-out suite: their rollouts, made or given."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimono_sdpo import __version__
from pimono_sdpo.errors import EmptySelection, InferenceError, OutputError, SourceError

if TYPE_CHECKING:
    from pimono_sdpo.commands.rollouts import Plan
    from pimono_sdpo.suites.rollouts import Rollouts
    from pimono_sdpo.suites.suite import Suite

STAGE = "evaluation"
# Of the report of rollouts: what must be the same for two models to be compared.
ALIKE = {
    "sampling": ("temperature", "max_tokens"),
    "rules": ("protocol", "test_policy", "max_iters", "max_tool_chars", "lenient"),
}
Json = dict[str, Any]
Tell = Callable[[str], None]
Done = Callable[[Json, str], None]


def run_evaluate(suite: Path, baseline: Path, tuned: Path | None, out: Path) -> Json:
    """Compare two folders of rollouts of the suite under `out` and return the report.

    `out` gets `report.json`, `report.md` and `report.png`. Raises SourceError, OutputError or
    EmptySelection; then `out` is as it was.
    """
    from pimono_sdpo.runs.folders import only_run, require_disjoint

    out = out.resolve()
    tasks = _held_out(suite)
    given = {"baseline": baseline, **({"tuned": tuned} if tuned else {})}
    for folder in given.values():
        require_disjoint(_opened(folder).folder.resolve(), out)
    report = _report(tasks, given)
    _check_other(out)
    with only_run(out) as work:
        _publish(report, work, out)
    return report


def evaluate_models(
    plan: "Plan",
    out: Path,
    tell: Tell,
    done: Done,
    baseline: Path | None = None,
    baseline_model: str | None = None,
) -> Json:
    """Run the rollouts of `plan.model`, of a baseline's too, and compare them as `run_evaluate`.

    Each model has a folder named after it below `plan.out`, and one journal beside those folders
    has the answers of both: `plan.max_cost` limits them together. Rollouts of a baseline may be
    given instead; with no baseline the report has no differences. Raises like `run_rollouts` and
    `run_evaluate`; what was answered is in the journal.
    """
    from pimono_sdpo.runs.folders import only_run, require_disjoint

    out, made = out.resolve(), plan.out.resolve()
    models: dict[str, str | None] = {"baseline": baseline_model} if baseline_model else {}
    models["tuned" if baseline or baseline_model else "model"] = plan.model
    folders = {label: made / _name(model or "") for label, model in models.items()}
    if len(set(folders.values())) < len(folders):
        raise SourceError(
            f"The baseline `{baseline_model}` is the model itself; name another, or none."
        )
    _held_out(plan.suite)
    _check_other(out)
    require_disjoint(made, out)
    if baseline is not None:
        _check_baseline(plan, baseline, [out, *folders.values()])
    plan = replace(plan, journal=plan.journal or made / "calls.sqlite")
    with only_run(out) as work:
        for label, folder in folders.items():
            tell(f"Model: {models[label]}")
            _roll(replace(plan, model=models[label], out=folder), tell, done)
        given = {**({"baseline": baseline} if baseline else {}), **folders}
        report = _report(_held_out(plan.suite), given, plan.limit)
        _publish(report, work, out)
    return report


def evaluate_to_file(
    plan: "Plan", file: Path, tell: Tell, done: Done, baseline: Path | None = None
) -> Json:
    """Run the rollouts of a plan, or take those in `plan.out` when it names no model; report.

    Writes the report to `file`, NAME.json, and beside it NAME.md and NAME.png. Raises like
    `evaluate_models`.
    """
    from pimono_sdpo.runs.folders import read_json
    from pimono_sdpo.suites.rollouts import open_rollouts

    _held_out(plan.suite)
    if file.suffix != ".json" or file.is_dir():
        raise OutputError(f"`{file}` is no name of a JSON file; give NAME.json.")
    there = read_json(file) if file.is_file() else {"stage": STAGE}
    if not isinstance(there, dict) or there.get("stage") != STAGE:
        raise OutputError(f"`{file}` is there and is no report of an evaluation; give another.")
    for ending in () if file.is_file() else (".md", ".png"):
        if file.with_suffix(ending).exists():
            raise OutputError(f"`{file.with_suffix(ending)}` is there; give another name.")
    if baseline is not None:
        _check_baseline(plan, baseline, [plan.out.resolve()])
    if plan.model or open_rollouts(plan.out) is None:
        _roll(plan, tell, done)
    label = "tuned" if baseline else "model"
    given = {**({"baseline": baseline} if baseline else {}), label: plan.out}
    report = _report(_held_out(plan.suite), given, plan.limit)
    _write_beside(report, file)
    return report


def _held_out(suite: Path) -> "Suite":
    from pimono_sdpo.suites.suite import load

    tasks = load(suite, repos=False)
    if tasks.split == "train":
        raise SourceError(
            f"`{suite}` is the suite to train on; evaluate on the one that `split` held out."
        )
    return tasks


def _name(model: str) -> str:
    """Return the name of a model's folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "--", model).strip(".-") or "model"


def _roll(plan: "Plan", tell: Tell, done: Done) -> None:
    from pimono_sdpo.commands.rollouts import run_rollouts

    report = run_rollouts(plan, tell, done)
    for reason, count in report["errors"].items():
        tell(f"{count} failed, and are tried again by the same command: {reason}")
    if report["verdicts"].get("ERROR") == report["rollouts"]:
        raise InferenceError("No rollout came to its end; see to what failed and run this again.")


def _check_baseline(plan: "Plan", baseline: Path, written: list[Path]) -> None:
    """Raise what would be raised in the end, before anybody is asked."""
    from pimono_sdpo.runs.folders import require_disjoint

    for folder in written:
        require_disjoint(_opened(baseline).folder.resolve(), folder)
    _report(_held_out(plan.suite), {"baseline": baseline}, plan.limit)


def _check_other(out: Path) -> None:
    from pimono_sdpo.runs.folders import REPORT, read_json

    there = read_json(out / REPORT) if (out / REPORT).is_file() else None
    if isinstance(there, dict) and there.get("stage") != STAGE:
        raise OutputError(f"`{out}` holds what another command made; give another folder.")


def _report(tasks: "Suite", given: Mapping[str, Path], limit: int | None = None) -> Json:
    """Compare the rollouts of the first `limit` tasks; raises EmptySelection."""
    from processors.rollouts.evaluate import compared

    wanted = {task["task_id"] for task in tasks.tasks[:limit]}
    opened = {label: _opened(folder) for label, folder in given.items()}
    report: Json = {
        "pimono_sdpo": __version__,
        "stage": STAGE,
        "suite": tasks.name,
        **compared({label: _rows(rollouts, wanted) for label, rollouts in opened.items()}),
        "warnings": _unlike(opened),
    }
    for label, count in report["runs"].items():
        if not count:
            raise EmptySelection(
                f"The rollouts of the {label} have no finished run of a task of `{tasks.name}`; "
                "give rollouts of this suite."
            )
    return report


def _unlike(opened: "Mapping[str, Rollouts]") -> list[str]:
    """Say in which options two folders differ, as far as their reports have them."""
    from pimono_sdpo.runs.folders import REPORT

    if len(opened) < 2:
        return []
    before, after = (_driven_by(rollouts.folder / REPORT) for rollouts in opened.values())
    return [
        f"{name} is {before[name]} for the baseline and {after[name]} for the tuned model: the "
        "difference is not that of the models alone"
        for name in before
        if name in after and before[name] != after[name]
    ]


def _driven_by(file: Path) -> Json:
    from pimono_sdpo.runs.folders import read_json

    report = read_json(file) if file.is_file() else None
    found: Json = {}
    for key, names in ALIKE.items():
        part = report.get(key) if isinstance(report, dict) else None
        found |= {n: part[n] for n in names if n in part} if isinstance(part, dict) else {}
    return found


def _publish(report: Json, work: Path, out: Path) -> None:
    from cards.render import write_comparison
    from pimono_sdpo.runs.folders import REPORT, publish_folder

    finished = work / "out"
    finished.mkdir(exist_ok=True)
    (finished / REPORT).write_text(json.dumps(report, indent=2) + "\n")
    write_comparison(report, finished)
    publish_folder(finished, out)


def _write_beside(report: Json, file: Path) -> None:
    from tempfile import TemporaryDirectory

    from cards.render import write_comparison

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".evaluation-", dir=file.parent) as name:
            made = Path(name)
            (made / file.name).write_text(json.dumps(report, indent=2) + "\n")
            write_comparison(report, made, file.stem)
            # The report comes first: it tells that the others are ours.
            for ending in (".json", ".md", ".png"):
                (made / f"{file.stem}{ending}").replace(file.with_suffix(ending))
    except OSError as error:
        raise OutputError(
            f"`{file}` cannot be written ({error.strerror}); give another place."
        ) from error


def _opened(folder: Path) -> "Rollouts":
    from pimono_sdpo.suites.rollouts import open_rollouts

    rollouts = open_rollouts(folder)
    if rollouts is None:
        raise SourceError(
            f"`{folder}` holds no rollouts; give a folder that `rollout` has written."
        )
    return rollouts


def _rows(rollouts: "Rollouts", wanted: set[str]) -> Iterator[Json]:
    from pimono_sdpo.suites.rollouts import rows_of
    from processors.rollouts.evaluate import COLUMNS

    for file in rollouts.files:
        yield from (row for row in rows_of(file, [*COLUMNS]) if row["task_id"] in wanted)
