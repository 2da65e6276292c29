"""Evaluate a model on a held-out suite: `evaluate` with the flags of its first version.

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
from pimono_sdpo.schema import Protocol, TestPolicy


@options
class Options:
    """Options of `eval`."""

    suite: Path = same_option(RolloutOptions, "suite")
    report: Path = option(
        "NAME.json to write; NAME.md and NAME.svg are written beside it.",
        default=Path("report.json"),
    )
    trace_dir: Path | None = option(
        "Folder for the rollouts, which go to its folder `rollouts` if the report lies in it, too.",
        default=None,
        shown="NAME_rollouts",
    )
    llm_provider: str | None = same_option(RolloutOptions, "provider")
    model: str | None = same_option(RolloutOptions, "model")
    tool_protocol: Protocol = same_option(RolloutOptions, "protocol")
    num_workers: int = same_option(RolloutOptions, "max_workers")
    rollouts: int = option("Rollouts of each task.", default=1, minimum=1)
    temperature: float | None = same_option(RolloutOptions, "temperature")
    seed: int = same_option(RolloutOptions, "seed")
    test_policy: TestPolicy = same_option(RolloutOptions, "test_policy")
    max_iters: int = same_option(RolloutOptions, "max_iters")
    limit: int | None = same_option(RolloutOptions, "limit")
    max_cost: float | None = same_option(RolloutOptions, "max_cost")
    baseline: Path | None = same_option(evaluate.Options, "baseline")


def run(options: Options) -> None:
    """Evaluate, and print the table."""
    report = options.report
    made = rollouts_folder(options.trace_dir or report.with_name(f"{report.stem}_rollouts"), report)
    rollout = RolloutOptions(
        suite=options.suite,
        model=options.model,
        provider=options.llm_provider,
        protocol=options.tool_protocol,
        rollouts=options.rollouts,
        temperature=options.temperature,
        seed=options.seed,
        max_workers=options.num_workers,
        max_iters=options.max_iters,
        test_policy=options.test_policy,
        limit=options.limit,
        max_cost=options.max_cost,
    )
    tell = print_as("eval")
    evaluate_to_file(rollout, made, report, tell, print_rollout(tell), options.baseline)
    evaluate.print_table(report.with_suffix(".md"))
    tell(f"Wrote the report to: {report}")
    tell(f"Wrote rollouts to: {made}")
