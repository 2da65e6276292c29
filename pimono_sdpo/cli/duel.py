"""King against challenger: duel, duel-rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from pimono_sdpo.cli.rollouts import Config, MaxCost
from pimono_sdpo.cli.shared import (
    CreatePr,
    Format,
    Licence,
    Out,
    Public,
    Revision,
    one_of,
    push_target,
)
from pimono_sdpo.errors import InferenceError, SourceError

if TYPE_CHECKING:
    from pimono_sdpo.duel.stages import Outcome
    from pimono_sdpo.llm.settings import Settings

STAGES = ("turns", "answers", "judge", "score")
RULES = ("default", "original")
ESTIMATED = 8
Json = dict[str, Any]


def duel_command(
    source: Annotated[
        str | None,
        typer.Argument(
            help="Trajectories (parquet, or ns/name on the Hub), or recorded sessions; not needed "
            "once the turns are drawn.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the duel; what is done stays.")] = Path(
        "duel"
    ),
    stage: Annotated[
        str, typer.Option(help="`turns`, `answers`, `judge`, `score`, or `all` of them.")
    ] = "all",
    records: Annotated[
        str | None, typer.Option(help="Pull requests by instance id: parquet, or ns/name.")
    ] = None,
    exclude: Annotated[
        Path | None, typer.Option(help="Text file of instance ids to leave out, one per line.")
    ] = None,
    turns: Annotated[
        int | None, typer.Option(help="Turns to draw.", min=1, show_default="2000")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the draw and the answers.", show_default="42")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of the king.", show_default="chain.toml's")
    ] = None,
    challenger: Annotated[
        str | None, typer.Option(help="Model of the challenger.", show_default="the king's")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="hf, together, openai, chutes, or the URL of an OpenAI-compatible server; for "
            "players and judges.",
            show_default="chain.toml's, else chutes",
        ),
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(help="A model of the panel; may be repeated.", show_default="chain.toml's"),
    ] = None,
    opponent: Annotated[
        str | None,
        typer.Option(
            help="Judge against the `king`, or the recorded `reference`.", show_default="king"
        ),
    ] = None,
    rules: Annotated[
        str, typer.Option(help="Decide by the `default` rules, or tell the `original` ones, too.")
    ] = "default",
    aa_test: Annotated[
        int | None,
        typer.Option(
            help="Duel the king with itself on N turns: how many `final` are chance.", min=1
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Ask about the first N turns.", min=1, show_default="all")
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate", help="Ask about 8 turns, say what the next stage will cost, and stop."
        ),
    ] = False,
    max_cost: MaxCost = None,
    config: Config = None,
    licence: Licence = None,
    push: Annotated[
        str | None, typer.Option(help="Dataset (ns/name) to push the result to, private if new.")
    ] = None,
    public: Public = False,
    revision: Revision = None,
    create_pr: CreatePr = False,
) -> None:
    """Let a panel judge whether a challenger beats the king on turns of recorded sessions."""
    from pimono_sdpo.duel import stages
    from pimono_sdpo.llm.money import need_prices
    from pimono_sdpo.llm.settings import load
    from pimono_sdpo.push import push_folder

    target = push_target(push, public, revision, create_pr)
    one_of(stage, (*STAGES, "all"), "--stage")
    one_of(rules, RULES, "--rules")
    asked: Json = {"provider": provider, "model": model, "challenger": challenger}
    asked |= {"turns": turns, "seed": seed, "opponent": opponent}
    panel: Json = {"provider": provider, "models": tuple(judge) if judge else None}
    settings = load(config, duel=asked, judge=panel)
    wanted = STAGES if stage == "all" else (stage,)
    spending = stages.Spending(max_cost, limit, ESTIMATED if estimate else None)
    if max_cost is not None and "judge" in wanted:
        # Before anything is spent on the answers.
        need_prices(settings.judge.models, settings.price_list())
    if "turns" in wanted and (source or stage == "turns"):
        _draw(source, records, exclude, settings, out)
    for name, run in (("answers", stages.run_answers), ("judge", stages.run_judge)):
        if name in wanted and _ended(run(out, settings, spending), name):
            return
        if name in wanted and aa_test is not None:
            equal = stages.Spending(max_cost, aa_test, spending.estimate)
            _ended(run(out, settings, equal, equals=True), f"{name} of equals")
    if "score" in wanted:
        _score(out, settings, rules, licence)
        if target is not None:
            typer.echo(push_folder(out / "result", target))


def _draw(
    source: str | None,
    records: str | None,
    exclude: Path | None,
    settings: "Settings",
    out: Path,
) -> None:
    from pimono_sdpo.duel.stages import run_turns_by_settings

    if source is None:
        raise SourceError("There is no source to draw turns from; name trajectories or sessions.")
    report = run_turns_by_settings(source, records, exclude, settings, out)
    typer.echo(f"{report['turns']} turns of {report['instances']} tasks are in {out / 'turns'}")


def _ended(told: "Outcome", name: str) -> bool:
    """Say what a stage did; whether that was an estimate. Raises InferenceError when it stopped."""
    if told.estimate is not None:
        typer.echo(told.estimate)
    if told.asked is not None:
        failed = f", {told.asked.errors} failed: {told.asked.error}" if told.asked.errors else ""
        typer.echo(f"{name}: {told.asked.rows} rows{failed}")
    if told.used and told.estimate is None:
        typer.echo(told.used)
    if told.stopped is not None:
        raise InferenceError(f"{told.stopped.rstrip('.')}; what is done stays, run it again.")
    return told.estimate is not None


def _score(out: Path, settings: "Settings", rules: str, licence: str | None) -> None:
    from pimono_sdpo.duel.albedo_rules import AlbedoRules
    from pimono_sdpo.duel.gate import Rules
    from pimono_sdpo.duel.result import score_duel

    gate = Rules(**settings.gate.model_dump(), seed=settings.duel.seed)
    original = AlbedoRules() if rules == "original" else None
    report = score_duel(out, gate, original, settings.duel.opponent, licence)
    verdict = report["verdict"]
    typer.echo(f"score {_points(verdict['score'])}, lower bound {_points(verdict['bound'])}")
    typer.echo("buckets: " + ", ".join(f"{name} {n}" for name, n in report["buckets"].items()))
    if report["aa_test"]:
        typer.echo(f"final between equals: {report['aa_test']['buckets']['final']}")
    if original is not None:
        accepted = report["original"]["accepted"]
        typer.echo("by the original rules: " + ("accepted" if accepted else "not accepted"))
    said = "accepted" if verdict["accepted"] else "not accepted: " + "; ".join(verdict["refusals"])
    typer.echo(f"{said}\nreport.md and the buckets are in {out / 'result'}")


def _points(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f}"


def duel_rows_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a duel that was scored.")],
    out: Out,
    to: Annotated[str, typer.Option(help="Rows for `sft`, `dpo` or `sdpo`.")],
    bucket: Annotated[
        list[str] | None,
        typer.Option(help="Bucket to take; may be repeated.", show_default="final"),
    ] = None,
    format: Format = "trl",
    licence: Licence = None,
    push: Annotated[
        str | None, typer.Option(help="Dataset (ns/name) to push to, private if new.")
    ] = None,
    public: Public = False,
    revision: Revision = None,
    create_pr: CreatePr = False,
) -> None:
    """Write the turns that the challenger won as rows to train on."""
    from pimono_sdpo.commands.duel_rows import STAGES as KINDS
    from pimono_sdpo.commands.duel_rows import run_duel_rows
    from pimono_sdpo.dataset_writer import Format as Formats
    from pimono_sdpo.dataset_writer import summarize
    from pimono_sdpo.push import push_folder
    from processors.duel.scores import Bucket

    target = push_target(push, public, revision, create_pr)
    names = [one_of(name, get_args(Bucket)[:3], "--bucket") for name in bucket or ["final"]]
    kind: Any = one_of(to, tuple(KINDS), "--to")
    one_of(format, get_args(Formats) if kind != "sdpo" else ("trl",), "--format")
    report = run_duel_rows(folder, kind, out, names, format, licence)
    typer.echo(summarize(report, out))
    if target is not None:
        typer.echo(push_folder(out, target))
