"""The front door: `pimono-sdpo COMMAND`."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from pimono_sdpo import __version__
from pimono_sdpo.cli import (
    duel,
    evaluate,
    filter,
    looks,
    pairs,
    rewards,
    rollouts,
    samples,
    steps,
    suites,
)
from pimono_sdpo.errors import PimonoError

# What a shell tells of a program that Ctrl-C ended.
INTERRUPTED = 130
app = typer.Typer(
    help="Recorded coding-agent sessions and rollouts in, training rows out.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("filter")(filter.filter_command)
app.command("merge")(filter.merge_command)
app.command("push")(filter.push_command)
app.command("view")(looks.view_command)
app.command("card")(looks.card_command)
app.command("rescore")(rewards.rescore_command)
app.command("evaluate-corrections")(rewards.evaluate_corrections_command)
app.command("suite")(suites.suite_command)
app.command("split")(suites.split_command)
app.command("rollout")(rollouts.rollout_command)
app.command("prefs")(rollouts.prefs_command)
app.command("steps")(steps.steps_command)
app.command("pairs")(pairs.pairs_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("eval")(evaluate.eval_command)
app.command("sft-extract")(steps.sft_extract_command)
app.command("duel")(duel.duel_command)
app.command("duel-rows")(duel.duel_rows_command)
app.command("samples")(samples.samples_command)
app.command("tiny-model")(samples.tiny_model_command)


@app.callback(invoke_without_command=True)
def front(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Recorded coding-agent sessions and rollouts in, training rows out."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def run(command: Callable[[], object]) -> None:
    """Run a command; a problem with the user's input is one sentence and exit code 2.

    So is Ctrl-C, with exit code 130.
    """
    try:
        command()
    except PimonoError as problem:
        sys.stderr.write(f"pimono-sdpo: {problem}\n")
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:
        # Typer makes a silent exit of Ctrl-C.
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        sys.stderr.write("pimono-sdpo: interrupted; run the same command again to go on.\n")
        sys.exit(INTERRUPTED)


def main() -> None:
    """Entry point of the console script."""
    run(app)
