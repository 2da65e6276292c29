"""Cut rollouts or sessions into next-action rows for SFT.

pimono-sdpo steps rollouts/ --out steps
pimono-sdpo steps traces/ --out steps --tool-protocol json --format together
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import typer

from pimono_sdpo.dataset_writer import RunRowsOptions, name_source, open_runs, summarize, write_dataset
from pimono_sdpo.left_out import explain_empty, require_whole
from pimono_sdpo.options import option, options
from pimono_sdpo.push import check_push, push_folder
from pimono_sdpo.push_options import PushResult
from pimono_sdpo.removed import explain_removed
from pimono_sdpo.runs.engine import Part, Piece
from pimono_sdpo.runs.parquet import read_rows, read_tables
from pimono_sdpo.runs.sessions import both, rows_and_rejects, session_parts, slice_table
from pimono_sdpo.schema import DROPPED_STEP, STEP
from pimono_sdpo.stage import Map, Stage
from pimono_sdpo.suites.stored_rollouts import Rollouts
from processors.rollouts import sessions, steps
from processors.rollouts.noise import Passing

Json = dict[str, Any]


@options
class StepOptions(PushResult, RunRowsOptions, steps.StepRules):
    """Options of `steps`."""

    out: Path = option("Folder to write; an earlier output is replaced.")


def run(options: StepOptions) -> None:
    """Write the rows, and push them with --push."""
    check_push(options)
    finish(write_steps(options), options.out, options, advise(options))


def finish(report: Json, out: Path, options: PushResult, advice: str) -> None:
    """Print a summary of the rows, and push them with --push; raises an error if there are none, or after a crash."""
    if not report["rows"]:
        raise explain_empty(report, f"{advice}; the rejects are in {out}")
    typer.echo(summarize(report, out))
    if options.push is not None:
        typer.echo(push_folder(out, options.push, options))
    require_whole(report)


def advise(options: steps.StepRules) -> str:
    """Return advice for a run without rows: more runs, or options that turn a rule off."""
    rules = ("require_success", "require_valid_tool_ok")
    flags = [f"--no-{name.replace('_', '-')}" for name in rules if getattr(options, name)]
    return ", or ".join(["use more runs", *flags])


def write_steps(options: StepOptions) -> Json:
    """Cut rollouts or sessions into rows under `out` and return the report."""
    rules = steps.StepRules(**{one.name: getattr(options, one.name) for one in fields(steps.StepRules)})
    key, used_options = options.describe()
    table = (STEP, DROPPED_STEP)
    runs = open_runs(options, options.out)
    if isinstance(runs, Rollouts):
        passing = find_passing(runs)
        stages = [*steps.build_stages(rules, passing, runs.tasks), *options.length_stages()]
        parts = _rollout_parts(runs, passing, stages, key)
    else:
        if options.good_recovery:
            raise explain_removed("steps --good-recovery of sessions")
        recorder = None if options.keep_identity else runs.recorder
        stages = [
            sessions.build_stage(options.test_fraction, recorder),
            *steps.build_stages(rules),
            *options.length_stages(),
        ]
        parts = session_parts(runs.shards, stages, key, table)
    warnings = []
    if options.granularity == "trajectory":
        warnings.append(
            "a trajectory has results of tools between its actions: train on it with "
            "assistant_only_loss=True, which leaves them out of the loss"
        )
    others = {} if isinstance(runs, Rollouts) else runs.others
    return write_dataset(
        parts, table, options.out, options, "steps", name_source(runs), used_options, warnings, others
    )


def find_passing(rollouts: Rollouts) -> dict[str, Passing]:
    """Return the changes of the passing runs by task; one patch is in memory at a time."""
    passing: defaultdict[str, Passing] = defaultdict(Passing)
    columns = ["task_id", "tests_ok", "error", "patch", "files_touched"]
    for row in read_rows(rollouts.files, columns):
        if row["tests_ok"] and not row["error"]:
            passing[row["task_id"]].add(row)
    return dict(passing)


def _rollout_parts(rollouts: Rollouts, passing: dict[str, Passing], stages: list[Stage], key: Json) -> list[Part]:
    parts = []
    # The rows of a file depend on the runs of the same tasks in other files.
    digest = hashlib.sha256(repr(sorted(passing.items())).encode()).hexdigest()
    for number, file in enumerate(rollouts.files):
        part = Part(
            name=f"{number:05}",
            title=file.name,
            units=1,
            input={"passing": digest, "tasks": rollouts.tasks},
            options=key,
            run=partial(_cut_rollouts, rollouts, file, stages),
            schema=both(steps.PRINTED, DROPPED_STEP).arrow_schema,
            files=(file,),
            stages=tuple(stages),
        )
        parts.append(part)
    return parts


def _cut_rollouts(rollouts: Rollouts, file: Path, stages: list[Stage]) -> Iterator[Piece]:
    stages = [*stages, Map(steps.hash_action, reads=("prompt", "completion"), writes=steps.PRINTED)]
    for table in read_tables(file):
        splits = [rollouts.split_of(task_id) for task_id in table["task_id"].to_pylist()]
        for part in slice_table(table.append_column("split", pa.array(splits, pa.string()))):
            yield rows_and_rejects(part, stages, steps.PRINTED, DROPPED_STEP, "runs")
