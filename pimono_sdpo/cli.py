"""The front door: `pimono-sdpo COMMAND`.

The one module of this package that imports its siblings, inside its commands.
"""

import json
import math
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pimono_sdpo import __version__
from pimono_sdpo.errors import EmptySelection, OutputError, PimonoError, SourceError
from pimono_sdpo.schema import Unit

if TYPE_CHECKING:
    from pimono_sdpo.export import Source

app = typer.Typer(
    help="Recorded coding-agent sessions in, SDPO training rows out.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def run_filter(
    source: str,
    out: Path,
    unit: Unit = "session",
    min_score: float = 0.0,
    max_samples: int | None = None,
    seed: int = 42,
    licence: str | None = None,
    dedupe: bool = True,
    test_fraction: float = 0.0,
    history_chars: int = 0,
    workers: int = 1,
) -> dict[str, Any]:
    """Filter traces into SDPO rows under `out` and return the report.

    `out` gets `data/*.parquet`, `rejects/*.parquet`, `report.json`, `report.png` and `README.md`.
    Raises SourceError, OutputError or EmptySelection; then `out` is as it was before.
    """
    from tqdm.auto import tqdm

    from cards import render_dataset_card, write_report_plot
    from cards.lint import LICENCES
    from pimono_sdpo.assemble import assemble, judge
    from pimono_sdpo.export import open_source
    from pimono_sdpo.folders import LOCK, only_run, publish_folder, remove
    from pimono_sdpo.report import build_report
    from pimono_sdpo.runner import run_shards
    from processors import pipeline
    from processors.grade import WEIGHTS

    licence = licence.lower() if licence else None
    if licence is not None and licence not in LICENCES:
        raise OutputError(
            f"The Hub knows no licence `{licence}`; give an id such as mit or apache-2.0, or "
            "leave --license out."
        )
    out = out.resolve()
    given = Path(source).resolve()
    if source and given.exists() and (out.is_relative_to(given) or given.is_relative_to(out)):
        raise OutputError(
            f"`{out}` and the source lie inside each other, where a run would read or replace the "
            "wrong files; give another folder."
        )
    if max_samples is not None and max_samples < 1:
        raise OutputError(f"At most {max_samples} rows are none; give a number from 1.")
    if not math.isfinite(min_score):
        raise OutputError(f"A minimum score of {min_score} keeps or drops all; give a number.")
    opened = open_source(source)
    if not 0.0 <= test_fraction < 1.0:
        raise OutputError(
            f"A test fraction of {test_fraction} is not in [0, 1); give such a number."
        )
    run_options = {"unit": unit, "min_score": min_score, "test_fraction": test_fraction}
    run_options |= {"history_chars": history_chars}
    chosen = {"max_samples": max_samples, "dedupe": dedupe, "seed": seed, "licence": licence}
    options = {**run_options, **chosen}
    total = sum(shard.sessions for shard in opened.shards)
    with only_run(out) as work:
        with tqdm(total=total, unit="session", desc="filter") as bar:
            stages = pipeline(unit, min_score, test_fraction, history_chars)
            records = run_shards(opened.shards, stages, work, run_options, bar.update, workers)
        with closing(judge(work, max_samples, seed, dedupe)) as database:
            finished, dropped = assemble(work, database)
        named = _named_without_secrets(opened)
        report = build_report(named, options, WEIGHTS, records, dropped, finished)
        if not report["kept"]:
            remove(work, LOCK)
            raise EmptySelection(_nothing_left(source, report))
        (finished / "report.json").write_text(
            json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        )
        write_report_plot(report, finished / "report.png")
        (finished / "README.md").write_text(render_dataset_card(report))
        publish_folder(finished, out)
        remove(work, LOCK)
    return report


def _named_without_secrets(source: "Source") -> "Source":
    """File names reach the report and the card, and may hold what texts may hold."""
    from processors.redact import redact_text

    shards = tuple(replace(s, path=redact_text(s.path, "")[0]) for s in source.shards)
    return replace(source, name=redact_text(source.name, "")[0], shards=shards)


