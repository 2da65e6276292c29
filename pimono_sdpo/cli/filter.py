"""Turn recorded sessions into SDPO rows, a report and a card.

pimono-sdpo filter claude --out rows --project shop --since 30d
pimono-sdpo filter traces/ --out rows --min-score 2
pimono-sdpo filter ns/name --out rows --test-fraction 0.1

Several machines can each read a part of a source; --merge then writes the same rows as a single run:

pimono-sdpo filter traces/ --out part1 --shard 1/2
pimono-sdpo filter traces/ --out part2 --shard 2/2
pimono-sdpo filter --merge part1 part2 --out rows
"""

import re
from pathlib import Path

import typer

from pimono_sdpo.errors import OutputError
from pimono_sdpo.filtering import FilterOptions, Json, merge_parts, run_filter, run_part
from pimono_sdpo.left_out import describe_left_out, require_whole
from pimono_sdpo.options import changed, option, options
from pimono_sdpo.push import PushResult, push_folder
from pimono_sdpo.runs.engine import EngineName
from pimono_sdpo.source_options import SourceOptions


@options
class Options(PushResult, FilterOptions, SourceOptions):
    """Options of `filter`."""

    out: Path = option("Folder to write; an earlier output is replaced.")
    workers: int = option("Processes that read shards; the rows do not depend on it.", default=1, minimum=1)
    engine: EngineName = option("Read shards on this machine (`local`) or on a cluster (`ray`).", default="local")
    shard: str | None = option(
        "Write part I of N, given as I/N: every Nth shard. A shard is a parquet file or up to 64 session files; "
        "parts without shards need not be merged.",
        default=None,
    )
    merge: bool = option("Merge the parts that --shard wrote, given as the sources in any order.", default=False)


def run(options: Options) -> None:
    """Filter a source, or a part of it, or merge parts."""
    options.check_push()
    if (options.correction_judge or options.row_judge) and not options.merge:
        from pimono_sdpo.llm.settings import find_endpoint

        typer.echo(f"redacted texts are sent to `{find_endpoint(options.judge_provider).host}` for the judge")
    if options.shard is not None:
        _run_part(options, options.shard)
        return
    if options.merge:
        if fixed := changed(options, "row") + options.choices():
            raise OutputError(f"The parts decide {', '.join(fixed)}; leave it out with --merge.")
        options.set_strict()
        report = merge_parts([Path(part) for part in options.source], options.out, options)
    else:
        report = run_filter(
            options.open_sessions(options.out), options.out, options, workers=options.workers, engine=options.engine
        )
    typer.echo(count_table(report["sessions"], report["kept"], report["drop_reasons"]))
    typer.echo(summarize(report, options.out))
    if options.push is not None:
        typer.echo(push_folder(options.out, options.push, options))
    elif not (options.correction_judge or options.row_judge):
        typer.echo("nothing has left this machine")
    require_whole(report)


def _run_part(options: Options, shard: str) -> None:
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", shard)
    number, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= parts:
        raise typer.BadParameter(f"`{shard}` is not a shard; expected I/N, for example 2/3", param_hint="--shard")
    if options.merge or options.push:
        raise OutputError("--shard writes a part; --merge and --push are for all parts together.")
    if early := changed(options, "output"):
        raise OutputError(f"{', '.join(early)} applies to all parts together; use it with --merge instead.")
    part = run_part(
        options.open_sessions(options.out),
        options.out,
        (number, parts),
        options,
        workers=options.workers,
        engine=options.engine,
    )
    typer.echo(count_table(part["sessions"], part["rows"], part["dropped"]))
    typer.echo(f"part {part['part']} of {part['parts']} is in {options.out}; merge all parts with `filter --merge`")
    require_whole(part)


def count_table(sessions: int, kept: int, dropped: dict[str, int]) -> str:
    """Return a table of the sessions read, the rows kept and the rows dropped."""
    rows = {"sessions in": sessions, "rows kept": kept, "rows dropped": sum(dropped.values())}
    rows |= {f"  {reason}": count for reason, count in dropped.items()}
    name_width, width = max(map(len, rows)), max(len(str(count)) for count in rows.values())
    return "\n".join(f"{name:<{name_width}}  {count:>{width}}" for name, count in rows.items())


def summarize(report: Json, out: Path) -> str:
    """Summarise a report in a few lines."""
    score = report["score"]
    lines = [
        f"score {score['min']:g} to {score['max']:g}, mean {score['mean']:.2f}",
        "categories: " + _list_counts(report["category_counts"]),
    ]
    broken = {name: n for name, n in report["lines"].items() if n and name != "parsed"}
    if broken:
        lines.append("broken lines: " + _list_counts(broken))
    lines += report["drift"]
    lines += describe_left_out(report)
    upstream = report["input"].get("upstream") or {}
    if upstream.get("commits_behind"):
        behind = _list_counts({"commits": upstream["commits_behind"], "days": upstream["days_behind"]})
        lines.append(f"the viewer's export is behind the dataset: {behind}")
    if report["options"]["test_fraction"]:
        lines.append("split: " + _list_counts({"train": 0, "test": 0} | report["splits"]))
    if report["secrets_redacted"]:
        lines.append("redacted: " + _list_counts(report["secrets_redacted"]))
    lines.append(f"rows, rejects, report.json and README.md are in {out}")
    return "\n".join(lines)


def _list_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
