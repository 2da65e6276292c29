"""Split a suite by task into one for training, one for testing.

A task without tests can only be trained on:

    pimono-sdpo suite split quixbugs --out sides --method rank --group-by group
"""

from pathlib import Path

import typer

from pimono_sdpo.options import argument, option, options
from pimono_sdpo.suites.split import Method, split_suite


@options
class Options:
    """Options of `suite split`."""

    suite: Path = argument("JSON file of a suite, or its folder.")
    out: Path = option("Folder for train.json and test.json.")
    train: float = option("Share of the tasks for training.", default=0.7)
    method: Method = option(
        "`threshold`: by md5 of the id, stable when tasks are added; `rank`: sorted by it, exact "
        "sizes; `shuffle`: by --seed, exact sizes.",
        default="threshold",
    )
    group_by: str | None = option(
        "Keep tasks together that share this field of their metadata, or `repo`.", default=None
    )
    seed: int = option("Seed of --method shuffle.", default=0)


def run(options: Options) -> None:
    """Split the suite and print the sizes."""
    divided, written = split_suite(
        options.suite, options.out, options.train, options.method, options.group_by, options.seed
    )
    typer.echo(
        f"{len(divided.train)} tasks for training, {len(divided.test)} for testing are in "
        f"{written[0]} and {written[1]}"
    )
    if divided.left_out:
        names = ", ".join(task["task_id"] for task in divided.left_out)
        typer.echo(f"in neither, because they have no tests and their group is for testing: {names}")
