"""Runs to next-action rows."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimono_sdpo.commands.made import Asked, check_length, make, nothing_kept, suite_held_out
from pimono_sdpo.errors import EmptySelection, OutputError
from pimono_sdpo.options import check_test_fraction

if TYPE_CHECKING:
    from pimono_sdpo.runs.engine import Part, Piece
    from pimono_sdpo.stage import Stage
    from pimono_sdpo.suites.rollouts import Rollouts

GRANULARITIES = ("step", "trajectory")
Json = dict[str, Any]


def run_steps(
    source: str,
    out: Path,
    *,
    require_success: bool = True,
    require_valid_tool_ok: bool = True,
    good_recovery: bool = False,
    with_final: bool = False,
    context_turns: int | None = None,
    tool_chars: int | None = None,
    granularity: str = "step",
    protocol: str = "as_recorded",
    tokenizer: str | None = None,
    max_length: int | None = None,
    test_fraction: float = 0.0,
    format: str = "trl",
    licence: str | None = None,
    test_suite: Path | None = None,
    keeps: bool = True,
) -> Json:
    """Cut rollouts, or recorded sessions, into rows under `out` and return the report.

    `keeps`: `out` stays, so that errors may name it.

    Raises SourceError, OutputError, TrainingInputError or EmptySelection, and Leakage when rows to
    train on are of tasks of `test_suite`.
    """
    from pimono_sdpo.commands.made import tokenizer_mark, tokenizer_name
    from pimono_sdpo.schema import DROPPED_STEP, STEP
    from processors.rollouts import length_filter, steps

    check_length(tokenizer, max_length)
    held_out = suite_held_out(test_suite)
    check_test_fraction(test_fraction)
    options: Json = {
        "require_success": require_success,
        "require_valid_tool_ok": require_valid_tool_ok,
        "good_recovery": good_recovery,
        "with_final": with_final,
        "context_turns": context_turns,
        "tool_chars": tool_chars,
        "granularity": granularity,
        "protocol": protocol,
    }
    stages: list[Stage] = [*steps.stages(**options)]
    if tokenizer and max_length:
        stages += length_filter.stages(tokenizer, max_length)
    options |= {"tokenizer": tokenizer_name(tokenizer), "max_length": max_length}
    made_by = {"options": options, "tokenizer": tokenizer_mark(tokenizer)}
    kind, name, parts = _parts(source, out, stages, made_by, test_fraction)
    if kind != "rollouts":
        options["test_fraction"] = test_fraction
    asked = Asked("steps", name, kind, options, format, licence, _warnings(granularity), held_out)
    report = make(asked, parts, (STEP, DROPPED_STEP), out)
    if not report["rows"]:
        where = f" The rejects are in {out}." if keeps else ""
        raise EmptySelection(nothing_kept(report, _ADVICE) + where)
    return report


def extract_lines(
    source: str, output: Path, require_success: bool, require_valid_tool_ok: bool
) -> Json:
    """Write the rows of `source` as Together's JSON lines to a file; return the counts.

    Raises like `run_steps`, and OutputError for a file that cannot be written.
    """
    from collections import Counter
    from tempfile import TemporaryDirectory

    from pimono_sdpo.suites.rollouts import rows_of
    from processors.rollouts.together import sft_line, write_lines

    if output.is_dir() or output.suffix != ".jsonl":
        raise OutputError(f"`{output}` is no name of a file of JSON lines; give NAME.jsonl.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(prefix=".sft-extract-", dir=output.parent)
    except OSError as error:
        raise OutputError(
            f"`{output}` cannot be written ({error.strerror}); give another place."
        ) from error
    with folder:
        made = Path(folder.name) / "steps"
        report = run_steps(
            source,
            made,
            require_success=require_success,
            require_valid_tool_ok=require_valid_tool_ok,
            protocol="json",
            keeps=False,
        )
        rows = (row for file in sorted((made / "data").glob("*.parquet")) for row in rows_of(file))
        # Rows of tasks that are held out are no training rows.
        counts = write_lines((r for r in rows if r["split"] == "train"), sft_line, output)
        if not counts["written"]:
            raise EmptySelection(
                f"`{report['source']}` gives no line to train on: {report['rows']} steps, of them "
                f"{report['splits'].get('test', 0)} of tasks held out for testing; give rollouts "
                "of a suite for training."
            )
    return dict(Counter(report["drop_reasons"]) + counts)


_ADVICE = "make more rollouts, or loosen it with --no-require-success or --no-require-valid-tool-ok"


def _warnings(granularity: str) -> list[str]:
    if granularity == "step":
        return []
    return [
        "a trajectory has results of tools between its actions: train on it with "
        "assistant_only_loss=True, which leaves them out of the loss"
    ]


def _parts(
    source: str, out: Path, stages: "list[Stage]", made_by: Json, test_fraction: float
) -> "tuple[str, str, list[Part]]":
    """Tell rollouts from sessions; return the kind, the name and a part per shard."""
    from pimono_sdpo.runs.engine import Part
    from pimono_sdpo.runs.folders import require_disjoint
    from pimono_sdpo.runs.sessions import step_parts
    from pimono_sdpo.schema import DROPPED_STEP, STEP
    from pimono_sdpo.suites.rollouts import is_same, open_rollouts
    from pimono_sdpo.traces.sources import open_source
    from processors.rollouts import sessions

    if source and Path(source).exists():
        require_disjoint(Path(source).resolve(), out.resolve())
    rollouts = open_rollouts(source)
    if rollouts is not None:
        parts = []
        for number, file in enumerate(rollouts.files):
            given = {"file": is_same(file), "tasks": rollouts.tasks}
            run = partial(_cut_rollouts, rollouts, file, stages)
            parts.append(Part(number, file.name, 1, given, made_by, run, tuple(stages)))
        return "rollouts", rollouts.name, parts
    opened = open_source(source)
    stages = [sessions.stage(test_fraction), *stages]
    parts = step_parts(opened.shards, stages, made_by, STEP, DROPPED_STEP)
    return opened.kind, _without_secrets(opened.name), parts


def _cut_rollouts(rollouts: "Rollouts", file: Path, stages: "list[Stage]") -> "Iterator[Piece]":
    import pyarrow as pa

    from pimono_sdpo.runs.sessions import rows_and_rejects, slice_table
    from pimono_sdpo.schema import DROPPED_STEP, STEP
    from pimono_sdpo.suites.rollouts import tables_of

    for table in tables_of(file):
        splits = [rollouts.split_of(task_id) for task_id in table["task_id"].to_pylist()]
        for few in slice_table(table.append_column("split", pa.array(splits, pa.string()))):
            yield rows_and_rejects(few, stages, STEP, DROPPED_STEP, "runs")


def _without_secrets(name: str) -> str:
    from processors.redact import redact_text

    return redact_text(name, "")[0]
