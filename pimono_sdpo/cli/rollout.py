"""Run an agent on the tasks of a suite, and pair the rollouts.

A run that was stopped resumes with the same command; no finished call is repeated:

    pimono-sdpo rollout suite.json --out rollouts --model openai/gpt-oss-20b --estimate
    pimono-sdpo rollout suite.json --out rollouts --model openai/gpt-oss-20b --max-cost 5
    pimono-sdpo rollout suite.json --out rollouts --pairs pairs
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from pimono_sdpo.agent.driver import status_of
from pimono_sdpo.agent.rollout import RolloutOptions, check_errors, estimate_rollouts, run_rollouts
from pimono_sdpo.cli import pairs
from pimono_sdpo.options import option, options
from pimono_sdpo.runs.folders import require_disjoint, require_replaceable, require_stage

RULE = "=" * 60
# From published results: a 72B model got worse with 6 pairs; training begins to help with hundreds.
ADVICE = (
    "Few tasks: up to 6 pairs are a pilot and tend to make a model worse; check with 20 to 50 "
    "tasks, train on 200 to 500 pairs (300 to 1000 SFT steps) first, a 7B model before a 72B one. "
    "More tasks help more than more rollouts of each."
)
FEW_TASKS = 50
Json = dict[str, Any]
Log = Callable[[str], None]


@options
class RolloutCommandOptions(RolloutOptions):
    """Options of `rollout`."""

    out: Path = option("Folder to write; an earlier output is replaced.")
    pairs: Path | None = option("Also pair the rollouts, into this folder.", default=None)
    estimate: bool = option("Run 8 rollouts, estimate the cost of all, and stop.", default=False)
    replay: bool = option("Read all answers from the journal; call no model.", default=False)


def run(options: RolloutCommandOptions) -> None:
    """Run the rollouts and print a summary."""
    log = print_as("rollout")
    pairing = None
    if options.pairs is not None:
        pairing = pairs.PairOptions(source=[str(options.out)], out=options.pairs)
        check_pairing(pairing, options.out)
    if options.estimate:
        typer.echo(estimate_rollouts(options, options.out, log, options.replay))
        typer.echo(ADVICE)
        return
    report = run_rollouts(options, options.out, log, print_rollout(log), options.replay)
    if pairing is not None:
        pairs_report = pair_rollouts(pairing, report, log)
        log(f"Wrote {pairs_report['rows']} preference pairs to: {pairing.out}")
        log(f"Wrote {report['rollouts']} rollouts to: {options.out}")
    else:
        verdicts = ", ".join(f"{count} {status}" for status, count in report["verdicts"].items())
        _print_summary([f"Total tasks: {report['tasks']}", f"Rollouts: {report['rollouts']} ({verdicts})"], log)
        log(f"Wrote {report['rollouts']} rollouts to: {options.out}")
        log(f"Wrote traces to: {options.out / 'traces'}")
    print_problems(report, log)


def check_pairing(pairing: pairs.PairOptions, rollouts: Path) -> None:
    """Raise OutputError if the folder of pairs cannot be written, before any money is spent."""
    require_disjoint(rollouts.resolve(), pairing.out.resolve())
    require_replaceable(pairing.out)
    require_stage(pairing.out, "pairs")


def print_as(name: str) -> Log:
    """Return a function that prints lines with the name of a command in front."""
    return lambda line: typer.echo(f"[{name}] {line}")


def print_rollout(log: Log) -> Callable[[Json, str], None]:
    """Return a function that prints a line for a finished rollout and its number."""

    def print_row(row: Json, number: str) -> None:
        log(f"[{number}] {row['task_id']} seed={row['seed']}: {status_of(row)} (steps={row['n_steps']})")

    return print_row


def pair_rollouts(options: pairs.PairOptions, rollouts: Json, log: Log) -> Json:
    """Pair the rollouts with this report, print a summary, and return the report of the pairs."""
    report = pairs.write_pairs(options)
    rows, counts = report["rows"], report["counts"]
    with_pairs, no_contrast = counts.get("tasks_with_pairs", 0), counts.get("no_contrast_tasks", 0)
    lines = [
        f"Total tasks: {rollouts['tasks']}",
        f"Preference pairs generated: {rows}" + ("" if rows == with_pairs else f" (of {with_pairs} tasks)"),
        f"No-contrast tasks: {no_contrast}",
    ]
    if others := rollouts["tasks"] - with_pairs - no_contrast:
        reasons = ", ".join(f"{count} {name}" for name, count in report["drop_reasons"].items())
        lines.append(f"Tasks without a usable pair: {others} ({reasons})")
    _print_summary(lines, log)
    for warning in report["warnings"]:
        log(f"Warning: {warning}")
    return report


def _print_summary(lines: Sequence[str], log: Log) -> None:
    typer.echo(f"\n{RULE}")
    for line in ("Summary:", *lines):
        log(line)
    typer.echo(RULE)


def print_problems(report: Json, log: Log) -> None:
    """Print failures that the model did not cause, and advice if there are few tasks."""
    check_errors(report, log)
    if report["tasks"] < FEW_TASKS:
        typer.echo(ADVICE)
