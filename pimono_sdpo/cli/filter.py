"""Traces to rows: filter, merge, push."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from pimono_sdpo.cli.options import (
    CreatePr,
    Dedupe,
    Licence,
    MaxSamples,
    Out,
    Public,
    Revision,
    Seed,
    one_of,
    part_of,
    push_target,
)
from pimono_sdpo.cli.text import summary
from pimono_sdpo.commands.filter import SEED, EngineName, merge_parts, run_filter, run_part
from pimono_sdpo.commands.push import run_push
from pimono_sdpo.errors import OutputError
from pimono_sdpo.schema import Unit


def filter_command(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder, file or glob of viewer-export parquet or session JSONL, a saved "
            "dataset, or a Hub dataset id (ns/name, read at refs/convert/parquet)."
        ),
    ],
    out: Out,
    unit: Annotated[
        str, typer.Option(help="One row per `session`, or per `episode` (a request of its own).")
    ] = "session",
    min_score: Annotated[float, typer.Option(help="Drop rows that score less.")] = 0.0,
    max_samples: MaxSamples = None,
    seed: Seed = SEED,
    licence: Licence = None,
    dedupe: Dedupe = True,
    test_fraction: Annotated[
        float, typer.Option(help="Share of repositories whose rows go to the test split.")
    ] = 0.0,
    history_chars: Annotated[
        int, typer.Option(help="Characters of earlier turns in front of each request.", min=0)
    ] = 0,
    workers: Annotated[
        int, typer.Option(help="Processes that read shards; the rows do not depend on it.", min=1)
    ] = 1,
    engine: Annotated[
        str, typer.Option(help="Read shards on this machine (`local`) or on a cluster (`ray`).")
    ] = "local",
    shard: Annotated[
        str | None,
        typer.Option(help="Write part I of N, as I/N: every Nth shard, for `merge`."),
    ] = None,
    push: Annotated[
        str | None, typer.Option(help="Dataset (ns/name) to push the folder to, private if new.")
    ] = None,
    public: Public = False,
    revision: Revision = None,
    create_pr: CreatePr = False,
) -> None:
    """Turn recorded sessions into SDPO rows, a report and a dataset card."""
    from pimono_sdpo.runs.usage import Usage, table

    target = push_target(push, public, revision, create_pr)
    usage = Usage()
    options: dict[str, Any] = {
        "unit": one_of(unit, get_args(Unit), "--unit"),
        "min_score": min_score,
        "test_fraction": test_fraction,
        "history_chars": history_chars,
        "workers": workers,
        "engine": one_of(engine, get_args(EngineName), "--engine"),
        "usage": usage,
    }
    chosen: dict[str, Any] = {
        "max_samples": max_samples,
        "seed": seed,
        "licence": licence,
        "dedupe": dedupe,
    }
    if shard is None:
        report = run_filter(source, out, **options, **chosen)
        typer.echo(table(report["sessions"], report["kept"], report["drop_reasons"], usage))
        typer.echo(summary(report, out))
        if target is not None:
            typer.echo(run_push(out, target))
        return
    if target is not None:
        raise OutputError("A part is no dataset; push what `merge` makes, with `pimono-sdpo push`.")
    if chosen != {"max_samples": None, "seed": SEED, "licence": None, "dedupe": True}:
        raise OutputError(
            "--max-samples, --seed, --license and --no-dedupe are decided on all parts together; "
            "leave them out here and give them to `merge`."
        )
    part = run_part(source, out, part_of(shard), **options)
    typer.echo(table(part["sessions"], part["rows"], part["dropped"], usage))
    typer.echo(f"part {part['part']} of {part['parts']} is in {out}; `merge` puts parts together")


def merge_command(
    parts: Annotated[
        list[Path], typer.Argument(help="Folders that `filter --shard` wrote, in any order.")
    ],
    out: Out,
    max_samples: MaxSamples = None,
    seed: Seed = SEED,
    licence: Licence = None,
    dedupe: Dedupe = True,
) -> None:
    """Put the parts of a source together: the rows, report and card of one undivided run."""
    from pimono_sdpo.runs.usage import table

    report = merge_parts(parts, out, max_samples, seed, licence, dedupe)
    typer.echo(table(report["sessions"], report["kept"], report["drop_reasons"]))
    typer.echo(summary(report, out))


def push_command(
    folder: Annotated[Path, typer.Argument(help="Folder that `filter` or `merge` wrote.")],
    name: Annotated[str, typer.Argument(help="Dataset to push it to: ns/name.")],
    public: Public = False,
    revision: Revision = None,
    create_pr: CreatePr = False,
) -> None:
    """Put finished rows on the Hub as a dataset, private if new, in one commit."""
    from pimono_sdpo.push import target_of

    typer.echo(run_push(folder, target_of(name, public, revision, create_pr)))
