"""Let a panel of models judge whether a challenger wins.

The king answers without a hint; the challenger sees the pull request that solved the task. The gate
comes first: single judges read one turn per task, and up to five interim analyses decide whether the
challenger is better. If it is, or with --export, the whole panel reads every turn. A run that was
stopped resumes with the same command; no finished call is repeated. Settings are in chain.toml.

    pimono-sdpo duel AlienKevin/SWE-ZERO-12M-trajectories --records nebius/SWE-rebench-V2-PRs \\
        --max-cost 150
    pimono-sdpo duel --to dpo --rows dpo
"""

import os
from pathlib import Path
from typing import Any, Literal

import typer

from pimono_sdpo.dataset_writer import WriterOptions, summarize
from pimono_sdpo.duel.result import RESULT, describe_report, describe_verdict, score_duel, write_training_rows
from pimono_sdpo.duel.stages import Duel, Outcome, run_turns
from pimono_sdpo.errors import InferenceError, OutputError, SourceError
from pimono_sdpo.llm.calls import ESTIMATED, need_prices
from pimono_sdpo.llm.settings import Settings, load_settings, read_dotenv
from pimono_sdpo.options import argument, option, options
from pimono_sdpo.program import print_lines
from pimono_sdpo.push import check_push, push_folder
from pimono_sdpo.push_options import PushResult
from pimono_sdpo.schema import Opponent
from processors.duel.export import Kind
from processors.duel.turns import TurnOptions, read_excluded_ids

Json = dict[str, Any]


@options
class DuelOptions(PushResult, WriterOptions):
    """Options of `duel`; those that are None are taken from the settings."""

    source: str | None = argument(
        "Trajectories: parquet, or ns/name on the Hub; not needed once the turns are drawn.", default=None
    )
    out: Path = option("Folder of the duel; finished work stays.", default=Path("duel"))
    stage: Literal["turns", "answers", "judge", "score", "all"] = option("Run only this stage.", default="all")
    records: str | None = option("Pull requests by instance id: parquet, or ns/name on the Hub.", default=None)
    exclude: Path | None = option("Text file of instance ids to leave out.", default=None)
    turns: int | None = option("Turns to draw.", default=None, minimum=1, shown="2000")
    seed: int | None = option("Seed of draw and answers.", default=None, minimum=0, shown="42")
    model: str | None = option("Model of the king.", default=None, shown="chain.toml's")
    challenger: str | None = option("Model of the challenger.", default=None, shown="the king's")
    provider: str | None = option(
        "Provider of players and judges, or the URL of an OpenAI-compatible server.",
        default=None,
        shown="chain.toml's, else chutes",
    )
    judge: list[str] = option("A model of the panel; may be repeated.", default_factory=list, shown="chain.toml's")
    opponent: Opponent | None = option(
        "Judge against the king, or against the recorded agent.", default=None, shown="king"
    )
    cluster: Literal["auto", "repo", "task"] | None = option(
        "Unit of independence; auto: tasks of one repository.", default=None, shown="auto"
    )
    export: bool = option("Ask the panel about every turn, whoever won.", default=False)
    rules: Literal["default", "original"] = option(
        "With `original`, ask the whole panel about every turn and also report the original verdict.",
        default="default",
    )
    aa_test: int | None = option(
        "Also duel the king with itself on N turns; implies --export.", default=None, minimum=1
    )
    limit: int | None = option("Ask the panel about the first N turns only.", default=None, minimum=1, shown="all")
    estimate: bool = option("Ask about 8 turns, estimate all costs, and stop.", default=False)
    max_cost: float | None = option("Maximum total cost in USD; needs prices in chain.toml.", default=None, minimum=0)
    config: Path | None = option("Settings file.", default=None, shown="chain.toml")
    to: Kind | None = option("Only write training rows of a finished duel.", default=None)
    rows: Path | None = option("With --to: folder to write.", default=None, shown="OUT_TO")
    bucket: list[Literal["final", "refined", "defeat"]] = option(
        "With --to: bucket to take; may be repeated.", default_factory=lambda: ["final"]
    )


