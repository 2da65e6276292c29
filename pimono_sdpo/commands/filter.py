"""Runs from a source to a folder: whole, a part of it, and parts put together."""

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from pimono_sdpo import __version__
from pimono_sdpo.commands.checks import check_test_fraction
from pimono_sdpo.errors import EmptySelection, OutputError, SourceError
from pimono_sdpo.schema import Unit

if TYPE_CHECKING:
    from pimono_sdpo.runs.assemble import ShardFiles
    from pimono_sdpo.runs.runner import Finished
    from pimono_sdpo.runs.usage import Usage
    from pimono_sdpo.runs.workers import Engine
    from pimono_sdpo.traces.sources import Source

EngineName = Literal["local", "ray"]
SEED = 42
Json = dict[str, Any]


def run_filter(
    source: str,
    out: Path,
    unit: Unit = "session",
    min_score: float = 0.0,
    max_samples: int | None = None,
    seed: int = SEED,
    licence: str | None = None,
    dedupe: bool = True,
    test_fraction: float = 0.0,
    history_chars: int = 0,
    workers: int = 1,
    engine: EngineName = "local",
    usage: "Usage | None" = None,
) -> Json:
    """Filter traces into SDPO rows under `out` and return the report.

    `out` gets `data/*.parquet`, `rejects/*.parquet`, `report.json` and `README.md` with its
    pictures; `usage` is told what the run has cost. Raises SourceError, ShardError, OutputError,
    EngineError or EmptySelection; then `out` is as it was before.
    """
    from pimono_sdpo.runs.assemble import files_of
    from pimono_sdpo.runs.engines import engine_of
    from pimono_sdpo.runs.folders import only_run

    chosen = _chosen(max_samples, dedupe, seed, licence)
    made_with = _row_options(unit, min_score, test_fraction, history_chars)
    run = engine_of(engine, workers)
    out = out.resolve()
    opened = _open(source, out)
    with only_run(out) as work:
        finished = _finish(opened, range(len(opened.shards)), work, made_with, run, usage)
        files = [files_of(work, index) for index in finished.records]
        named = _named_without_secrets(opened)
        records = list(finished.records.values())
        return _publish(named, source, files, records, work, out, {**made_with, **chosen})


def run_part(
    source: str,
    out: Path,
    part: tuple[int, int],
    unit: Unit = "session",
    min_score: float = 0.0,
    test_fraction: float = 0.0,
    history_chars: int = 0,
    workers: int = 1,
    engine: EngineName = "local",
    usage: "Usage | None" = None,
) -> Json:
    """Run the shards of part 1, 2, ... of so many and return what `part.json` says, with `dropped`.

    `out` gets `rows`, `prints`, `rejects`, `done` and `part.json`, for `merge_parts`. Raises like
    `run_filter`; a part without rows is no error.
    """
    from pimono_sdpo.runs.engines import engine_of
    from pimono_sdpo.runs.folders import LOCK, PART, another_part, only_run, publish_folder, remove
    from pimono_sdpo.runs.manifests import describe, made_by
    from pimono_sdpo.runs.part import numbers_of, says, write_part

    made_with = _row_options(unit, min_score, test_fraction, history_chars)
    run = engine_of(engine, workers)
    out = out.resolve()
    opened = _open(source, out)
    described = [describe(shard) for shard in opened.shards]
    says_all = says(
        part, _named_without_secrets(opened), described, made_by(_stages(made_with), made_with)
    )
    numbers = numbers_of(*part, len(opened.shards))
    another_part(out, part)
    with only_run(out, PART) as work:
        finished = _finish(opened, numbers, work, made_with, run, usage)
        publish_folder(write_part(work, says_all, finished.records), out)
        remove(work, LOCK)
    told: Json = json.loads((out / PART).read_bytes())
    dropped: dict[str, int] = {}
    for record in finished.records.values():
        for _, reason, count in record["dropped"]:
            dropped[reason] = dropped.get(reason, 0) + count
    return {**told, "dropped": dict(sorted(dropped.items()))}


def merge_parts(
    parts: Sequence[Path],
    out: Path,
    max_samples: int | None = None,
    seed: int = SEED,
    licence: str | None = None,
    dedupe: bool = True,
) -> Json:
    """Put the parts of a source together under `out`, to the bytes of one run; return the report.

    Raises SourceError when parts are missing, double, damaged or do not fit, OutputError or
    EmptySelection; then `out` is as it was before.
    """
    from pimono_sdpo.runs.folders import apart, only_run
    from pimono_sdpo.runs.part import gather

    chosen = _chosen(max_samples, dedupe, seed, licence)
    out = out.resolve()
    for folder in parts:
        apart(folder.resolve(), out)
    whole = gather(parts)
    if whole.says["pimono_sdpo"] != __version__:
        raise SourceError(
            f"The parts are of pimono-sdpo {whole.says['pimono_sdpo']} and this is {__version__}; "
            "merge them with the version that made them."
        )
    source = whole.source()
    options = {**whole.says["options"], **chosen}
    with only_run(out) as work:
        return _publish(source, source.name, whole.files, whole.records, work, out, options)


