"""Runs to preference pairs."""

from typing import Annotated

import typer

from pimono_sdpo.cli.shared import CreatePr, Licence, Out, Public, Revision, one_of, push_target
from pimono_sdpo.cli.steps import Format, MaxLength, Push, TestFraction, TestSuite, Tokenizer


def pairs_command(
    source: Annotated[
        str,
        typer.Argument(help="Folder of rollouts, or recorded sessions in any form `filter` takes."),
    ],
    out: Out,
    target: Annotated[
        str,
        typer.Option(
            help="Of rollouts: step, patch, last_write, truncated, summary or full; see README."
        ),
    ] = "step",
    last_k: Annotated[
        int, typer.Option("--last-k", help="Actions that `truncated` keeps.", min=1)
    ] = 4,
    min_gap: Annotated[
        float, typer.Option(help="Of `step`: how much more often the better action passes.")
    ] = 0.5,
    allow_efficiency_pairs: Annotated[
        bool,
        typer.Option("--allow-efficiency-pairs", help="Pair two runs that pass, by their steps."),
    ] = False,
    flaky_reruns: Annotated[
        int, typer.Option(help="Test the winner's patch so often again.", min=0)
    ] = 2,
    with_outcome: Annotated[
        bool, typer.Option("--with-outcome", help="Put what tests said into the targets.")
    ] = False,
    tokenizer: Tokenizer = None,
    max_length: MaxLength = None,
    test_fraction: TestFraction = 0.0,
    test_suite: TestSuite = None,
    format: Format = "trl",
    licence: Licence = None,
    push: Push = None,
    public: Public = False,
    revision: Revision = None,
    create_pr: CreatePr = False,
) -> None:
    """Pair better with worse runs of each task, or edits of sessions with what put them right."""
    from pimono_sdpo.commands.made import FORMATS, told
    from pimono_sdpo.commands.pairs import pairs_of
    from pimono_sdpo.commands.push import run_push

    to = push_target(push, public, revision, create_pr)
    given = {
        "target": target,
        "last_k": last_k,
        "min_gap": min_gap,
        "allow_efficiency_pairs": allow_efficiency_pairs,
        "flaky_reruns": flaky_reruns,
        "with_outcome": with_outcome,
        "tokenizer": tokenizer,
        "max_length": max_length,
        "format": one_of(format, FORMATS, "--format"),
        "licence": licence,
        "test_suite": test_suite,
    }
    typer.echo(told(pairs_of(source, out, given, test_fraction), out))
    if to is not None:
        typer.echo(run_push(out, to))
