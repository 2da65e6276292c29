"""Build, split and check suites of bug-fixing tasks."""

from pathlib import Path

import typer

from pimono_sdpo.errors import EmptySelection
from pimono_sdpo.options import argument, option, options
from pimono_sdpo.program import print_lines
from pimono_sdpo.suites.build import build_suite, describe_size
from pimono_sdpo.suites.split import Method, check_leakage, read_task_ids, split_suite
from pimono_sdpo.suites.suite import load_suite


@options
class BuildOptions:
    """Options of `suite build`."""

    source: str = argument("A QuixBugs checkout, or the word `samples`.")
    out: Path = option("Folder to write; an earlier suite is replaced.")
    hide_tests: bool = option("Hide the test files from agents.", default=False)


def build(options: BuildOptions) -> None:
    """Build a suite of bug-fixing tasks with tests.

    Sources are this project's own programs and a QuixBugs checkout:

        pimono-sdpo suite build samples --out tasks
        pimono-sdpo suite build QuixBugs --out quixbugs
    """
    rows, left_out = build_suite(options.source, options.out, options.hide_tests)
    print_lines(f"{describe_size(rows)} are in {options.out / 'suite.json'}")
    if left_out:
        typer.echo(f"{len(left_out)} tasks are left out")
    for name, reason in left_out.items():
        print_lines(f"left out: {name}, because {reason}")


@options
class SplitOptions:
    """Options of `suite split`."""

    suite: Path = argument("JSON file of a suite, or its folder.")
    out: Path = option("Folder for train.json and test.json.")
    train: float = option("Share of the tasks for training.", default=0.7)
    method: Method = option(
        "`threshold`: by the md5 of the id, stable when tasks are added; `rank`: in the order of the md5, "
        "with exact sizes; `shuffle`: by --seed, with exact sizes.",
        default="threshold",
    )
    group_by: str | None = option(
        "Keep tasks together if they share `repo` or this field of their metadata.", default=None
    )
    seed: int = option("Seed of --method shuffle.", default=0)


def split(options: SplitOptions) -> None:
    """Split a suite by task into one for training and one for testing.

    Tasks without tests can only be used for training:

        pimono-sdpo suite split quixbugs --out sides --method rank --group-by group
    """
    divided, written = split_suite(
        options.suite, options.out, options.train, options.method, options.group_by, options.seed
    )
    print_lines(
        f"{len(divided.train)} tasks for training, {len(divided.test)} for testing are in "
        f"{written[0]} and {written[1]}"
    )
    if divided.left_out:
        names = ", ".join(task["task_id"] for task in divided.left_out)
        typer.echo(f"in neither, because they have no tests and their group is for testing: {names}")


@options
class CheckOptions:
    """Options of `suite check`."""

    suite: Path = argument("JSON file of the test suite.")
    rows: Path = argument(
        "Rows that `steps` or `pairs` made: parquet, JSON lines, a saved dataset, or a folder of them."
    )


def check(options: CheckOptions) -> None:
    """Check that training rows contain no task of a test suite.

    Rows in the split `test` are not checked:

        pimono-sdpo suite check sides/test.json steps
    """
    suite = load_suite(options.suite, repos=False)
    number = check_leakage(read_task_ids(options.rows), suite)
    if not number:
        raise EmptySelection(
            f"`{options.rows}` holds no training rows, so nothing was checked; give the rows to train on."
        )
    typer.echo(f"none of {number} training rows is of a task of `{suite.name}`")
