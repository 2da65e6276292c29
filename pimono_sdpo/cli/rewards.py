"""The command `rescore`."""

from pathlib import Path
from typing import Annotated

import typer

from pimono_sdpo.cli.text import counts, verdicts


def rescore_command(
    source: Annotated[
        str,
        typer.Argument(
            help="Parquet, JSONL or a saved dataset with `verifier_spec` and `completion` (text or "
            "messages), or `completions`."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier output is replaced.")],
    gate: Annotated[
        list[str] | None, typer.Option(help="A verifier that must pass, such as `tool_calls`.")
    ] = None,
    grade: Annotated[
        list[str] | None, typer.Option(help="One that counts, with its weight: `syntax=0.5`.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Threads that judge; the CPUs when left out.", min=1)
    ] = None,
) -> None:
    """Score stored completions with verifiers; the verdicts are columns beside the rows."""
    from pimono_sdpo.commands.rewards import run_rescore

    report = run_rescore(source, out, gate or [], grade or [], workers)
    mean = "none" if report["mean_reward"] is None else f"{report['mean_reward']:.3f}"
    typer.echo(
        f"{report['rows']} rows, {report['judged']} judged, {report['passed']} passed, mean reward "
        f"{mean}\n{verdicts(report['verdicts'])}"
    )
    if report["rejected"]:
        typer.echo("rejected: " + counts(report["rejected"]))
    typer.echo(f"rows and report.json are in {out}")
