"""What the scripts of the training jobs have in common and may import from everywhere."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimono_sdpo.errors import PimonoError

if TYPE_CHECKING:
    from trl import ModelConfig

Json = dict[str, Any]


def launch(program: str, run: Callable[[list[str]], None], argv: list[str]) -> int:
    """Run a job; a problem with what was given is one sentence on stderr and exit code 2."""
    from pimono_sdpo.training.processes import quiet_libraries

    quiet_libraries()
    try:
        run(argv)
    except PimonoError as problem:
        sys.stderr.write(f"{program}: {problem}\n")
        return 2
    return 0


def parse(
    argv: list[str],
    types: tuple[type, type],
    description: str | None,
    recipes: Path,
    default_recipe: str,
) -> tuple[Any, Any, "ModelConfig", str]:
    """Merge recipe, command line and environment; return the arguments and the recipe's name."""
    from cards.lint import LICENCES
    from pimono_sdpo.training.arguments import parse_job

    return parse_job(argv, types, description, recipes, default_recipe, LICENCES)


def in_output(output: Path, mode: str, work: Callable[[], None]) -> None:
    """Do the work of a run, alone in its folder; mode `card` writes the card again instead."""
    from pimono_sdpo.training.output import leave_as_found, only_run
    from pimono_sdpo.training.processes import is_leader

    if mode == "card":
        rewrite_card(output)
        return
    alone = only_run(output) if is_leader() else nullcontext()
    with leave_as_found(output), alone:
        work()


def secrets_in(text: str) -> list[str]:
    """Name the kinds of secrets in a text."""
    from processors.secrets import find_secret_kinds

    return list(find_secret_kinds(text))


def lint_of(card: Path) -> list[str]:
    """Say what is wrong with a card."""
    from cards import lint_file

    return list(lint_file(card))


def write_card(report: Json | None, run: Json, folder: Path) -> None:
    """Write the model card with its plots."""
    from cards import write_model_card

    for problem in write_model_card(report, run, folder):
        sys.stderr.write(f"train_{run['method']}: the Hub may refuse the model card: {problem}\n")


def rewrite_card(output: Path) -> None:
    """Write the card of a finished run again; the same run gives the same bytes."""
    from pimono_sdpo.training.output import ADAPTER, read_finished

    report, run = read_finished(output)
    write_card(report, run, output / ADAPTER)
    sys.stdout.write(f"the card is {output / ADAPTER / 'README.md'}\n")


def learn(job: Any, args: Any, model_args: "ModelConfig", recipe: str, argv: list[str]) -> None:
    """Run the course of SFT or DPO: learn from answers that the rows hold."""
    from functools import partial

    from pimono_sdpo.training import run as training_run
    from pimono_sdpo.training import supervised
    from pimono_sdpo.training.supervised import get_ready

    supervised.settle_arguments(args, job.mode == "smoke")
    training_run.train_and_save(
        job,
        args,
        model_args,
        recipe=recipe,
        command=argv,
        get_ready=partial(get_ready, job, args, model_args),
        write_card=write_card,
        secrets=secrets_in,
        lint=lint_of,
    )