def _chosen(max_samples: int | None, dedupe: bool, seed: int, licence: str | None) -> Json:
    """The options that compare rows or describe all of them; a merge decides on these."""
    from cards.lint import LICENCES

    licence = licence.lower() if licence else None
    if licence is not None and licence not in LICENCES:
        raise OutputError(
            f"The Hub knows no licence `{licence}`; give an id such as mit or apache-2.0, or "
            "leave --license out."
        )
    if max_samples is not None and max_samples < 1:
        raise OutputError(f"At most {max_samples} rows are none; give a number from 1.")
    return {"max_samples": max_samples, "dedupe": dedupe, "seed": seed, "licence": licence}


def _row_options(unit: Unit, min_score: float, test_fraction: float, history_chars: int) -> Json:
    """The options that decide on each row alone; a shard is made again when one changes."""
    if not math.isfinite(min_score):
        raise OutputError(f"A minimum score of {min_score} keeps or drops all; give a number.")
    check_test_fraction(test_fraction)
    options = {"unit": unit, "min_score": min_score, "test_fraction": test_fraction}
    return {**options, "history_chars": history_chars}


def _open(source: str, out: Path) -> "Source":
    from pimono_sdpo.runs.folders import apart
    from pimono_sdpo.traces.sources import open_source

    if source and Path(source).exists():
        apart(Path(source).resolve(), out)
    return open_source(source)


def _stages(options: Json) -> "tuple[Any, ...]":
    from processors import pipeline

    return pipeline(**options)


def _finish(
    opened: "Source",
    numbers: Iterable[int],
    work: Path,
    options: Json,
    engine: "Engine",
    usage: "Usage | None",
) -> "Finished":
    """Run the shards of these numbers under a bar."""
    from pimono_sdpo.runs.progress import Progress
    from pimono_sdpo.runs.runner import run_shards

    shards = {index: opened.shards[index] for index in numbers}
    started = perf_counter()
    with Progress(sum(shard.sessions for shard in shards.values()), len(shards)) as progress:
        finished = run_shards(shards, _stages(options), work, options, progress, engine)
    if usage is not None:
        usage.add(finished, started)
    return finished


def _publish(
    named: "Source",
    given: str,
    files: Sequence["ShardFiles"],
    records: list[Json],
    work: Path,
    out: Path,
    options: Json,
) -> Json:
    """Judge the rows of all shards, put them together and give the folder its name."""
    from cards import render_dataset_card, write_report_plots
    from pimono_sdpo.report import build_report
    from pimono_sdpo.runs.assemble import assemble, judge
    from pimono_sdpo.runs.folders import LOCK, publish_folder, remove
    from processors.grade import WEIGHTS

    comparing = options["max_samples"], options["seed"], options["dedupe"]
    with closing(judge(files, work / "candidates.sqlite", *comparing)) as database:
        finished, dropped = assemble(files, work, database)
    report = build_report(named, options, WEIGHTS, records, dropped, finished)
    if not report["kept"]:
        remove(work, LOCK)
        raise EmptySelection(_nothing_left(given, report))
    (finished / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    write_report_plots(report, finished)
    (finished / "README.md").write_text(render_dataset_card(report))
    publish_folder(finished, out)
    remove(work, LOCK)
    return report


def _named_without_secrets(source: "Source") -> "Source":
    """File names reach the report and the card, and may hold what texts may hold."""
    from processors.redact import redact_text

    shards = tuple(replace(s, path=redact_text(s.path, "")[0]) for s in source.shards)
    return replace(source, name=redact_text(source.name, "")[0], shards=shards)


def _nothing_left(source: str, report: Json) -> str:
    counts = report["drop_reasons"]
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "none is there"
    advice = (
        "lower --min-score"
        if "below_min_score" in report["drop_reasons"]
        else "give traces with tool errors, failed commands or user corrections"
    )
    count = report["sessions"]
    which = "The only session" if count == 1 else f"None of the {count} sessions"
    kept = "was not kept" if count == 1 else "was kept"
    return f"{which} of `{source}` {kept} ({reasons}); {advice}."
