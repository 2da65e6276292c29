"""Suites to rollouts, and on to pairs: rollout, prefs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from pimono_sdpo.cli.shared import one_of
from pimono_sdpo.errors import InferenceError
from pimono_sdpo.schema import Protocol, TestPolicy

if TYPE_CHECKING:
    from pimono_sdpo.agent.driver import Rules
    from pimono_sdpo.commands.rollouts import Plan

Json = dict[str, Any]
Model = Annotated[str | None, typer.Option(help="Model that acts.", show_default="chain.toml's")]
PROVIDERS = "hf, together, openai, chutes, or the URL of an OpenAI-compatible server."
Provider = Annotated[str | None, typer.Option(help=PROVIDERS, show_default="chain.toml's, else hf")]
Count = Annotated[int, typer.Option(help="Rollouts of each task.", min=1)]
Temperature = Annotated[
    float | None, typer.Option(help="Sampling temperature.", show_default="0.7")
]
FirstSeed = Annotated[int, typer.Option(help="Seed of the first rollout of each task.")]
Workers = Annotated[int, typer.Option(help="Rollouts at a time.", min=1)]
Iterations = Annotated[int, typer.Option(help="Most turns of the model.", min=1)]
ToolProtocol = Annotated[
    str, typer.Option(help="Calls as one `json` object, or the API's `native` ones.")
]
Policy = Annotated[
    str, typer.Option(help="Tests are run `on_write` and shown, `on_final`, or `never`.")
]
Limit = Annotated[
    int | None, typer.Option(help="Take the first N tasks.", min=1, show_default="all")
]
MaxCost = Annotated[
    float | None, typer.Option(help="Stop before more than so many USD are spent.", min=0.0)
]
Config = Annotated[Path | None, typer.Option(help="Settings.", show_default="chain.toml")]
RULE = "=" * 60
# Measured by others: with 6 pairs a 72B model got worse; hundreds are where it begins to help.
ADVICE = (
    "Few tasks: up to 6 pairs are a pilot and tend to make a model worse; check with 20 to 50 "
    "tasks, train on 200 to 500 pairs (300 to 1000 SFT steps) first, a 7B model before a 72B one. "
    "More tasks help more than more rollouts of each."
)
FEW_TASKS = 50


def rollout_command(
    suite: Annotated[Path, typer.Argument(help="JSON file of a task suite, or its folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier output is replaced.")],
    model: Model = None,
    provider: Provider = None,
    rollouts: Count = 4,
    temperature: Temperature = None,
    seed: FirstSeed = 42,
    max_workers: Workers = 4,
    max_iters: Iterations = 20,
    tool_protocol: ToolProtocol = "json",
    test_policy: Policy = "on_write",
    max_tool_chars: Annotated[
        int, typer.Option(help="Longer tool results are cut.", min=200)
    ] = 8000,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Take calls out of fences and prose, and note it.")
    ] = False,
    limit: Limit = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Run 8 rollouts, say what all will cost, and stop.")
    ] = False,
    max_cost: MaxCost = None,
    config: Config = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="File of all answers and verdicts.", show_default="OUT.calls.sqlite"),
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Ask nobody: every answer is in the journal.")
    ] = False,
    pairs: Annotated[
        Path | None, typer.Option(help="Folder for preference pairs of the rollouts.")
    ] = None,
) -> None:
    """Let an agent work on every task of a suite, several times each, and keep what it did."""
    from pimono_sdpo.commands.rollouts import Plan, estimate_rollouts

    rules = rules_of(tool_protocol, test_policy, max_iters, max_tool_chars, lenient)
    plan = Plan(
        suite, out, rules, model, provider, temperature, seed, rollouts, max_workers, limit,
        max_cost, config, journal, replay,
    )  # fmt: skip
    tell = teller("rollout")
    if estimate:
        typer.echo(estimate_rollouts(plan, tell))
        typer.echo(ADVICE)
        return
    report = _roll(plan, tell)
    if pairs is not None:
        number = _pair(out, pairs, report, tell)["rows"]
        tell(f"Wrote {number} preference pairs to: {pairs}")
        tell(f"Wrote {report['rollouts']} rollouts to: {out}")
        _after(report, tell)
        return
    told = ", ".join(f"{count} {status}" for status, count in report["verdicts"].items())
    _summary([f"Total tasks: {report['tasks']}", f"Rollouts: {report['rollouts']} ({told})"], tell)
    tell(f"Wrote {report['rollouts']} rollouts to: {out}")
    tell(f"Wrote traces to: {out / 'traces'}")
    _after(report, tell)


def prefs_command(
    suite: Annotated[Path, typer.Option(help="JSON file of a task suite.")],
    out: Annotated[Path, typer.Option(help="JSON lines to write; beside them NAME_meta.jsonl.")],
    trace_dir: Annotated[
        Path | None, typer.Option(help="Folder for the rollouts.", show_default="OUT_rollouts")
    ] = None,
    llm_provider: Provider = None,
    model: Model = None,
    rollouts: Count = 4,
    temperature: Temperature = None,
    seed: FirstSeed = 42,
    max_workers: Workers = 4,
    max_iters: Iterations = 20,
    tool_protocol: ToolProtocol = "json",
    test_policy: Policy = "on_write",
    limit: Limit = None,
    max_cost: MaxCost = None,
    target: Annotated[
        str, typer.Option(help="As of `pairs`: `summary` is what these pairs were first.")
    ] = "step",
    allow_efficiency_pairs: Annotated[
        bool,
        typer.Option("--allow-efficiency-pairs", help="Pair two runs that pass, by their steps."),
    ] = False,
) -> None:
    """Write preference pairs as JSON lines: rollouts and pairs under the flags they had first."""
    from pimono_sdpo.cli.pairs import check_dpo_lines, write_dpo_lines
    from pimono_sdpo.commands.rollouts import Plan
    from pimono_sdpo.errors import OutputError
    from processors.rollouts.pairs import TARGETS

    if out.suffix != ".jsonl" or out.is_dir():
        raise OutputError(f"`{out}` is no name of a file of JSON lines; give NAME.jsonl.")
    made = trace_dir or out.with_name(f"{out.stem}_rollouts")
    plan = Plan(
        suite, made, rules_of(tool_protocol, test_policy, max_iters), model, llm_provider,
        temperature, seed, rollouts, max_workers, limit, max_cost,
    )  # fmt: skip
    one_of(target, TARGETS, "--target")
    check_dpo_lines(suite, target, tool_protocol)
    tell = teller("prefs")
    report = _roll(plan, tell)
    folder = out.with_name(f"{out.stem}_pairs")
    found = _pair(made, folder, report, tell, target, allow_efficiency_pairs)
    counts = write_dpo_lines(folder, out, found)
    tell(f"Wrote {counts['written']} preference pairs to: {out}")
    tell(f"Wrote metadata to: {out.with_name(f'{out.stem}_meta.jsonl')}")
    _after(report, tell)


def rules_of(
    protocol: str, policy: str, iterations: int, chars: int = 8000, lenient: bool = False
) -> "Rules":
    """Check the options that say how every run is driven."""
    from pimono_sdpo.agent.driver import Rules

    return Rules(
        cast(Protocol, one_of(protocol, get_args(Protocol), "--tool-protocol")),
        cast(TestPolicy, one_of(policy, get_args(TestPolicy), "--test-policy")),
        iterations,
        chars,
        lenient,
    )


def teller(name: str) -> Callable[[str], None]:
    """Begin every line with the name of the command."""
    return lambda line: typer.echo(f"[{name}] {line}")


def _roll(plan: "Plan", tell: Callable[[str], None]) -> Json:
    from pimono_sdpo.commands.rollouts import run_rollouts

    return run_rollouts(plan, tell, line_of(tell))


def line_of(tell: Callable[[str], None]) -> Callable[[Json, str], None]:
    """Make every rollout that ends a line."""
    from pimono_sdpo.agent.driver import status_of

    def done(row: Json, place: str) -> None:
        what = f"{row['task_id']} seed={row['seed']}: {status_of(row)}"
        tell(f"[{place}] {what} (steps={row['n_steps']})")

    return done


def _pair(
    made: Path, pairs: Path, report: Json, tell: Callable[[str], None], target: str = "step",
    efficiency: bool = False,
) -> Json:  # fmt: skip
    """Pair the rollouts, sum up, and return the report of the pairs."""
    from pimono_sdpo.cli.pairs import Options, write_pairs

    options = Options(
        source=str(made), out=pairs, target=cast(Any, target), allow_efficiency_pairs=efficiency
    )
    found = write_pairs(options)
    lines = [
        f"Total tasks: {report['tasks']}",
        f"Preference pairs generated: {found['rows']}",
        f"No-contrast tasks: {found['counts'].get('no_contrast_tasks', 0)}",
    ]
    _summary(lines, tell)
    return found


def _summary(lines: Sequence[str], tell: Callable[[str], None]) -> None:
    typer.echo(f"\n{RULE}")
    tell("Summary:")
    for line in lines:
        tell(line)
    typer.echo(RULE)


def _after(report: Json, tell: Callable[[str], None]) -> None:
    """What went wrong that was not the model's, and what so few tasks are good for."""
    for reason, count in report["errors"].items():
        tell(f"{count} failed, and are tried again by the same command: {reason}")
    if report["verdicts"].get("ERROR") == report["rollouts"]:
        raise InferenceError("No rollout came to its end; see to what failed and run this again.")
    if report["tasks"] < FEW_TASKS:
        typer.echo(ADVICE)
