"""Suites to rollouts: rollout, and its alias prefs."""

from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from pimono_sdpo.cli.options import one_of
from pimono_sdpo.rollout_schema import Protocol, TestPolicy

RULE = "=" * 60
# Measured by others: with 6 pairs a 72B model got worse; hundreds are where it begins to help.
ADVICE = (
    "Few tasks: up to 6 pairs are a pilot and tend to make a model worse; check with 20 to 50 "
    "tasks, train on 200 to 500 pairs (300 to 1000 SFT steps) first, a 7B model before a 72B one. "
    "More tasks help more than more rollouts of each."
)
FEW_TASKS = 50


def rollout_command(
    context: typer.Context,
    suite: Annotated[Path, typer.Argument(help="JSON file of a task suite, or its folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier output is replaced.")],
    model: Annotated[
        str | None, typer.Option(help="Model that acts.", show_default="chain.toml's")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="hf, together, openai, chutes, or the URL of an OpenAI-compatible server.",
            show_default="chain.toml's, else hf",
        ),
    ] = None,
    rollouts: Annotated[int, typer.Option(help="Rollouts of each task.", min=1)] = 4,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature.", show_default="0.7")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first rollout of each task.")] = 42,
    max_workers: Annotated[int, typer.Option(help="Rollouts at a time.", min=1)] = 4,
    max_iters: Annotated[int, typer.Option(help="Most turns of the model.", min=1)] = 20,
    tool_protocol: Annotated[
        str, typer.Option(help="Calls as one `json` object, or the API's `native` ones.")
    ] = "json",
    test_policy: Annotated[
        str, typer.Option(help="Tests are run `on_write` and shown, `on_final`, or `never`.")
    ] = "on_write",
    max_tool_chars: Annotated[
        int, typer.Option(help="Longer tool results are cut.", min=200)
    ] = 8000,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Take calls out of fences and prose, and note it.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(help="Take the first N tasks.", min=1, show_default="all")
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Run 8 rollouts, say what all will cost, and stop.")
    ] = False,
    max_cost: Annotated[
        float | None,
        typer.Option(help="Stop before more than so many USD are spent.", min=0.0),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings.", show_default="chain.toml")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="File of all answers and verdicts.", show_default="OUT.calls.sqlite"),
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Ask nobody: every answer is in the journal.")
    ] = False,
) -> None:
    """Let an agent work on every task of a suite, several times each, and keep what it did."""
    from pimono_sdpo.agent.run import Rules, status_of
    from pimono_sdpo.commands.rollouts import Plan, estimate_rollouts, run_rollouts

    prefix = f"[{context.info_name}] "
    rules = Rules(
        cast(Protocol, one_of(tool_protocol, get_args(Protocol), "--tool-protocol")),
        cast(TestPolicy, one_of(test_policy, get_args(TestPolicy), "--test-policy")),
        max_iters,
        max_tool_chars,
        lenient,
    )
    plan = Plan(
        suite, out, rules, model, provider, temperature, seed, rollouts, max_workers, limit,
        max_cost, config, journal, replay,
    )  # fmt: skip

    def tell(line: str) -> None:
        typer.echo(prefix + line)

    def done(row: dict[str, Any], place: str) -> None:
        status = status_of(row)
        tell(f"[{place}] {row['task_id']} seed={row['seed']}: {status} (steps={row['n_steps']})")

    if estimate:
        typer.echo(estimate_rollouts(plan, tell))
        typer.echo(ADVICE)
        return
    report = run_rollouts(plan, tell, done)
    verdicts = report["verdicts"]
    typer.echo(f"\n{RULE}")
    tell("Summary:")
    tell(f"Total tasks: {report['tasks']}")
    told = ", ".join(f"{count} {status}" for status, count in verdicts.items())
    tell(f"Rollouts: {report['rollouts']} ({told})")
    for reason, count in report["errors"].items():
        tell(f"{count} failed: {reason}")
    typer.echo(RULE)
    tell(f"Wrote {report['rollouts']} rollouts to: {out}")
    tell(f"Wrote traces to: {out / 'traces'}")
    if report["tasks"] < FEW_TASKS:
        typer.echo(ADVICE)
