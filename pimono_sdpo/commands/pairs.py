"""Rollouts, or recorded sessions, to preference pairs."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimono_sdpo.commands.made import (
    Asked,
    check_length,
    make,
    nothing_kept,
    suite_held_out,
    tokenizer_mark,
    tokenizer_name,
)
from pimono_sdpo.errors import EmptySelection, OutputError, SourceError

if TYPE_CHECKING:
    from pimono_sdpo.runs.engine import Part, Piece
    from pimono_sdpo.stage import Stage
    from pimono_sdpo.suites.rollouts import Rollouts
    from processors.rollouts.pairs import Retest, Rules

NO_CONTRAST = frozenset({"no_contrast", "both_fail"})
ADVICE = (
    "make more rollouts of each task or harder tasks, at a higher temperature or with fewer "
    "--max-iters, or take --allow-efficiency-pairs"
)
Json = dict[str, Any]


def run_pairs(
    rollouts_dir: Path,
    out: Path,
    *,
    target: str = "step",
    last_k: int = 4,
    min_gap: float = 0.5,
    allow_efficiency_pairs: bool = False,
    flaky_reruns: int = 2,
    with_outcome: bool = False,
    tokenizer: str | None = None,
    max_length: int | None = None,
    format: str = "trl",
    licence: str | None = None,
    test_suite: Path | None = None,
) -> Json:
    """Pair the rollouts of each task under `out` and return the report.

    Its `counts` hold `tasks`, `tasks_with_pairs` and `no_contrast_tasks`; `rows` is the number of
    pairs, which may be 0. Raises SourceError, OutputError or TrainingInputError, and Leakage when
    pairs to train on are of tasks of `test_suite`.
    """
    from pimono_sdpo.agent.task_tests import open_tester
    from pimono_sdpo.runs.folders import require_disjoint
    from pimono_sdpo.schema import DROPPED_PAIR, PAIR
    from pimono_sdpo.suites.rollouts import open_rollouts
    from processors.rollouts.pairs import TARGETS, Rules

    check_length(tokenizer, max_length)
    held_out = suite_held_out(test_suite)
    if target not in TARGETS:
        raise OutputError(f"There is no target `{target}`; give one of {', '.join(TARGETS)}.")
    rules = Rules(
        target, last_k, min_gap, allow_efficiency_pairs, flaky_reruns, with_outcome
    )  # fmt: skip
    require_disjoint(rollouts_dir.resolve(), out.resolve())
    rollouts = open_rollouts(rollouts_dir)
    if rollouts is None:
        raise SourceError(
            f"`{rollouts_dir}` holds no rollouts: no data/*.parquet with their columns; give a "
            "folder that `rollout` has written."
        )
    stages = _fitting(tokenizer, max_length)
    options = {**asdict(rules), "tokenizer": tokenizer_name(tokenizer), "max_length": max_length}
    asked = Asked(
        "pairs", rollouts.name, "rollouts", options, format, licence, _warnings(rules), held_out
    )
    with open_tester(list(rollouts.tasks.values())) as tester:
        parts = _parts(
            rollouts, rules, stages, tester.retest, tokenizer_mark(tokenizer), max_length
        )
        return make(asked, parts, (PAIR, DROPPED_PAIR), out)


def run_session_pairs(
    source: str,
    out: Path,
    *,
    tokenizer: str | None = None,
    max_length: int | None = None,
    test_fraction: float = 0.0,
    format: str = "trl",
    licence: str | None = None,
    test_suite: Path | None = None,
) -> Json:
    """Pair failed edits with what put them right, and abandoned branches with those kept.

    Raises like `run_pairs`.
    """
    from pimono_sdpo.runs.folders import require_disjoint
    from pimono_sdpo.runs.sessions import step_parts
    from pimono_sdpo.schema import DROPPED_PAIR, PAIR
    from pimono_sdpo.traces.sources import open_source
    from processors.redact import redact_text
    from processors.rollouts import session_pairs

    check_length(tokenizer, max_length)
    held_out = suite_held_out(test_suite)
    if Path(source).exists():
        require_disjoint(Path(source).resolve(), out.resolve())
    opened = open_source(source)
    stages: list[Stage] = [*session_pairs.stages(test_fraction), *_fitting(tokenizer, max_length)]
    options: Json = {"tokenizer": tokenizer_name(tokenizer), "max_length": max_length}
    options |= {"test_fraction": test_fraction}
    made_by = {**options, "tokens": tokenizer_mark(tokenizer)}
    parts = step_parts(opened.shards, stages, made_by, PAIR, DROPPED_PAIR)
    name = redact_text(opened.name, "")[0]
    asked = Asked("pairs", name, opened.kind, options, format, licence, test_suite=held_out)
    return make(asked, parts, (PAIR, DROPPED_PAIR), out)


def pairs_of(source: str, out: Path, given: Mapping[str, Any], test_fraction: float) -> Json:
    """Tell rollouts from sessions and pair them; raises EmptySelection when there is no pair."""
    from pimono_sdpo.suites.rollouts import open_rollouts

    advice = ADVICE
    if source and open_rollouts(source) is not None:
        report = run_pairs(Path(source), out, **given)
    else:
        advice = "give sessions in which an edit failed or the user went back"
        common = ("tokenizer", "max_length", "format", "licence", "test_suite")
        chosen = {name: given[name] for name in common}
        report = run_session_pairs(source, out, test_fraction=test_fraction, **chosen)
    if not report["rows"]:
        raise EmptySelection(f"{nothing_kept(report, advice)} The rejects are in {out}.")
    return report


def pair_lines(folder: Path, path: Path) -> Json:
    """Write the training pairs of a folder as JSON lines and NAME_meta.jsonl; return the counts."""
    from pimono_sdpo.suites.rollouts import rows_of
    from processors.rollouts.together import dpo_line, write_lines

    files = sorted((folder / "data").glob("train-*.parquet"))
    rows = (row for file in files for row in rows_of(file))
    return dict(write_lines(rows, dpo_line, path))


def check_lines(suite: Path, target: str, protocol: str) -> None:
    """Refuse what can be no JSON lines to train on, before anything is spent.

    Raises OutputError, and SourceError for a suite that is none or is held out.
    """
    from pimono_sdpo.suites.suite import load
    from processors.rollouts.pairs import TARGETS

    if target not in TARGETS:
        raise OutputError(f"There is no target `{target}`; give one of {', '.join(TARGETS)}.")
    if target in {"full", "truncated"}:
        raise OutputError(
            f"Sides of the target `{target}` are several turns, and JSON lines hold one; take "
            "another target, or `rollout` and `pairs`."
        )
    if target == "step" and protocol == "native":
        raise OutputError(
            "Native tool calls are no texts, as JSON lines need them; give --tool-protocol json "
            "or another --target, or take `rollout` and `pairs`."
        )
    found = load(suite)
    if found.split == "test":
        raise SourceError(
            f"`{found.name}` is held out for testing, so that no pair of it is trained on; give "
            "the suite for training, or take `rollout`."
        )


def lines_of(folder: Path, path: Path, report: Json) -> Json:
    """Write the pairs as `pair_lines`; raises EmptySelection when there is none."""
    if not report["rows"]:
        raise EmptySelection(
            f"{nothing_kept(report, ADVICE)} The rejects are in {folder}; `{path}` is not written."
        )
    counts = pair_lines(folder, path)
    if not counts.get("written"):
        raise EmptySelection(
            f"None of {report['rows']} pairs can be a JSON line ({counts}); they are in {folder}."
        )
    return counts


def _fitting(tokenizer: str | None, max_length: int | None) -> "list[Stage]":
    from processors.rollouts import length_filter

    return [*length_filter.stages(tokenizer, max_length)] if tokenizer and max_length else []


def _warnings(rules: "Rules") -> list[str]:
    warnings = []
    if rules.target in {"full", "truncated"}:
        warnings.append(
            f"the target {rules.target} has results of tools between its actions: DPO learns those "
            "tokens, too, and a long side weighs more than a short one"
        )
    if rules.with_outcome:
        warnings.append("what tests said is in the target: the label is given away")
    return warnings


def _parts(
    rollouts: "Rollouts",
    rules: "Rules",
    stages: "list[Stage]",
    retest: "Retest",
    tokens: str | None,
    max_length: int | None,
) -> "list[Part]":
    from pimono_sdpo.runs.engine import Part
    from pimono_sdpo.suites.rollouts import is_same

    options = {"rules": asdict(rules), "tokens": tokens, "max_length": max_length}
    parts = []
    for number, (task_id, places) in enumerate(rollouts.by_task().items()):
        given = {
            "task_id": task_id,
            "task": rollouts.tasks.get(task_id),
            "files": [is_same(file) for file in dict.fromkeys(file for file, _ in places)],
            "rows": [number for _, number in places],
        }
        run = partial(_pair_task, rollouts, task_id, places, rules, stages, retest)
        parts.append(Part(number, task_id, len(places), given, options, run, tuple(stages)))
    return parts


def _pair_task(
    rollouts: "Rollouts",
    task_id: str,
    places: list[tuple[Path, int]],
    rules: "Rules",
    stages: "list[Stage]",
    retest: "Retest",
) -> "Iterator[Piece]":
    import pyarrow as pa

    from pimono_sdpo.runs.engine import Piece
    from pimono_sdpo.runs.sessions import rows_and_rejects
    from pimono_sdpo.schema import DROPPED_PAIR, PAIR
    from pimono_sdpo.stage import table_of_rows
    from pimono_sdpo.suites.rollouts import rows_at
    from pimono_sdpo.suites.workspace import visible_files
    from processors.rollouts.pairs import Case, pair_of
    from processors.rollouts.step_pairs import step_pairs

    task = rollouts.tasks.get(task_id)
    files = visible_files(task) if task and rules.target in {"patch", "last_write"} else {}
    case = Case(task_id, rows_at(places), rollouts.split_of(task_id), task, files, retest)
    made = step_pairs(case, rules) if rules.target == "step" else pair_of(case, rules)
    fitting = rows_and_rejects(table_of_rows(made.rows, PAIR), stages, PAIR, DROPPED_PAIR, "pairs")
    rejected = table_of_rows(made.rejects, DROPPED_PAIR)
    kept = fitting.tables["rows"]
    counts = {**made.counts, "runs": len(places), "tasks": 1}
    if kept.num_rows:
        counts["tasks_with_pairs"] = 1
    elif (
        all(row["drop_reason"] in NO_CONTRAST for row in made.rejects)
        and not fitting.counts["pairs"]
    ):
        counts["no_contrast_tasks"] = 1
    reasons = Counter(row["drop_reason"] for row in made.rejects)
    reasons.update(fitting.counts["dropped"])
    tables = {"rows": kept, "rejects": pa.concat_tables([rejected, fitting.tables["rejects"]])}
    yield Piece(tables, len(places), {**counts, "dropped": reasons})
