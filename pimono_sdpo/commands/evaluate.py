"""Rollouts of a baseline and of a tuned model, compared on a held-out suite."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimono_sdpo import __version__
from pimono_sdpo.errors import EmptySelection, OutputError, SourceError

if TYPE_CHECKING:
    from pimono_sdpo.rollouts import Rollouts

Json = dict[str, Any]


def run_evaluate(suite: Path, baseline: Path, tuned: Path | None, out: Path) -> Json:
    """Compare two folders of rollouts of the suite under `out` and return the report.

    `out` gets `report.json`, `report.md` and `report.png`. Raises SourceError, OutputError or
    EmptySelection; then `out` is as it was.
    """
    from cards.evaluation import write_comparison
    from pimono_sdpo.runs.folders import LOCK, REPORT, apart, only_run, publish_folder, remove
    from pimono_sdpo.suites.suite import load
    from processors.rollouts.evaluate import compared

    tasks = load(suite, repos=False)
    out = out.resolve()
    given = {"baseline": _opened(baseline), **({"tuned": _opened(tuned)} if tuned else {})}
    for rollouts in given.values():
        apart(rollouts.folder.resolve(), out)
    if tasks.split == "train":
        raise SourceError(
            f"`{suite}` is the suite to train on; evaluate on the one that `split` held out."
        )
    wanted = {task["task_id"] for task in tasks.tasks}
    rows = {label: _rows(rollouts, wanted) for label, rollouts in given.items()}
    report: Json = {
        "pimono_sdpo": __version__,
        "stage": "evaluation",
        "suite": tasks.name,
        **compared(rows["baseline"], rows.get("tuned")),
    }
    for label, count in report["runs"].items():
        if not count:
            raise EmptySelection(
                f"The rollouts of the {label} have no finished run of a task of `{tasks.name}`; "
                "give rollouts of this suite."
            )
    there = json.loads((out / REPORT).read_text()) if (out / REPORT).is_file() else {}
    if there and there.get("stage") != "evaluation":
        raise OutputError(f"`{out}` holds what another command made; give another folder.")
    with only_run(out) as work:
        finished = work / "out"
        finished.mkdir(exist_ok=True)
        (finished / REPORT).write_text(json.dumps(report, indent=2) + "\n")
        write_comparison(report, finished)
        publish_folder(finished, out)
        remove(work, LOCK)
    return report


def _opened(folder: Path) -> "Rollouts":
    from pimono_sdpo.rollouts import open_rollouts

    rollouts = open_rollouts(folder)
    if rollouts is None:
        raise SourceError(
            f"`{folder}` holds no rollouts; give a folder that `rollout` has written."
        )
    return rollouts


def _rows(rollouts: "Rollouts", wanted: set[str]) -> Iterator[Json]:
    from pimono_sdpo.rollouts import rows_of
    from processors.rollouts.evaluate import COLUMNS

    for file in rollouts.files:
        yield from (row for row in rows_of(file, [*COLUMNS]) if row["task_id"] in wanted)
