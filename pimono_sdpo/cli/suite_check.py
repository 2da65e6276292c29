"""Check that training rows contain no task of a test suite.

Rows of the split `test` are not checked:

    pimono-sdpo suite check sides/test.json steps
"""

from pathlib import Path

import typer

from pimono_sdpo.options import argument, options
from pimono_sdpo.suites.split import check_leakage, read_task_ids
from pimono_sdpo.suites.suite import load_suite


@options
class Options:
    """Options of `suite check`."""

    suite: Path = argument("JSON file of the test suite.")
    rows: Path = argument(
        "Rows that `steps` or `pairs` made: parquet, JSON lines, a saved dataset, or a folder of them."
    )


def run(options: Options) -> None:
    """Print how many rows were checked; raises Leakage."""
    suite = load_suite(options.suite, repos=False)
    number = check_leakage(read_task_ids(options.rows), suite)
    typer.echo(f"none of {number} training rows is of a task of `{suite.name}`")
