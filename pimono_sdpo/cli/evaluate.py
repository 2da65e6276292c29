"""Baseline against tuned on held-out tasks."""

from pathlib import Path
from typing import Annotated

import typer

from pimono_sdpo.cli.options import Out


def evaluate_command(
    suite: Annotated[Path, typer.Argument(help="JSON file of the held-out suite, or its folder.")],
    baseline: Annotated[Path, typer.Option(help="Folder of the baseline's rollouts.")],
    out: Out,
    tuned: Annotated[
        Path | None, typer.Option(help="Folder of the tuned model's rollouts.", show_default="none")
    ] = None,
) -> None:
    """Compare the rollouts of two models on a held-out suite, with intervals by task."""
    from pimono_sdpo.commands.evaluate import run_evaluate

    run_evaluate(suite, baseline, tuned, out)
    typer.echo((out / "report.md").read_text().rpartition("\n\n![")[0])
    typer.echo(f"\nreport.json, report.md and report.png are in {out}")
