"""Baseline against tuned on held-out tasks: evaluate, and eval, its older name."""

from pathlib import Path
from typing import Annotated

import typer

from pimono_sdpo.cli.rollouts import (
    Config,
    Count,
    FirstSeed,
    Iterations,
    Limit,
    MaxCost,
    Model,
    Policy,
    Provider,
    Temperature,
    ToolProtocol,
    Workers,
    line_of,
    rules_of,
    teller,
)
from pimono_sdpo.cli.shared import Out
from pimono_sdpo.errors import SourceError

Stored = Annotated[
    Path | None, typer.Option(help="Folder of the baseline's rollouts.", show_default="none")
]


def evaluate_command(
    suite: Annotated[Path, typer.Argument(help="JSON file of the held-out suite, or its folder.")],
    out: Out,
    baseline: Stored = None,
    tuned: Annotated[
        Path | None, typer.Option(help="Folder of the tuned model's rollouts.", show_default="none")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Run this model on the suite: the tuned one.", show_default="none"),
    ] = None,
    baseline_model: Annotated[
        str | None,
        typer.Option(help="Run this model, too, as the baseline.", show_default="none"),
    ] = None,
    provider: Provider = None,
    rollouts: Count = 4,
    temperature: Temperature = None,
    seed: FirstSeed = 42,
    max_workers: Workers = 4,
    max_iters: Iterations = 20,
    tool_protocol: ToolProtocol = "json",
    test_policy: Policy = "on_write",
    limit: Limit = None,
    max_cost: MaxCost = None,
    config: Config = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="File of all answers and verdicts.", show_default="OUT_rollouts/calls.sqlite"
        ),
    ] = None,
) -> None:
    """Compare two models on a held-out suite, with intervals by task: rollouts stored or new."""
    from pimono_sdpo.commands.evaluate import evaluate_models, run_evaluate
    from pimono_sdpo.commands.rollouts import Plan

    rules = rules_of(tool_protocol, test_policy, max_iters)
    if (model and tuned) or (baseline_model and (baseline or not model)):
        raise SourceError(
            "The tuned model is given by --tuned or by --model, the baseline by --baseline or, "
            "beside --model, by --baseline-model; give one of each."
        )
    if model is None and baseline is None:
        raise SourceError(
            "Nothing is given to measure; give --model, or --baseline with a folder of rollouts."
        )
    if model is None and baseline is not None:
        run_evaluate(suite, baseline, tuned, out)
    else:
        made = out.resolve().parent / f"{out.resolve().name}_rollouts"
        plan = Plan(
            suite, made, rules, model, provider, temperature, seed, rollouts, max_workers, limit,
            max_cost, config, journal,
        )  # fmt: skip
        tell = teller("evaluate")
        evaluate_models(plan, out, tell, line_of(tell), baseline, baseline_model)
    _table(out / "report.md")
    typer.echo(f"\nreport.json, report.md and report.png are in {out}")


def eval_command(
    suite: Annotated[Path, typer.Option(help="JSON file of the held-out suite.")],
    report: Annotated[
        Path, typer.Option(help="NAME.json to write; beside it NAME.md and NAME.png.")
    ] = Path("report.json"),
    trace_dir: Annotated[
        Path | None, typer.Option(help="Folder for the rollouts.", show_default="NAME_rollouts")
    ] = None,
    llm_provider: Provider = None,
    model: Model = None,
    tool_protocol: ToolProtocol = "json",
    num_workers: Workers = 4,
    baseline: Stored = None,
) -> None:
    """Measure a model on a held-out suite: evaluate under the flags it had first."""
    from pimono_sdpo.commands.evaluate import evaluate_to_file
    from pimono_sdpo.commands.rollouts import Plan

    made = trace_dir or report.parent / f"{report.stem}_rollouts"
    rules = rules_of(tool_protocol, "on_write", 20)
    plan = Plan(suite, made, rules, model, llm_provider, workers=num_workers)
    tell = teller("eval")
    evaluate_to_file(plan, report, tell, line_of(tell), baseline)
    _table(report.with_suffix(".md"))
    tell(f"Wrote the report to: {report}")
    tell(f"Wrote rollouts to: {made}")


def _table(report: Path) -> None:
    typer.echo(report.read_text().rpartition("\n\n![")[0])
