"""Evaluate a model on a suite: `evaluate` with older options.

Without --model, the rollouts in --trace-dir are evaluated:

    pimono-sdpo eval --suite test.json --trace-dir runs/base --report base.json
    pimono-sdpo eval --suite test.json --trace-dir runs/tuned --report report.json \\
        --model me/tuned --baseline runs/base
"""

from pathlib import Path

from pimono_sdpo.agent.evaluation import evaluate_to_file
from pimono_sdpo.agent.rollout import RolloutOptions, rollouts_folder
from pimono_sdpo.cli import evaluate
from pimono_sdpo.cli.rollout import print_as, print_rollout
from pimono_sdpo.options import option, options, same_option


@options
class Options(RolloutOptions):
    """Options of `eval`."""

    suite: Path = same_option(RolloutOptions, "suite")
    report: Path = option(
        "NAME.json to write; NAME.md and NAME.svg are written beside it.", default=Path("report.json")
    )
    trace_dir: Path | None = option(
        "Folder for the rollouts, which go to its folder `rollouts` if the report lies in it, too.",
        default=None,
        shown="NAME_rollouts",
    )
    provider: str | None = same_option(RolloutOptions, "provider", flag="--llm-provider")
    max_workers: int = same_option(RolloutOptions, "max_workers", flag="--num-workers")
    rollouts: int = same_option(RolloutOptions, "rollouts", default=1)
    baseline: Path | None = same_option(evaluate.Options, "baseline")


def run(options: Options) -> None:
    """Evaluate, and print the table."""
    report = options.report
    made = rollouts_folder(options.trace_dir or report.with_name(f"{report.stem}_rollouts"), report)
    tell = print_as("eval")
    evaluate_to_file(options, made, report, tell, print_rollout(tell), options.baseline)
    evaluate.print_table(report.with_suffix(".md"))
    tell(f"Wrote the report to: {report}")
    tell(f"Wrote rollouts to: {made}")
