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
# Measured by others: with 6 pairs a 72B model got worse; hundreds are where it begins to help.
ADVICE = (
    "Few tasks: up to 6 pairs are a pilot and tend to make a model worse; check with 20 to 50 "
    "tasks, train on 200 to 500 pairs (300 to 1000 SFT steps) first, a 7B model before a 72B one. "
    "More tasks help more than more rollouts of each."
)
FEW_TASKS = 50
Json = dict[str, Any]
Tell = Callable[[str], None]


@options
class Options(RolloutOptions):
    """Options of `rollout`."""

    out: Path = option("Folder to write; an earlier output is replaced.")
    pairs: Path | None = option("Also pair the rollouts, into this folder.", default=None)
    estimate: bool = option("Run 8 rollouts, estimate the cost of all, and stop.", default=False)
    replay: bool = option("Take every answer from the journal and ask nobody.", default=False)


def run(options: Options) -> None:
    """Run the rollouts and print a summary."""
    tell = print_as("rollout")
    pairing = None
    if options.pairs is not None:
        pairing = pairs.Options(source=[str(options.out)], out=options.pairs)
        check_pairing(pairing, options.out)
    if options.estimate:
        typer.echo(estimate_rollouts(options, options.out, tell, options.replay))
        typer.echo(ADVICE)
        return
    report = run_rollouts(options, options.out, tell, print_rollout(tell), options.replay)
    if pairing is not None:
        found = pair_rollouts(pairing, report, tell)
        tell(f"Wrote {found['rows']} preference pairs to: {pairing.out}")
        tell(f"Wrote {report['rollouts']} rollouts to: {options.out}")
    else:
        verdicts = ", ".join(f"{count} {status}" for status, count in report["verdicts"].items())
        print_summary([f"Total tasks: {report['tasks']}", f"Rollouts: {report['rollouts']} ({verdicts})"], tell)
        tell(f"Wrote {report['rollouts']} rollouts to: {options.out}")
        tell(f"Wrote traces to: {options.out / 'traces'}")
    print_problems(report, tell)


def check_pairing(pairing: pairs.Options, rollouts: Path) -> None:
    """Refuse a folder of pairs that cannot be written, before anything is spent."""
    require_disjoint(rollouts.resolve(), pairing.out.resolve())
    require_replaceable(pairing.out)
    require_stage(pairing.out, "pairs")


def print_as(name: str) -> Tell:
    """Return what prints lines that begin with the name of a command."""
    return lambda line: typer.echo(f"[{name}] {line}")


def print_rollout(tell: Tell) -> Callable[[Json, str], None]:
    """Return what prints a line for each finished rollout."""

    def done(row: Json, place: str) -> None:
        what = f"{row['task_id']} seed={row['seed']}: {status_of(row)}"
        tell(f"[{place}] {what} (steps={row['n_steps']})")

    return done


def pair_rollouts(options: pairs.Options, report: Json, tell: Tell) -> Json:
    """Pair the rollouts, print a summary, and return the report of the pairs."""
    found = pairs.write_pairs(options)
    rows, counts = found["rows"], found["counts"]
    paired, same = counts.get("tasks_with_pairs", 0), counts.get("no_contrast_tasks", 0)
    lines = [
        f"Total tasks: {report['tasks']}",
        f"Preference pairs generated: {rows}" + (f" (of {paired} tasks)" * (rows != paired)),
        f"No-contrast tasks: {same}",
    ]
    if left := report["tasks"] - paired - same:
        reasons = ", ".join(f"{count} {name}" for name, count in found["drop_reasons"].items())
        lines.append(f"Tasks without a usable pair: {left} ({reasons})")
    print_summary(lines, tell)
    for warning in found["warnings"]:
        tell(f"Warning: {warning}")
    return found


def print_summary(lines: Sequence[str], tell: Tell) -> None:
    """Print lines between two rules."""
    typer.echo(f"\n{RULE}")
    tell("Summary:")
    for line in lines:
        tell(line)
    typer.echo(RULE)


def print_problems(report: Json, tell: Tell) -> None:
    """Print failures that were not the model's, and what so few tasks are good for."""
    check_errors(report, tell)
    if report["tasks"] < FEW_TASKS:
        typer.echo(ADVICE)