def _nothing_left(source: str, report: dict[str, Any]) -> str:
    counts = report["drop_reasons"]
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "none is there"
    advice = (
        "lower --min-score"
        if "below_min_score" in report["drop_reasons"]
        else "give traces with tool errors, failed commands or user corrections"
    )
    return (
        f"None of the {report['sessions']} sessions of `{source}` was kept ({reasons}); {advice}."
    )


@app.command("filter")
def filter_command(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder, file or glob of viewer-export parquet or session JSONL, a saved "
            "dataset, or a Hub dataset id (ns/name, read at refs/convert/parquet)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier output is replaced.")],
    unit: Annotated[
        str, typer.Option(help="One row per `session`, or per `episode` (a request of its own).")
    ] = "session",
    min_score: Annotated[float, typer.Option(help="Drop rows that score less.")] = 0.0,
    max_samples: Annotated[
        int | None, typer.Option(help="Keep the best N rows.", min=1, show_default="all")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Decides among equal scores when --max-samples cuts.")
    ] = 42,
    license: Annotated[
        str | None, typer.Option(help="SPDX id of the traces' licence, for the dataset card.")
    ] = None,
    dedupe: Annotated[
        bool, typer.Option(help="Keep one row of each story: forks, snapshots, the same prompt.")
    ] = True,
    test_fraction: Annotated[
        float, typer.Option(help="Share of repositories whose rows go to the test split.")
    ] = 0.0,
    history_chars: Annotated[
        int, typer.Option(help="Characters of earlier turns in front of each request.", min=0)
    ] = 0,
    workers: Annotated[
        int, typer.Option(help="Processes that read shards; the rows do not depend on it.", min=1)
    ] = 1,
) -> None:
    """Turn recorded sessions into SDPO rows, a report and a dataset card."""
    if unit not in ("session", "episode"):
        raise typer.BadParameter(f"`{unit}` is neither session nor episode", param_hint="--unit")
    chosen: Unit = "episode" if unit == "episode" else "session"
    report = run_filter(
        source,
        out,
        unit=chosen,
        min_score=min_score,
        max_samples=max_samples,
        seed=seed,
        licence=license,
        dedupe=dedupe,
        test_fraction=test_fraction,
        history_chars=history_chars,
        workers=workers,
    )
    typer.echo(_summary(report, out))


def _summary(report: dict[str, Any], out: Path) -> str:
    score = report["score"]
    lines = [
        f"{report['sessions']} sessions read, {report['kept']} rows kept, "
        f"{report['rejected']} rejected",
        f"score {score['min']:g} to {score['max']:g}, mean {score['mean']:.2f}",
        "categories: " + _counts(report["category_counts"]),
    ]
    if report["drop_reasons"]:
        lines.append("dropped: " + _counts(report["drop_reasons"]))
    broken = {name: n for name, n in report["lines"].items() if n and name != "parsed"}
    if broken:
        lines.append("broken lines: " + _counts(broken))
    if report["options"]["test_fraction"]:
        lines.append("split: " + _counts({"train": 0, "test": 0} | report["splits"]))
    if report["secrets_redacted"]:
        lines.append("redacted: " + _counts(report["secrets_redacted"]))
    lines.append(f"rows, rejects, report.json and README.md are in {out}")
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


@app.command("evaluate-corrections")
def evaluate_corrections_command(
    labels: Annotated[Path, typer.Argument(help="CSV with file, user_ordinal, label, text.")],
    traces: Annotated[Path, typer.Argument(help="Folder the labels' files are relative to.")],
) -> None:
    """Print precision and recall of the correction model, each author left out in turn."""
    from processors.corrections.eval import evaluate_corrections, render

    for path in (labels, traces):
        if not path.exists():
            raise SourceError(f"`{path}` does not exist; give the labels and their traces.")
    typer.echo(render(evaluate_corrections(labels, traces)))


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
    """Run a command; a problem with the user's input is one sentence and exit code 2."""
    try:
        command()
    except PimonoError as problem:
        sys.stderr.write(f"pimono-sdpo: {problem}\n")
        sys.exit(2)


def main() -> None:
    """Entry point of the console script."""
    run(app)
