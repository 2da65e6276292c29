"""Turn recorded sessions into SDPO rows, a report and a card.

pimono-sdpo filter claude --out rows --project shop --since 30d
pimono-sdpo filter traces/ --out rows --min-score 2
pimono-sdpo filter ns/name --out rows --test-fraction 0.1
pimono-sdpo filter claude --out recoveries --unit recovery

Several machines that share a folder can each make some of the parts; the last command then only finishes:

pimono-sdpo filter traces/ --out shared/rows --only 1/2
pimono-sdpo filter traces/ --out shared/rows --only 2/2
pimono-sdpo filter traces/ --out shared/rows

A request becomes a row if something went wrong afterwards. Each of these gives none:

"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from pimono_sdpo.errors import OutputError
from pimono_sdpo.filter_options import NO_REQUEST, REASONS, EngineName, FilterOptions
from pimono_sdpo.options import option, options
from pimono_sdpo.program import print_lines
from pimono_sdpo.push_options import PushResult
from pimono_sdpo.session_options import SourceOptions

Json = dict[str, Any]
__doc__ += "\n".join(f"- {reason}: {sentence}." for reason, sentence in REASONS.items())


@options
class FilterCommandOptions(PushResult, FilterOptions, SourceOptions):
    """Options of `filter`."""

    out: Path = option("Folder to write; an earlier output is replaced.")
    workers: int = option("Processes that read shards; the rows do not depend on it.", default=1, minimum=1)
    engine: EngineName = option("Read shards on this machine (`local`) or on a cluster (`ray`).", default="local")
    only: str | None = option(
        "Make only every Nth part from the Ith on, given as I/N, while other machines with the same folder OUT make "
        "the others; the same command without --only then finishes. A part is a parquet file or 64 session files.",
        default=None,
    )
    config: Path | None = option(
        "YAML file with the values of options that are neither on the command line nor in the environment, where "
        "PIMONO_FILTER_MIN_SCORE is --min-score.",
        default=None,
        flag="--config",
        gives_defaults=True,
    )
    json: bool = option("Print the report as JSON instead of sentences.", default=False)
    quiet: bool = option("Print only where texts are sent, and errors.", default=False)
    dry_run: bool = option("Say what would be read and sent, and do nothing.", default=False)


def run(options: FilterCommandOptions) -> None:
    """Filter a source, or make some of its parts."""
    only = _read_only(options)
    # Not before the options are parsed: `--help` does not wait for these.
    from pimono_sdpo.filtering import make_parts, run_filter
    from pimono_sdpo.left_out import report_left_out, require_whole
    from pimono_sdpo.push import check_push, push_folder
    from pimono_sdpo.source_options import open_sessions

    check_push(options)
    will = "would be" if options.dry_run else "are"
    if options.judge_provider:
        from pimono_sdpo.llm.settings import find_endpoint

        destination = find_endpoint(options.judge_provider).destination
        typer.echo(f"redacted texts for the judge {will} sent to {destination}")
    source = open_sessions(options, options.out)
    if options.dry_run:
        shards = source.describe()["shards"]
        sizes = {name: sum(shard.get(name) or 0 for shard in shards) for name in ("sessions", "bytes")}
        typer.echo(f"{sizes['sessions']} sessions ({sizes['bytes']:,} bytes) of {source.name} would be read")
        typer.echo(f"rows would be pushed to {options.push}" if options.push else "nothing would be pushed")
        return
    if options.unit == "recovery":
        if only is not None:
            raise OutputError("--unit recovery makes all parts in one run; leave out --only.")
        from pimono_sdpo.cli.steps import finish
        from pimono_sdpo.filtering import write_recoveries

        recoveries = write_recoveries(source, options.out, options, workers=options.workers, engine=options.engine)
        finish(recoveries, options.out, options, "use sessions in which a call failed and was put right")
        return
    if only is not None:
        counts = make_parts(source, options.out, options, only, workers=options.workers, engine=options.engine)
        stages, dropped = [*counts.get("stages", {}).values()], Counter[str]()
        for reasons in counts.get("dropped", {}).values():
            dropped.update(reasons)
        sessions, kept = (stages[0]["in"], stages[-1]["out"]) if stages else (0, 0)
        typer.echo(count_table(sessions, kept, dropped))
        typer.echo(f"parts {options.only} are made; after the others, the command without --only writes the rows")
        require_whole(report_left_out(counts, dropped))
        return
    report = run_filter(source, options.out, options, workers=options.workers, engine=options.engine)
    pushed = "" if options.push is None else push_folder(options.out, options.push, options)
    if options.json:
        typer.echo(json.dumps(report))
    elif not options.quiet:
        typer.echo(count_table(report["sessions"], report["kept"], report["drop_reasons"]))
        typer.echo(summarize(report, options.out))
        if pushed or not options.judge_provider:
            typer.echo(pushed or "nothing has left this machine")
        print_lines(f"next: pimono-sdpo view {options.out}")
    require_whole(report)


def _read_only(options: FilterCommandOptions) -> tuple[int, int] | None:
    if options.only is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", options.only)
    number, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= parts:
        raise OutputError(f"--only `{options.only}` is not I/N, such as 2/3; I is from 1 to N.")
    if options.push:
        raise OutputError("--only writes no rows that can be pushed; give --push to the last command, without --only.")
    return number, parts


def count_table(sessions: int, kept: int, dropped: Mapping[str, int]) -> str:
    """Return a table of sessions, requests and rows, and of the reasons for other requests, most frequent first."""
    requests = kept + sum(count for reason, count in dropped.items() if reason not in NO_REQUEST)
    counts = {"sessions read": sessions, "requests": requests, "rows": kept}
    reasons = sorted(dropped.items(), key=lambda one: (-one[1], one[0]))
    counts |= {f"no row: {REASONS.get(reason, 'your stage drops it')} ({reason})": count for reason, count in reasons}
    width = max(len(f"{count:,}") for count in counts.values())
    return "\n".join(f"{count:>{width},}  {name}" for name, count in counts.items())


def summarize(report: Json, out: Path) -> str:
    """Summarise a report in a few lines."""
    from pimono_sdpo.left_out import describe_left_out
    from pimono_sdpo.text import escape_line

    score = report["score"]
    lines = [
        "worth: " + ", ".join(f"{one['kept']} rows from {one['from']:g}" for one in report["worth"]["bands"]),
        f"score {score['min']:g} to {score['max']:g}, mean {score['mean']:.2f}",
        "categories: " + _list_counts(report["category_counts"]),
    ]
    broken = {name: n for name, n in report["lines"].items() if n and name != "parsed"}
    if broken:
        lines.append("broken lines: " + _list_counts(broken))
    lines += [*report["drift"], *report["input"].get("notes", ())]
    lines += describe_left_out(report)
    if unread := report.get("judge_unreadable"):
        lines.append(
            f"the judge's answers about {unread} of {report['kept']} rows could not be read; rules decided there"
        )
    upstream = report["input"].get("upstream") or {}
    if upstream.get("commits_behind"):
        behind = _list_counts({"commits": upstream["commits_behind"], "days": upstream["days_behind"]})
        lines.append(f"the viewer's export is behind the dataset: {behind}")
    if report["options"]["test_fraction"]:
        lines.append("split: " + _list_counts({"train": 0, "test": 0} | report["splits"]))
    if report["secrets_redacted"]:
        lines.append("redacted: " + _list_counts(report["secrets_redacted"]))
    lines.append(f"rows, rejects, report.json and README.md are in {out}")
    return "\n".join(map(escape_line, lines))


def _list_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
