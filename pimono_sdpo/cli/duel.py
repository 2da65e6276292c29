"""Let a panel of models judge whether a challenger beats the king on turns of recorded sessions.

The king answers blind, the challenger sees the pull request that solved the task. A run that was
stopped resumes with the same command; no finished call is repeated. Settings are in chain.toml.

    pimono-sdpo duel AlienKevin/SWE-ZERO-12M-trajectories --records nebius/SWE-rebench-V2-PRs \\
        --estimate
    pimono-sdpo duel AlienKevin/SWE-ZERO-12M-trajectories --records nebius/SWE-rebench-V2-PRs \\
        --max-cost 150
    pimono-sdpo duel --stage score --rules original

A finished duel gives rows to train on, of the turns that the challenger won:

    pimono-sdpo duel --to dpo --rows dpo
"""

from pathlib import Path
from typing import Any, Literal

import typer

from pimono_sdpo.dataset_writer import WriterOptions, summarize
from pimono_sdpo.duel.gate import AlbedoRules, Rules
from pimono_sdpo.duel.result import RESULT, score_duel, write_training_rows
from pimono_sdpo.duel.stages import (
    Outcome,
    Spending,
    run_answers,
    run_judge,
    run_turns_by_settings,
)
from pimono_sdpo.errors import InferenceError, OutputError, SourceError
from pimono_sdpo.llm.money import need_prices
from pimono_sdpo.llm.settings import Settings, load_settings
from pimono_sdpo.options import argument, option, options
from pimono_sdpo.push import PushResult, push_folder
from pimono_sdpo.schema import Opponent
from processors.duel.export import Kind

ESTIMATED = 8
STAGES = ("turns", "answers", "judge", "score")
Json = dict[str, Any]


@options
class Options(PushResult, WriterOptions):
    """Options of `duel`; settings fill in what is None."""

    source: str | None = argument(
        "Trajectories (parquet, or ns/name on the Hub) or recorded sessions; not needed once the "
        "turns are drawn.",
        default=None,
    )
    out: Path = option("Folder of the duel; finished work stays.", default=Path("duel"))
    stage: Literal["turns", "answers", "judge", "score", "all"] = option(
        "Run only this stage.", default="all"
    )
    records: str | None = option(
        "Pull requests by instance id: parquet, or ns/name on the Hub.", default=None
    )
    exclude: Path | None = option(
        "Text file of instance ids to leave out, one per line.", default=None
    )
    turns: int | None = option("Turns to draw.", default=None, minimum=1, shown="2000")
    seed: int | None = option("Seed of the draw and of the answers.", default=None, shown="42")
    model: str | None = option("Model of the king.", default=None, shown="chain.toml's")
    challenger: str | None = option("Model of the challenger.", default=None, shown="the king's")
    provider: str | None = option(
        "Provider of players and judges: hf, together, openai, chutes, or the URL of an "
        "OpenAI-compatible server.",
        default=None,
        shown="chain.toml's, else chutes",
    )
    judge: list[str] = option(
        "A model of the panel; may be repeated.", default_factory=list, shown="chain.toml's"
    )
    opponent: Opponent | None = option(
        "Judge against the king, or against the recorded agent.", default=None, shown="king"
    )
    rules: Literal["default", "original"] = option(
        "Report the verdict by the original rules, too.", default="default"
    )
    aa_test: int | None = option(
        "Also duel the king with itself on N turns, which shows how many `final` are chance.",
        default=None,
        minimum=1,
    )
    limit: int | None = option(
        "Ask about the first N turns only.", default=None, minimum=1, shown="all"
    )
    estimate: bool = option(
        "Ask about 8 turns, estimate the cost of the next stage, and stop.", default=False
    )
    max_cost: float | None = option(
        "Stop before spending more than this many USD.", default=None, minimum=0
    )
    config: Path | None = option("File of settings.", default=None, shown="chain.toml")
    to: Kind | None = option(
        "Write rows to train on from a finished duel, and do nothing else.", default=None
    )
    rows: Path | None = option("With --to: folder to write.", default=None, shown="OUT_TO")
    bucket: list[Literal["final", "refined", "defeat"]] = option(
        "With --to: bucket to take; may be repeated.", default_factory=lambda: ["final"]
    )


