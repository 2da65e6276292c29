"""Evaluate a model on a held-out suite: `evaluate` with the flags of its first version.

Without --model, the rollouts in --trace-dir are evaluated:

    pimono-sdpo eval --suite test.json --trace-dir runs/base --report base.json
    pimono-sdpo eval --suite test.json --trace-dir runs/tuned --report report.json \\
        --model me/tuned --baseline runs/base
"""

from pathlib import Path

from pimono_sdpo.agent.evaluation import evaluate_to_file
from pimono_sdpo.agent.rollout import RolloutOptions, rollouts_folder
from pimono_sdpo.cli.evaluate import print_table
from pimono_sdpo.cli.rollout import print_as, print_rollout
from pimono_sdpo.options import option, options
from pimono_sdpo.schema import Protocol, TestPolicy


@options
class Options:
    """Options of `eval`."""

    suite: Path = option("JSON file of the held-out suite.")
    report: Path = option(
        "NAME.json to write; NAME.md and NAME.svg are written beside it.",
        default=Path("report.json"),
    )
    trace_dir: Path | None = option(
        "Folder for the rollouts, which go to its folder `rollouts` if the report lies in it, too.",
        default=None,
        shown="NAME_rollouts",
    )
    llm_provider: str | None = option(
        "As --provider of `rollout`.", default=None, shown="chain.toml's, else hf"
    )
    model: str | None = option("Model that acts.", default=None, shown="chain.toml's")
    tool_protocol: Protocol = option(
        "Calls as one `json` object, or the API's `native` ones.", default="json"
    )
    num_workers: int = option("Rollouts at a time.", default=4, minimum=1)
    rollouts: int = option("Rollouts of each task.", default=1, minimum=1)
    temperature: float | None = option("Sampling temperature.", default=None, shown="0.7")
    seed: int = option("Seed of the first rollout of each task.", default=42)
    test_policy: TestPolicy = option("As of `rollout`.", default="on_write")
    max_iters: int = option("Maximum number of the model's turns.", default=20, minimum=1)
    limit: int | None = option("Run only the first N tasks.", default=None, minimum=1, shown="all")
    max_cost: float | None = option(
        "Stop before spending more than this many USD.", default=None, minimum=0
    )
    baseline: Path | None = option("Folder of the baseline's rollouts.", default=None)


def run(options: Options) -> None:
    """Evaluate, and print the table."""
    report = options.report
    made = rollouts_folder(
        options.trace_dir or report.with_name(f"{report.stem}_rollouts"), report
    )
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
    print_table(report.with_suffix(".md"))
    tell(f"Wrote the report to: {report}")
    tell(f"Wrote rollouts to: {made}")
