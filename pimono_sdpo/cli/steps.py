"""Runs to training rows: steps, and sft-extract, its older name."""

from pathlib import Path
from typing import Annotated

import typer

from pimono_sdpo.cli.shared import CreatePr, Licence, Out, Public, Revision, one_of, push_target

Valid = Annotated[
    bool,
    typer.Option(
        "--require-valid-tool-ok/--no-require-valid-tool-ok",
        help="Keep only calls that fit their tool and worked.",
    ),
]
Success = Annotated[
    bool,
    typer.Option(
        "--require-success/--no-require-success", help="Keep only rollouts whose tests pass."
    ),
]
Tokenizer = Annotated[
    str | None, typer.Option(help="Model (folder or Hub id) whose tokenizer counts; see README.")
]
MaxLength = Annotated[
    int | None, typer.Option(help="Drop rows with more tokens, as too_long.", min=1)
]
Format = Annotated[
    str, typer.Option("--format", help="`trl`, or `together` for its JSON lines, too.")
]
Protocol = Annotated[
    str,
    typer.Option(
        "--tool-protocol", help="Calls `as_recorded`, or rewritten in the `json` protocol."
    ),
]
Push = Annotated[
    str | None, typer.Option(help="Dataset (ns/name) to push to, private if new; see README.")
]
TestFraction = Annotated[
    float, typer.Option(help="Share of repositories of sessions that are for testing.")
]
TestSuite = Annotated[
    Path | None,
    typer.Option(help="Held-out suite: refuse rows to train on of its tasks.", show_default="none"),
]
PROTOCOLS = ("as_recorded", "json")


def steps_command(
    source: Annotated[
        str,
        typer.Argument(help="Folder of rollouts, or recorded sessions in any form `filter` takes."),
    ],
    out: Out,
    require_success: Success = True,
    require_valid_tool_ok: Valid = True,
    good_recovery: Annotated[
        bool,
        typer.Option("--good-recovery", help="Keep only actions that put a failed one right."),
    ] = False,
    with_final: Annotated[
        bool, typer.Option("--with-final", help="Add a row for the answer that ends a run.")
    ] = False,
    context_turns: Annotated[
        int | None,
        typer.Option(
            help="Show only the request and the last K results.",
            min=0,
            show_default="all of a rollout, 8 of a session",
        ),
    ] = None,
    tool_chars: Annotated[
        int | None, typer.Option(help="Shorten each result to so many characters.", min=40)
    ] = None,
    granularity: Annotated[
        str, typer.Option(help="A row per `step`, or one per `trajectory`.")
    ] = "step",
    tool_protocol: Protocol = "as_recorded",
    tokenizer: Tokenizer = None,
    max_length: MaxLength = None,
    test_fraction: TestFraction = 0.0,
    test_suite: TestSuite = None,
    format: Format = "trl",
    licence: Licence = None,
    push: Push = None,
    public: Public = False,
    revision: Revision = None,
    create_pr: CreatePr = False,
) -> None:
    """Cut rollouts or recorded sessions into next-action rows for supervised fine-tuning."""
    from pimono_sdpo.commands.made import FORMATS, told
    from pimono_sdpo.commands.push import run_push
    from pimono_sdpo.commands.steps import GRANULARITIES, run_steps

    target = push_target(push, public, revision, create_pr)
    report = run_steps(
        source,
        out,
        require_success=require_success,
        require_valid_tool_ok=require_valid_tool_ok,
        good_recovery=good_recovery,
        with_final=with_final,
        context_turns=context_turns,
        tool_chars=tool_chars,
        granularity=one_of(granularity, GRANULARITIES, "--granularity"),
        protocol=one_of(tool_protocol, PROTOCOLS, "--tool-protocol"),
        tokenizer=tokenizer,
        max_length=max_length,
        test_fraction=test_fraction,
        format=one_of(format, FORMATS, "--format"),
        licence=licence,
        test_suite=test_suite,
    )
    typer.echo(told(report, out))
    if target is not None:
        typer.echo(run_push(out, target))


def sft_extract_command(
    trace_dir: Annotated[str, typer.Option(help="Folder of rollouts, or its folder `traces`.")],
    output: Annotated[Path, typer.Option(help="JSON lines to write; beside them NAME_meta.jsonl.")],
    require_success: Success = True,
    require_valid_tool_ok: Valid = True,
    format: Annotated[
        str, typer.Option("--format", help="The protocol of the calls: `json`.")
    ] = "json",
) -> None:
    """Write next-action rows as JSON lines: `steps` under the name and flags it had first."""
    from pimono_sdpo.commands.steps import extract_lines

    one_of(format, ("json",), "--format")
    counts = extract_lines(trace_dir, output, require_success, require_valid_tool_ok)
    left = {name: count for name, count in counts.items() if name != "written"}
    typer.echo(f"Wrote {counts['written']} rows to: {output}")
    typer.echo(f"Wrote metadata to: {output.with_name(f'{output.stem}_meta.jsonl')}")
    if left:
        typer.echo("left out: " + ", ".join(f"{name} {count}" for name, count in left.items()))
