"""Pair better with worse runs.

pimono-sdpo pairs rollouts/ --out pairs
pimono-sdpo pairs rollouts/ --out pairs --target patch --format together
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pimono_sdpo.agent.task_tests import TaskTests
from pimono_sdpo.cli.steps import finish
from pimono_sdpo.dataset_writer import RunRowsOptions, name_source, open_runs, write_dataset
from pimono_sdpo.errors import OutputError, SourceError
from pimono_sdpo.options import option, options
from pimono_sdpo.push import check_push
from pimono_sdpo.push_options import PushResult
from pimono_sdpo.removed import explain_removed
from pimono_sdpo.runs.engine import Part, Piece, hash_files
from pimono_sdpo.runs.sessions import both, rows_and_rejects
from pimono_sdpo.schema import DROPPED_PAIR, PAIR
from pimono_sdpo.stage import KEPT, Stage, table_of_rows
from pimono_sdpo.suites.stored_rollouts import Rollouts, read_rows_at
from pimono_sdpo.suites.suite import files_of, load_suite
from processors.rollouts.pairs import Case, PairRules, Retest, pair_runs, pair_steps

NO_CONTRAST = frozenset({"no_contrast", "both_fail"})
ADVICE = (
    "use more rollouts of each task or of harder tasks (with `rollout`: at a higher temperature or "
    "with fewer --max-iters), or use --allow-efficiency-pairs"
)
VERDICT_ADVICE = (
    "use rollouts whose tests were run, or an import of runs with verdicts; runs without any can "
    "only be compared by length: --allow-efficiency-pairs --target full"
)
Json = dict[str, Any]


@options
class PairOptions(PushResult, RunRowsOptions, PairRules):
    """Options of `pairs`."""

    out: Path = option("Folder to write; an earlier output is replaced.")


def run(options: PairOptions) -> None:
    """Write the pairs, and push them with --push."""
    check_push(options)
    report = write_pairs(options)
    advice = VERDICT_ADVICE if report["drop_reasons"].keys() == {"no_verdict"} else ADVICE
    finish(report, options.out, options, advice)


def write_pairs(options: PairOptions) -> Json:
    """Pair the rollouts of each task under `out`; return the report, also without pairs."""
    key, used_options = options.describe()
    runs = open_runs(options, options.out)
    if not isinstance(runs, Rollouts):
        raise explain_removed("pairs of sessions")
    warnings = []
    if options.target in {"full", "truncated"}:
        warnings.append(
            f"the target {options.target} has results of tools between its actions: DPO learns those tokens as "
            "well, and a long side weighs more than a short one"
        )
    if options.with_outcome:
        warnings.append("the target holds the output of the tests, which gives the label away")
    parts = _task_parts(runs, options, key, TaskTests().retest)
    table = (PAIR, DROPPED_PAIR)
    return write_dataset(parts, table, options.out, options, "pairs", name_source(runs), used_options, warnings)


def _task_parts(rollouts: Rollouts, options: PairOptions, key: Json, retest: Retest) -> list[Part]:
    stages = options.length_stages()
    contents = {file: hash_files([file]) for file in rollouts.files}
    parts = []
    for number, (task_id, places) in enumerate(rollouts.by_task().items()):
        source = {
            "task_id": task_id,
            "task": rollouts.tasks.get(task_id),
            "files": [contents[file] for file in dict.fromkeys(file for file, _ in places)],
            "rows": [row for _, row in places],
        }
        part = Part(
            name=f"{number:05}",
            title=task_id,
            units=len(places),
            input=source,
            options=key,
            run=partial(_pair_task, rollouts, task_id, places, options, stages, retest),
            schema=both(PAIR, DROPPED_PAIR).arrow_schema,
            stages=tuple(stages),
        )
        parts.append(part)
    return parts


def _pair_task(
    rollouts: Rollouts,
    task_id: str,
    places: list[tuple[Path, int]],
    rules: PairRules,
    stages: list[Stage],
    retest: Retest,
) -> Iterator[Piece]:
    task = rollouts.tasks.get(task_id)
    needs_files = task and rules.target in {"patch", "last_write"} and Path(task["repo"]).is_dir()
    files = files_of(Path(task["repo"]), task["hide"]) if task and needs_files else {}
    case = Case(task_id, read_rows_at(places), rollouts.split_of(task_id), task, files, retest)
    pairs = pair_steps(case, rules) if rules.target == "step" else pair_runs(case, rules)
    checked = rows_and_rejects(table_of_rows(pairs.rows, PAIR), stages, PAIR, DROPPED_PAIR, "pairs")
    rejects = table_of_rows([{**row, KEPT: False} for row in pairs.rejects], both(PAIR, DROPPED_PAIR))
    table = pa.concat_tables([rejects, checked.table])
    reasons = Counter(row["drop_reason"] for row in pairs.rejects)
    reasons.update(checked.counts["dropped"])
    counts = {**pairs.counts, "runs": len(places), "tasks": 1, "dropped": reasons}
    if pc.any(table[KEPT]).as_py():
        counts["tasks_with_pairs"] = 1
    elif reasons.keys() <= NO_CONTRAST:
        counts["no_contrast_tasks"] = 1
    yield Piece(table, len(places), counts)


def check_dpo_lines(suite: Path, target: str, protocol: str) -> None:
    """Raise an error if the pairs cannot become JSON lines to train on, before any money is spent."""
    if target == "step" and protocol == "native":
        raise OutputError(
            "Native tool calls are not text, which JSON lines need; use --tool-protocol json, "
            "another --target, or `rollout` and `pairs`."
        )
    loaded = load_suite(suite)
    if loaded.split == "test":
        raise SourceError(
            f"`{loaded.name}` is held out for testing, so no pair of it may be trained on; use the "
            "suite for training, or `rollout`."
        )
