"""Run the filter over all shards of a source or over a part of them, and merge parts into one output."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cards.lint import check_licence
from cards.render import render_dataset_card
from pimono_sdpo.errors import OutputError, SourceError
from pimono_sdpo.left_out import explain_empty, report_left_out
from pimono_sdpo.options import check_shares, option, options, report_options, resume_key
from pimono_sdpo.report import build_report
from pimono_sdpo.runs import folders, sessions
from pimono_sdpo.runs.dedupe import choose_rows
from pimono_sdpo.runs.engine import EngineName, code_of, engine_of, run_parts, sha256, sum_counts
from pimono_sdpo.runs.parquet import link_or_copy
from pimono_sdpo.schema import SplitBy, Unit
from pimono_sdpo.stage import STRICT, Stage
from pimono_sdpo.traces.drift import refuse_drift
from pimono_sdpo.traces.sources import Shard, Source, open_source
from pimono_sdpo.version import __version__
from processors import pipeline
from processors.grade import WEIGHTS
from processors.judge import Judge
from processors.keep import LEAST_WORTH
from processors.redact import redact_text

Json = dict[str, Any]
Files = dict[str, Path]
# The keys of part.json that must be equal in all parts of a run.
SHARED_KEYS = ("pimono_sdpo", "parts", "source", "options", "code")


@options
class FilterOptions:
    """The options that decide which rows are made from a source."""

    unit: Unit = option(
        "One row per `episode` (one request and the work on it), or per `session` (for its request with "
        "the strongest evidence, as in the reference run).",
        default="episode",
        decides="row",
    )
    min_score: float = option("Drop rows with a lower score.", default=0.0, decides="row")
    min_worth: float = option(
        "Drop episodes with a lower probability of being worth training on; the best episode of a session "
        "is dropped only below 0.9 times this value. 0 keeps all episodes with evidence.",
        default=LEAST_WORTH,
        share=True,
        decides="row",
    )
    test_fraction: float = option(
        "Share of repositories whose rows go to the test split.", default=0.0, share=True, decides="row"
    )
    split_by: SplitBy = option(
        "What is never divided by the split: a `repository`, or a `session` for traces of one repository.",
        default="repository",
        decides="row",
    )
    history_chars: int = option(
        "Characters of earlier turns to put in front of each request.", default=0, minimum=0, decides="row"
    )
    reference_terms: bool = option(
        "Add the categories to the `reward_terms`, as in the reference run.", default=False, decides="row"
    )
    stage: list[str] = option(
        "Your own stage, as module:name of a Map or a Filter in the current folder; it runs on each "
        "scored row before --min-score; may be repeated.",
        default_factory=list,
        decides="row",
    )
    keep_identity: bool = option(
        "Keep the user and host names of the person who recorded a session; otherwise they are replaced. "
        "Secrets, personal e-mail addresses and paths to home folders are replaced either way.",
        default=False,
        decides="row",
    )
    correction_judge: str | None = option(
        "Chat model that decides whether each later message corrects the agent; the messages are sent "
        "to its provider.",
        default=None,
        shown="decided offline",
        decides="row",
    )
    row_judge: str | None = option(
        "Chat model that scores each row that is left from 0 to 100; rows up to 50 are dropped. Their "
        "redacted prompts and contexts are sent to its provider. Use --min-worth 0.3, so that it sees most rows.",
        default=None,
        shown="decided offline",
        decides="row",
    )
    judge_provider: str = option(
        "Provider of --row-judge and --correction-judge: hf, together, openai, chutes or the URL of a server.",
        default="hf",
        decides="row",
    )
    max_samples: int | None = option("Keep the best N rows.", default=None, minimum=1, shown="all", decides="output")
    dedupe: bool = option(
        "Keep only the best of duplicate rows, from forks, snapshots and equal prompts.",
        default=True,
        decides="output",
    )
    seed: int = option("Seed that decides which of equal scores --max-samples keeps.", default=42, decides="output")
    licence: str | None = option(
        "SPDX id of the licence of the traces, for the card.",
        default=None,
        shown="that of a dataset on the Hub",
        flag="--license",
        decides="output",
    )

    def __post_init__(self) -> None:
        """Check the values; raises OutputError."""
        if not math.isfinite(self.min_score):
            raise OutputError(f"--min-score {self.min_score} keeps or drops all; use a number.")
        check_shares(self)
        if self.judge_provider != "hf" and not (self.correction_judge or self.row_judge):
            raise OutputError(
                "--judge-provider is the provider of --row-judge and --correction-judge; give one of them."
            )
        if self.max_samples is not None and self.max_samples < 1:
            raise OutputError(f"--max-samples {self.max_samples} keeps no row; use at least 1.")
        self.licence = check_licence(self.licence)

    def stages(self, recorder: Sequence[str] = ()) -> tuple[Stage, ...]:
        """Return the stages that make the rows; `recorder` are names to redact."""
        return pipeline(
            self.unit,
            self.min_score,
            self.test_fraction,
            self.history_chars,
            self.split_by,
            self.reference_terms,
            self._open_judge(self.correction_judge),
            self.stage,
            None if self.keep_identity else recorder,
            self.min_worth,
            self._open_judge(self.row_judge),
        )

    def _open_judge(self, model: str | None) -> Judge | None:
        return Judge(model, self.judge_provider) if model else None


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
    opened = _open(source, out)
    with folders.only_run(out) as work:
        records = _run_shards(opened, range(len(opened.shards)), work, options, workers, engine)
        files = [sessions.files_of(work, index) for index in records]
        return _publish(_redact_names(opened), files, [*records.values()], work, out, report_options(options))


def run_part(
    source: str | Source,
    out: Path,
    part: tuple[int, int],
    options: FilterOptions | None = None,
    *,
    workers: int = 1,
    engine: EngineName = "local",
) -> Json:
    """Run every Nth shard, as part I of N, and return the content of `part.json`, with `dropped`."""
    options, out = options or FilterOptions(), out.resolve()
    opened = _open(source, out)
    earlier = folders.read_json(out / folders.PART) if folders.mark_of(out) == folders.PART else {}
    if earlier and (earlier["part"], earlier["parts"]) != part:
        raise OutputError(f"`{out}` holds part {earlier['part']} of {earlier['parts']}; use a folder for each part.")
    with folders.only_run(out, folders.PART) as work:
        numbers = range(part[0] - 1, len(opened.shards), part[1])
        records = _run_shards(opened, numbers, work, options, workers, engine)
        # The files of the run are linked, not moved, so that it can be resumed after a kill.
        finished = folders.make_output(work, *sessions.OUTPUTS)
        for index in records:
            for kind, file in sessions.files_of(work, index).items():
                link_or_copy(file, sessions.files_of(finished, index)[kind])
        content = _describe_part(part, opened, options, records)
        (finished / folders.PART).write_text(json.dumps(content, indent=2) + "\n")
        folders.publish_folder(finished, out)
    dropped = Counter[str]()
    counts = sum_counts(records.values())
    for reasons in counts.get("dropped", {}).values():
        dropped.update(reasons)
    return {**content, "dropped": dict(sorted(dropped.items())), **report_left_out(counts, dropped)}


def _describe_part(part: tuple[int, int], source: Source, options: FilterOptions, records: Mapping[int, Json]) -> Json:
    """Return the content of `part.json`, the same on every machine and with redacted file names."""
    redacted = _redact_names(source)
    shards = [
        {**sessions.describe(shard), "path": renamed.path}
        for shard, renamed in zip(source.shards, redacted.shards, strict=True)
    ]
    return {
        "pimono_sdpo": __version__,
        "part": part[0],
        "parts": part[1],
        "source": {
            "name": redacted.name,
            "kind": source.kind,
            "revision": source.revision,
            "shards": shards,
            "others": redacted.others,
        },
        "upstream": source.upstream,
        "options": resume_key(options),
        "code": code_of(sessions.filter_shard, options.stages(source.recorder)),
        "sessions": sum(source.shards[index].sessions for index in records),
        **{kind: sum(one["rows"][kind] for one in records.values()) for kind in (sessions.ROWS, sessions.REJECTS)},
        # `made_from` has the times of one machine.
        "records": {index: {**one, "made_from": None} for index, one in records.items()},
    }


def merge_parts(parts: Sequence[Path], out: Path, options: FilterOptions | None = None) -> Json:
    """Merge the parts of a source under `out`, to the same bytes as a single run; return the report.

    The options that affect each row are taken from the parts.
    """
    options, out = options or FilterOptions(), out.resolve()
    for folder in parts:
        folders.require_disjoint(folder.resolve(), out)
    source, files, records, row_options = _read_parts(parts)
    with folders.only_run(out) as work:
        return _publish(source, files, records, work, out, report_options(options) | row_options)


def _read_parts(parts: Sequence[Path]) -> tuple[Source, list[Files], list[Json], Json]:
    """Return the source of the parts, the files and records of all its shards, and the options of the parts."""
    by_number: dict[int, tuple[Path, Json]] = {}
    first: Json = {}
    for folder in parts:
        if not folder.is_dir() or folders.mark_of(folder) != folders.PART:
            raise SourceError(f"`{folder}` is not a part of a divided run; give folders that `filter --shard` wrote.")
        part = json.loads((folder / folders.PART).read_bytes())
        first = first or part
        if different := [name for name in SHARED_KEYS if part[name] != first[name]]:
            raise SourceError(
                f"`{folder}` and `{parts[0]}` come from different runs ({', '.join(different)}); make all parts from "
                "the same files, with the same version and options."
            )
        if part["part"] in by_number:
            raise SourceError(f"Part {part['part']} is in `{by_number[part['part']][0]}` and in `{folder}`; give one.")
        by_number[part["part"]] = folder, part
    if first["pimono_sdpo"] != __version__:
        raise SourceError(
            f"The parts were written by pimono-sdpo {first['pimono_sdpo']}; merge them with that version."
        )
    described, count = first["source"], first["parts"]
    # Parts without shards are not needed.
    missing = [n for n in range(1, min(count, len(described["shards"])) + 1) if n not in by_number]
    if missing:
        wanted = ", ".join(f"--shard {n}/{count}" for n in missing)
        raise SourceError(
            f"The parts of `{described['name']}` are incomplete ({len(missing)} of {count} missing); make them with "
            f"`filter` and {wanted}, and give them too."
        )
    files, records = [], []
    for index in range(len(described["shards"])):
        folder, part = by_number[index % count + 1]
        files.append(sessions.files_of(folder, index))
        records.append(part["records"][str(index)])
        for kind, path in files[-1].items():
            if not path.is_file() or sha256(path) != records[-1]["sha256"][kind]:
                raise SourceError(
                    f"`{folder}` does not hold shard {index:05} whole; copy the part again, or make it again with "
                    f"--shard {part['part']}/{count}."
                )
    kind = described["kind"]
    shards = tuple(
        Shard(kind, one["path"], one["layout"], one["sessions"], one["bytes"]) for one in described["shards"]
    )
    source = Source(
        described["name"], kind, described["revision"], shards, first.get("upstream"), others=described["others"]
    )
    return source, files, records, first["options"]


def _open(source: str | Source, out: Path) -> Source:
    if isinstance(source, Source):
        return source
    if source and Path(source).exists():
        folders.require_disjoint(Path(source).resolve(), out)
    return open_source(source)


def _run_shards(
    opened: Source, numbers: Iterable[int], work: Path, options: FilterOptions, workers: int, engine: EngineName
) -> dict[int, Json]:
    """Run the shards of these numbers, with a progress bar, and return their records."""
    shards = {index: opened.shards[index] for index in numbers}
    parts = sessions.session_parts(shards, options.stages(opened.recorder), resume_key(options))
    return run_parts(parts, work, sessions.OUTPUTS, desc="filter", unit="session", engine=engine_of(engine, workers))


def _publish(source: Source, files: list[Files], records: list[Json], work: Path, out: Path, options: Json) -> Json:
    """Choose among the rows of all shards, write the report and the card, and publish the folder."""
    finished, dropped = choose_rows(files, work, options["max_samples"], options["seed"], options["dedupe"])
    counts = sum_counts(records)
    report = build_report(source.describe(), options, WEIGHTS, counts, dropped, finished)
    report |= report_left_out(counts, report["drop_reasons"], source.others)
    if unreadable := sessions.list_unreadable(counts):
        report["bytes"]["unreadable"] = sum(unreadable.values())
    if not report["kept"]:
        folders.remove(work, folders.LOCK)
        raise explain_empty(report, _advise(report))
    if os.environ.get(STRICT) == "1":
        refuse_drift(report)
    (finished / "README.md").write_text(render_dataset_card(report))
    folders.publish_folder(finished, out, report)
    return report


def _redact_names(source: Source) -> Source:
    """Redact file names like texts, since they are in the report and the card."""
    shards = tuple(replace(s, path=redact_text(s.path, "")[0]) for s in source.shards)
    others = tuple(redact_text(name, "")[0] for name in source.others)
    return replace(source, name=redact_text(source.name, "")[0], shards=shards, others=others)


def _advise(report: Json) -> str:
    """Return advice for a run without rows."""
    own = {name.partition(":")[0].rpartition(".")[2] for name in report["options"]["stage"]}
    if dropping := [one["stage"] for one in report["stages"] if one["stage"] in own and one["dropped"]]:
        return f"keep more rows in your stage `{dropping[0]}`, or leave it out"
    if "below_min_score" in report["drop_reasons"]:
        return "lower --min-score"
    if "not_judged" in report["drop_reasons"]:
        return "use a --row-judge that answers with a number"
    if "judged_not_worth_it" in report["drop_reasons"]:
        return "use another --row-judge or leave it out"
    if "hardly_worth_it" in report["drop_reasons"]:
        return "lower --min-worth"
    return "use traces with tool errors, failed commands or user corrections"
