"""Build a suite of bug-fixing tasks and what tests an answer.

Sources are this project's own programs, a QuixBugs checkout, lines of HumanEvalFix, and tasks of
Harbor whose tests run without a container image:

    pimono-sdpo suite build samples --out tasks
    pimono-sdpo suite build QuixBugs --out quixbugs
    pimono-sdpo suite build humanevalpack.jsonl --out fixes
    pimono-sdpo suite build harbor-tasks --out harbor
"""

from pathlib import Path

import typer

from pimono_sdpo.options import argument, option, options
from pimono_sdpo.suites.build import build_suite, describe_size


@options
class Options:
    """Options of `suite build`."""

    source: str = argument(
        "A QuixBugs checkout, a file of HumanEvalFix lines, a folder of Harbor tasks, or the word `samples`."
    )
    out: Path = option("Folder to write; an earlier suite is replaced.")
    hide_tests: bool = option("Hide the test files from agents.", default=False)


def run(options: Options) -> None:
    """Build the suite and print its size, and what was left out."""
    rows, left_out = build_suite(options.source, options.out, options.hide_tests)
    typer.echo(f"{describe_size(rows)} are in {options.out / 'suite.json'}")
    if left_out:
        typer.echo(f"{len(left_out)} tasks are left out")
    for name, reason in left_out.items():
        typer.echo(f"left out: {name}, because {reason}")