def run(options: DuelOptions) -> None:
    """Run the stages, or export rows, and push the result if asked to."""
    check_push(options)
    folder = _run_stages(options) if options.to is None else _write_rows(options, options.to)
    if options.push is not None and folder is not None:
        typer.echo(push_folder(folder, options.push, options))


def _run_stages(options: DuelOptions) -> Path | None:
    """Run the stages; return the folder of the result if there is a new one."""
    out, max_cost, stage = options.out, options.max_cost, options.stage
    settings = _load_settings(options)
    if max_cost is not None and stage in ("judge", "all"):
        # Before any money is spent on answers.
        need_prices(settings.judge.models, settings.prices)
    if stage == "turns" or (stage == "all" and options.source):
        if options.source is None:
            raise SourceError("There is no source of turns; name trajectories.")
        if options.records is None:
            raise SourceError(
                "Trajectories need the pull requests that are hidden from the king; give --records, such as "
                "nebius/SWE-rebench-V2-PRs."
            )
        excluded = read_excluded_ids(options.exclude) if options.exclude else frozenset[str]()
        turn_options = TurnOptions(settings.duel.turns, settings.duel.seed, excluded)
        report = run_turns(options.source, options.records, turn_options, out)
        print_lines(f"{report['turns']} turns of {report['instances']} tasks are in {out / 'turns'}")
    duel = Duel(out, settings, max_cost)
    if options.estimate:
        typer.echo(duel.estimate(ESTIMATED))
        return None
    original, limit = options.rules == "original", options.limit
    export = options.export or original or options.aa_test is not None
    if stage == "answers":
        limit = limit if export else duel.register().looks[-1]
        _print_progress("answers", duel.answer(limit))
        duel.end_round()
    elif stage in ("judge", "all"):
        for name, outcome in duel.run(export, limit, options.aa_test, original):
            _print_progress(name, outcome)
    if stage not in ("score", "all"):
        return None
    report = score_duel(duel, original, options.licence)
    typer.echo(describe_report(report))
    print_lines(f"report.md and the buckets are in {out / RESULT}")
    return out / RESULT


def _load_settings(options: DuelOptions) -> Settings:
    modes: dict[str | None, Opponent | None] = {"1": "reference", "2": "king", None: None}
    mode = os.environ.get("DUEL_MODE") or read_dotenv().get("DUEL_MODE")
    if mode not in modes:
        raise InferenceError(f"DUEL_MODE is `{mode}`; use 1 (against the recorded agent) or 2 (against the king).")
    duel = {name: getattr(options, name) for name in ("provider", "model", "challenger", "turns", "seed")}
    duel["opponent"] = options.opponent or modes[mode]
    panel = {"provider": options.provider, "models": tuple(options.judge) or None}
    return load_settings(options.config, duel=duel, judge=panel, gate={"cluster": options.cluster})


def _print_progress(name: str, outcome: Outcome | Json) -> None:
    if not isinstance(outcome, Outcome):
        typer.echo(describe_verdict(outcome))
        return
    failed = f", {outcome.errors} failed: {outcome.error}" if outcome.errors else ""
    typer.echo(f"{name}: {outcome.rows} rows{failed}\n{outcome.used}".rstrip())
    if outcome.stopped is not None:
        raise InferenceError(f"{outcome.stopped.rstrip('.')}; finished calls are kept, run the same command again.")


def _write_rows(options: DuelOptions, kind: Kind) -> Path:
    if kind == "sdpo" and options.format != "trl":
        raise OutputError("SDPO rows have no lines for Together; leave --format out.")
    out = options.out.resolve()
    rows = options.rows or out.with_name(f"{out.name}_{kind}")
    report = write_training_rows(options.out, kind, rows, options.bucket, options)
    typer.echo(summarize(report, rows))
    return rows
