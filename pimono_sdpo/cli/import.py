"""Import runs of other agents as rollouts.

The formats are parquet with OpenAI messages, ATIF, mini-swe-agent, SWE-agent and Inspect.

    pimono-sdpo import trajectories/ --out rollouts
    pimono-sdpo import nebius/SWE-rebench-openhands-trajectories --out rollouts --sessions
"""

import typer

from pimono_sdpo.agent.imported_runs import ImportOptions, import_runs
from pimono_sdpo.program import print_lines


def run(options: ImportOptions) -> None:
    """Import the runs and print a summary."""
    report = import_runs(options)
    verdicts = ", ".join(f"{count} {name}" for name, count in sorted(report["verdicts"].items()))
    messages = ", ".join(f"{count} {name}" for name, count in sorted(report["messages"].items()))
    print_lines(f"rollouts: {report['rollouts']} ({verdicts}), from {report['source']}")
    typer.echo(f"messages: {messages}")
    if report["unreadable"]:
        print_lines(f"runs that could not be read: {report['unreadable']}; see {options.out / 'rejects'}")
    print_lines(f"rollouts and report.json are in {options.out}")
