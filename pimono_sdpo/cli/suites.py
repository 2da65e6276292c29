"""Task suites: suite, split."""

from pathlib import Path
from typing import Annotated, cast

import typer

from pimono_sdpo.cli.shared import one_of


def suite_command(
    source: Annotated[
        str,
        typer.Argument(
            help="A checkout of QuixBugs, a file of HumanEvalFix lines, or the word `samples`."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier suite is replaced.")],
    hide_tests: Annotated[
        bool, typer.Option("--hide-tests", help="Agents do not see the files of the tests.")
    ] = False,
) -> None:
    """Make a suite of bug-fixing tasks, each with what judges it."""
    from pimono_sdpo.commands.suites import run_suite
    from pimono_sdpo.suites.build import counted

    rows = run_suite(source, out, hide_tests)
    typer.echo(f"{counted(rows)} are in {out / 'suite.json'}")


def split_command(
    suite: Annotated[Path, typer.Argument(help="A suite's JSON file; with --check the test one.")],
    out: Annotated[Path | None, typer.Option(help="Folder for train.json and test.json.")] = None,
    train: Annotated[float, typer.Option(help="Share of the tasks that is for training.")] = 0.7,
    method: Annotated[
        str,
        typer.Option(
            help="`threshold`: md5 of the id, stable when tasks are added; `rank`: sorted by it, "
            "exact sizes; `shuffle`: by --seed, exact sizes."
        ),
    ] = "threshold",
    group_by: Annotated[
        str | None,
        typer.Option(help="Field of the metadata, or `repo`, whose tasks stay together."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of --method shuffle.")] = 0,
    check: Annotated[
        Path | None,
        typer.Option(help="Rows to train on: check that none is of a task of SUITE, and stop."),
    ] = None,
) -> None:
    """Divide a suite into train.json and test.json by task, or check rows against a test suite."""
    from pimono_sdpo.commands.suites import run_check, run_split
    from pimono_sdpo.suites.split import METHODS, Method

    if check is not None:
        name, number = run_check(suite, check)
        typer.echo(f"none of {number} training rows is of a task of `{name}`")
        return
    if out is None:
        raise typer.BadParameter("give a folder for the two suites", param_hint="--out")
    chosen = cast(Method, one_of(method, METHODS, "--method"))
    divided, written = run_split(suite, out, train, chosen, group_by, seed)
    typer.echo(
        f"{len(divided.train)} tasks for training, {len(divided.test)} for testing are in "
        f"{written[0]} and {written[1]}"
    )
    if divided.left_out:
        names = ", ".join(task["task_id"] for task in divided.left_out)
        typer.echo(f"on neither side, without tests in a group for testing: {names}")
