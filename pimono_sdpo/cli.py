"""The front door: `pimono-sdpo COMMAND`."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from pimono_sdpo import __version__
from pimono_sdpo.cli_text import counts, one_of, part_of, summary, verdicts
from pimono_sdpo.commands import (
    SEED,
    EngineName,
    evaluate_corrections,
    merge_parts,
    run_filter,
    run_part,
    run_push,
)
from pimono_sdpo.errors import OutputError, PimonoError
from pimono_sdpo.schema import Unit

# What a shell tells of a program that Ctrl-C ended.
INTERRUPTED = 130
app = typer.Typer(
    help="Recorded coding-agent sessions in, SDPO training rows out.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


Out = Annotated[Path, typer.Option(help="Folder to write; an earlier output is replaced.")]
MaxSamples = Annotated[
    int | None, typer.Option(help="Keep the best N rows.", min=1, show_default="all")
]
Seed = Annotated[int, typer.Option(help="Decides among equal scores when --max-samples cuts.")]
Licence = Annotated[
    str | None, typer.Option("--license", help="SPDX id of the traces' licence, for the card.")
]
Public = Annotated[
    bool,
    typer.Option("--public", help="Make the dataset public; one that is there stays as it is."),
]
Revision = Annotated[str | None, typer.Option(help="Branch to push to; made when missing.")]
CreatePr = Annotated[
    bool, typer.Option("--create-pr", help="Open a pull request instead of pushing to main.")
]
Dedupe = Annotated[
    bool,
    typer.Option(
        "--dedupe/--no-dedupe",
        help="Keep one row of each story: forks, snapshots, the same prompt.",
    ),
]


@app.command("filter")
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

    target = _target(push, public, revision, create_pr)
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


@app.command("merge")
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


@app.command("push")
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


def _target(name: str | None, public: bool, revision: str | None, create_pr: bool) -> Any:
    """Where to push to, if anywhere; a run should not end in what is known before it starts."""
    if name is None and not (public or revision or create_pr):
        return None
    from pimono_sdpo.push import check_account, target_of

    target = target_of(name, public, revision, create_pr)
    check_account(target)
    return target


@app.command("rescore")
def rescore_command(
    source: Annotated[
        str,
        typer.Argument(
            help="Parquet, JSONL or a saved dataset with `verifier_spec` and `completion` (text or "
            "messages), or `completions`."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier output is replaced.")],
    gate: Annotated[
        list[str] | None, typer.Option(help="A verifier that must pass, such as `tool_calls`.")
    ] = None,
    grade: Annotated[
        list[str] | None, typer.Option(help="One that counts, with its weight: `syntax=0.5`.")
    ] = None,
) -> None:
    """Score stored completions with verifiers; the verdicts are columns beside the rows."""
    from pimono_sdpo.commands import run_rescore

    report = run_rescore(source, out, gate or [], grade or [])
    mean = "none" if report["mean_reward"] is None else f"{report['mean_reward']:.3f}"
    typer.echo(
        f"{report['rows']} rows, {report['judged']} judged, {report['passed']} passed, mean reward "
        f"{mean}\n{verdicts(report['verdicts'])}"
    )
    if report["rejected"]:
        typer.echo("rejected: " + counts(report["rejected"]))
    typer.echo(f"rows and report.json are in {out}")


@app.command("evaluate-corrections")
def evaluate_corrections_command(
    labels: Annotated[Path, typer.Argument(help="CSV with file, user_ordinal, label, text.")],
    traces: Annotated[Path, typer.Argument(help="Folder the labels' files are relative to.")],
) -> None:
    """Print precision and recall of the correction model, each author left out in turn."""
    typer.echo(evaluate_corrections(labels, traces))


@app.command("samples")
def samples_command(
    out: Annotated[Path, typer.Option(help="Folder to write the samples to.")],
) -> None:
    """Write the sample sessions that come with the package, in every input layout."""
    from pimono_sdpo.samples import write_samples

    written = write_samples(_folder(out))
    typer.echo(f"{len(written)} files with hand-written sample sessions are in {out}")


@app.command("tiny-model")
def tiny_model_command(
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")],
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
) -> None:
    """Write a tiny random model of the class of google/gemma-4-12B-it, for trials on a CPU."""
    if not find_spec("torch") or not find_spec("transformers"):
        raise OutputError(
            "A model needs PyTorch and Transformers; install the extra: pip install "
            '"pimono-sdpo[train]".'
        )
    from pimono_sdpo.tiny_model import write_tiny_model

    typer.echo(f"a tiny model with random weights is in {write_tiny_model(_folder(out), seed)}")


def _folder(out: Path) -> Path:
    """Make the folder to write to; raises OutputError when that cannot be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"`{out}` cannot be written ({error.strerror}); give the name of a folder."
        ) from error
    return out


@app.callback(invoke_without_command=True)
def front(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Recorded coding-agent sessions in, SDPO training rows out."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def run(command: Callable[[], object]) -> None:
    """Run a command; a problem with the user's input is one sentence and exit code 2.

    So is Ctrl-C, with exit code 130.
    """
    try:
        command()
    except PimonoError as problem:
        sys.stderr.write(f"pimono-sdpo: {problem}\n")
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:
        # Typer makes a silent exit of Ctrl-C.
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        sys.stderr.write("pimono-sdpo: interrupted; run the same command again to go on.\n")
        sys.exit(INTERRUPTED)


def main() -> None:
    """Entry point of the console script."""
    run(app)
