"""Score stored completions with verifiers.

pimono-sdpo rescore completions.jsonl --out scored --gate tool_calls --grade syntax=0.5
"""

import os
from pathlib import Path
from typing import Any

import typer

from pimono_sdpo.options import argument, option, options
from pimono_sdpo.runs.folders import require_disjoint
from rewards.rescore import build_rubric, rescore_dataset

Json = dict[str, Any]


@options
class Options:
    """Options of `rescore`."""

    source: str = argument(
        "Parquet, JSONL or a saved dataset with `verifier_spec` and `completion` (text or messages), or `completions`."
    )
    out: Path = option("Folder to write; an earlier output is replaced.")
    gate: list[str] = option(
        "Verifier that must pass, such as `tool_calls`, or your own as module:name; may be repeated.",
        default_factory=list,
    )
    grade: list[str] = option(
        "Verifier that contributes to the reward, with its weight, such as `syntax=0.5`; may be repeated.",
        default_factory=list,
    )
    workers: int | None = option("Number of scoring threads.", default=None, minimum=1, shown="the number of CPUs")


def run(options: Options) -> None:
    """Score the completions and print the verdicts."""
    report = score_completions(options)
    mean = "none" if report["mean_reward"] is None else f"{report['mean_reward']:.3f}"
    typer.echo(
        f"{report['rows']} rows, {report['judged']} judged, {report['passed']} passed, mean reward "
        f"{mean}\n{_verdict_table(report['verdicts'])}"
    )
    for reason, count in report["rejected"].items():
        first = report["first_rejected"].get(reason)
        typer.echo(f"rejected: {count}, {reason}" + ("" if first is None else f" (first in row {first})"))
    typer.echo(f"rows and report.json are in {options.out}")


def score_completions(options: Options) -> Json:
    """Score the completions under `out` and return the report."""
    rubric = build_rubric(options.gate, options.grade)
    if Path(options.source).exists():
        require_disjoint(Path(options.source).resolve(), options.out.resolve())
    workers = options.workers or os.cpu_count() or 1
    return rescore_dataset(options.source, options.out, rubric, workers)


def _verdict_table(verdicts: dict[str, dict[str, int]]) -> str:
    statuses = next(iter(verdicts.values()))
    rows = [["verifier", *statuses]]
    rows += [[name, *map(str, counts.values())] for name, counts in verdicts.items()]
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"{name:<{width}}" + "".join(f"{n:>9}" for n in row) for name, *row in rows)
