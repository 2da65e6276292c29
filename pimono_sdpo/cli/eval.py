"""Evaluate a model on a held-out suite: `evaluate` with the flags of its first version.

Without --model, the rollouts in --trace-dir are evaluated:

    pimono-sdpo eval --suite test.json --trace-dir runs/base --report base.json
    pimono-sdpo eval --suite test.json --trace-dir runs/tuned --report report.json \\
        --model me/tuned --baseline runs/base
"""

from pathlib import Path

from pimono_sdpo.agent.evaluation import evaluate_to_file
from pimono_sdpo.agent.rollout import RolloutOptions
from pimono_sdpo.cli import evaluate
from pimono_sdpo.cli.rollout import print_as, print_rollout
from pimono_sdpo.options import option, options, same_option
from pimono_sdpo.schema import Protocol


@options
class Options:
    """Options of `eval`."""

    suite: Path = same_option(RolloutOptions, "suite")
    report: Path = option(
        "NAME.json to write; NAME.md and NAME.svg are written beside it.",
        default=Path("report.json"),
    )
    trace_dir: Path | None = option("Folder for the rollouts.", default=None, shown="NAME_rollouts")
    llm_provider: str | None = same_option(RolloutOptions, "provider")
    model: str | None = same_option(RolloutOptions, "model")
    tool_protocol: Protocol = same_option(RolloutOptions, "protocol")
    num_workers: int = same_option(RolloutOptions, "max_workers")
    baseline: Path | None = same_option(evaluate.Options, "baseline")


def run(options: Options) -> None:
    """Evaluate, and print the table."""
    report = options.report
    made = options.trace_dir or report.parent / f"{report.stem}_rollouts"
    rollout = RolloutOptions(
        suite=options.suite,
        model=options.model,
        provider=options.llm_provider,
        protocol=options.tool_protocol,
        max_workers=options.num_workers,
    )
    tell = print_as("eval")
    evaluate_to_file(rollout, made, report, tell, print_rollout(tell), options.baseline)
    evaluate.print_table(report.with_suffix(".md"))
    tell(f"Wrote the report to: {report}")
    tell(f"Wrote rollouts to: {made}")