def run(options: Options) -> None:
    """Run the stages, or export rows, and push the result if asked to."""
    target = options.push_target()
    if options.to is not None:
        result = _write_rows(options, options.to)
    else:
        if not _run_stages(options):
            return
        result = options.out / RESULT
    if target is not None:
        typer.echo(push_folder(result, target))


def _run_stages(options: Options) -> bool:
    """Run the stages; return whether there is a new result."""
    out = options.out
    settings = _load_settings(options)
    wanted = STAGES if options.stage == "all" else (options.stage,)
    estimate = ESTIMATED if options.estimate else None
    spending = Spending(options.max_cost, options.limit, estimate)
    if options.max_cost is not None and "judge" in wanted:
        # Before anything is spent on the answers.
        need_prices(settings.judge.models, settings.price_list())
    if "turns" in wanted and (options.source or options.stage == "turns"):
        if options.source is None:
            raise SourceError(
                "There is no source to draw turns from; name trajectories or sessions."
            )
        report = run_turns_by_settings(
            options.source, options.records, options.exclude, settings, out
        )
        typer.echo(f"{report['turns']} turns of {report['instances']} tasks are in {out / 'turns'}")
    for name, run_stage in (("answers", run_answers), ("judge", run_judge)):
        if name not in wanted:
            continue
        if _print_outcome(run_stage(out, settings, spending), name):
            return False
        if options.aa_test is not None:
            equal = Spending(options.max_cost, options.aa_test, estimate)
            outcome = run_stage(out, settings, equal, equals=True)
            _print_outcome(outcome, f"{name} of the king against itself")
    if "score" in wanted:
        _score(options, settings)
    return "score" in wanted


def _load_settings(options: Options) -> Settings:
    duel = {
        "provider": options.provider,
        "model": options.model,
        "challenger": options.challenger,
        "turns": options.turns,
        "seed": options.seed,
        "opponent": options.opponent,
    }
    panel = {"provider": options.provider, "models": tuple(options.judge) or None}
    return load_settings(options.config, duel=duel, judge=panel)


def _print_outcome(outcome: Outcome, name: str) -> bool:
    """Print what a stage did; return whether that was an estimate.

    Raises InferenceError when the stage was stopped.
    """
    if outcome.estimate is not None:
        typer.echo(outcome.estimate)
    if outcome.asked is not None:
        asked = outcome.asked
        failed = f", {asked.errors} failed: {asked.error}" if asked.errors else ""
        typer.echo(f"{name}: {asked.rows} rows{failed}")
    if outcome.used and outcome.estimate is None:
        typer.echo(outcome.used)
    if outcome.stopped is not None:
        raise InferenceError(
            f"{outcome.stopped.rstrip('.')}; finished calls are kept, run the same command again."
        )
    return outcome.estimate is not None


def _score(options: Options, settings: Settings) -> None:
    gate = Rules(**settings.gate.model_dump(), seed=settings.duel.seed)
    original = AlbedoRules() if options.rules == "original" else None
    report = score_duel(options.out, gate, original, settings.duel.opponent, options.licence)
    verdict = report["verdict"]
    score, bound = (
        "none" if verdict[name] is None else f"{verdict[name]:.1f}" for name in ("score", "bound")
    )
    typer.echo(f"score {score}, lower bound {bound}")
    typer.echo("buckets: " + ", ".join(f"{name} {n}" for name, n in report["buckets"].items()))
    if report["aa_test"]:
        typer.echo(f"final between equals: {report['aa_test']['buckets']['final']}")
    if original is not None:
        accepted = report["original"]["accepted"]
        typer.echo("by the original rules: " + ("accepted" if accepted else "not accepted"))
    refused = "not accepted: " + "; ".join(verdict["refusals"])
    typer.echo("accepted" if verdict["accepted"] else refused)
    typer.echo(f"report.md and the buckets are in {options.out / RESULT}")


def _write_rows(options: Options, kind: Kind) -> Path:
    if kind == "sdpo" and options.format != "trl":
        raise OutputError("SDPO rows have no lines for Together; leave --format out.")
    name = options.out.resolve().name
    rows = options.rows or options.out.resolve().with_name(f"{name}_{kind}")
    report = write_training_rows(
        options.out, kind, rows, options.bucket, options.format, options.licence
    )
    typer.echo(summarize(report, rows))
    return rows
