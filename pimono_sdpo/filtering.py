"""Run the filter: make the rows of every shard, then choose among them and publish files, report and card."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cards.lint import check_licence
from cards.render import render_dataset_card
from pimono_sdpo.dataset_writer import WriterOptions, name_source, write_dataset
from pimono_sdpo.errors import EngineError, require_extra
from pimono_sdpo.filter_options import EngineName
from pimono_sdpo.filter_options import FilterOptions as FilterOptions
from pimono_sdpo.left_out import explain_empty, report_left_out
from pimono_sdpo.options import report_options, resume_key
from pimono_sdpo.report import build_report
from pimono_sdpo.runs import folders, sessions
from pimono_sdpo.runs.duplicates import choose_rows
from pimono_sdpo.runs.engine import Engine, Made, run_shards, sum_counts
from pimono_sdpo.runs.finish import write_files
from pimono_sdpo.runs.parquet import read_rows
from pimono_sdpo.runs.processes import run_in_processes
from pimono_sdpo.schema import DROPPED_RECOVERY, RECOVERY, REJECT, SDPO_ROW
from pimono_sdpo.stage import STRICT
from pimono_sdpo.traces.drift import refuse_drift
from pimono_sdpo.traces.sources import Source, open_source
from processors import pipeline
from processors.grade import WEIGHTS
from processors.redact import redact_text

Json = dict[str, Any]


def run_filter(
    source: str | Source,
    out: Path,
    options: FilterOptions | None = None,
    *,
    workers: int = 1,
    engine: EngineName = "local",
) -> Json:
    """Filter traces into SDPO rows under `out` and return the report.

    After any PimonoError, `out` is unchanged.
    """
    options, out = options or FilterOptions(), out.resolve()
    # Before any work.
    licence = check_licence(options.licence)
    opened = _open(source, out)
    with folders.only_run(out) as work:
        parts = _make(opened, work, options, workers, engine)
        filled = [part for part in parts if part.rows]
        drops, ranked = choose_rows(filled, work, options.max_samples, options.seed, options.dedupe, options.ranked_by)
        finished = folders.make_output(work)
        write_files(filled, finished, SDPO_ROW, REJECT, drops, ranked=ranked)
        counts, named = sum_counts(parts), _redact_names(opened)
        used = report_options(options) | {"licence": licence}
        report = build_report(named.describe(), used, WEIGHTS, counts, drops, finished)
        report["ranked_by"] = options.ranked_by
        report |= report_left_out(counts, report["drop_reasons"], named.others)
        if unreadable := sessions.list_unreadable(counts):
            report["bytes"]["unreadable"] = sum(unreadable.values())
            report["sessions"] -= len(unreadable)
        if not report["kept"]:
            folders.remove(work, folders.LOCK)
            raise explain_empty(report, _advise(report))
        if options.judge:
            answers = (row["judged"] for row in read_rows(sorted((finished / "data").iterdir()), ["judged"]))
            report["judge_unreadable"] = sum(not answer for answer in answers)
        if os.environ.get(STRICT) == "1":
            refuse_drift(report)
        (finished / "README.md").write_text(render_dataset_card(report))
        folders.publish_folder(finished, out, report)
    return report


def write_recoveries(
    source: str | Source, out: Path, options: FilterOptions, *, workers: int = 1, engine: EngineName = "local"
) -> Json:
    """Write the recoveries of traces under `out` and return the report, also without any."""
    opened = _open(source, out.resolve())
    table = (RECOVERY, DROPPED_RECOVERY)
    key = {"options": resume_key(options)}
    return write_dataset(
        sessions.session_parts(opened.shards, pipeline(options, opened.recorder), key, table),
        table,
        out,
        WriterOptions(licence=options.licence),
        "recoveries",
        name_source(opened),
        report_options(options),
        others=opened.others,
        engine=_find_engine(engine, workers),
    )


def make_parts(
    source: str | Source,
    out: Path,
    options: FilterOptions,
    only: tuple[int, int],
    *,
    workers: int = 1,
    engine: EngineName = "local",
) -> Json:
    """Make each n-th part from the i-th on, for `only` (i, n), in the working folder of `out`; return their counts.

    Any number of processes may do this at once, on machines that share the folder; `run_filter` then finishes.
    """
    opened = _open(source, out.resolve())
    with folders.only_run(out.resolve(), shared=True) as work:
        return sum_counts(_make(opened, work, options, workers, engine, only))


def _open(source: str | Source, out: Path) -> Source:
    if isinstance(source, Source):
        return source
    if source and Path(source).exists():
        folders.require_disjoint(Path(source).resolve(), out)
    return open_source(source)


def _make(
    opened: Source,
    work: Path,
    options: FilterOptions,
    workers: int,
    engine: EngineName,
    only: tuple[int, int] | None = None,
) -> list[Made]:
    parts = sessions.session_parts(opened.shards, pipeline(options, opened.recorder), resume_key(options))
    run = _find_engine(engine, workers)
    return run_shards(parts, work / folders.PARTS, desc="filter", unit="session", engine=run, only=only)


def _find_engine(name: EngineName, workers: int) -> Engine:
    if name == "local":
        return partial(run_in_processes, workers=workers)
    if workers != 1:
        raise EngineError("--workers is for this machine; Ray uses all CPUs, so leave it out.")
    require_extra("ray", "ray", "--engine ray")
    from pimono_sdpo.runs.ray import run_on_ray

    return run_on_ray


def _redact_names(source: Source) -> Source:
    """Redact file names like texts, since they are in the report and the card."""
    shards = tuple(replace(s, path=redact_text(s.path, "")[0]) for s in source.shards)
    return replace(source, name=redact_text(source.name, "")[0], shards=shards)


def _advise(report: Json) -> str:
    own = {name.partition(":")[0].rpartition(".")[2] for name in report["options"]["stage"]}
    if dropping := [one["stage"] for one in report["stages"] if one["stage"] in own and one["dropped"]]:
        return f"keep more rows in your stage `{dropping[0]}`, or leave it out"
    if "below_min_score" in report["drop_reasons"]:
        return "lower --min-score"
    if "hardly_worth_it" in report["drop_reasons"]:
        return "lower --min-worth"
    return "use traces with tool errors, failed commands or user corrections"
