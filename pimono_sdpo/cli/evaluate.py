"""Compare two models on a held-out suite, with confidence intervals.

The tuned model is --tuned or --model, the baseline --baseline or --baseline-model:

    pimono-sdpo evaluate test.json --baseline-model Qwen/Qwen3-8B --model me/tuned --out report
    pimono-sdpo evaluate test.json --baseline before --model me/tuned --out report
    pimono-sdpo evaluate test.json --baseline before --tuned after --out report
"""

from pathlib import Path

import typer

from cards.render import render_comparison
from pimono_sdpo.agent.evaluation import evaluate_models
from pimono_sdpo.agent.rollout import RolloutOptions
from pimono_sdpo.cli.rollout import print_as, print_rollout
from pimono_sdpo.errors import SourceError
from pimono_sdpo.options import argument, option, options
from pimono_sdpo.program import print_lines


@options
class EvaluateOptions(RolloutOptions):
    """Options of `evaluate`."""

    suite: Path = argument(
        "JSON file of a task suite, or its folder; or a folder of imported rollouts, to compare their tasks."
    )
    out: Path = option("Folder to write; an earlier output is replaced.")
    baseline: Path | None = option("Folder of the baseline's rollouts.", default=None)
    tuned: Path | None = option("Folder of the tuned model's rollouts.", default=None)
    model: str | None = option("Run this model on the suite: the tuned one.", default=None)
    baseline_model: str | None = option("Also run this model, as the baseline.", default=None)
    journal: Path | None = option(
        "File of all answers and test results.", default=None, shown="OUT_rollouts/calls.sqlite"
    )


def run(options: EvaluateOptions) -> None:
    """Compare, and print the table."""
    model, baseline, out = options.model, options.baseline, options.out
    if (model and options.tuned) or (options.baseline_model and (baseline or not model)):
        raise SourceError(
            "Give the tuned model with --tuned or --model, and the baseline with --baseline or, with "
            "--model, with --baseline-model; give one of each."
        )
    if not model and not baseline:
        raise SourceError("There is nothing to evaluate; give --model, or --baseline with a folder of rollouts.")
    log = print_as("evaluate")
    report = evaluate_models(options, out, log, print_rollout(log), baseline, options.tuned, options.baseline_model)
    typer.echo(render_comparison(report))
    print_lines(f"report.json, report.md and report.svg are in {out}")
