"""What steps and pairs share: parts to a folder with report, card and the lines of an export."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pimono_sdpo import __version__
from pimono_sdpo.errors import OutputError

if TYPE_CHECKING:
    from datasets import Features

    from pimono_sdpo.runs.engine import Part
    from pimono_sdpo.suites.suite import Suite

Format = Literal["trl", "together"]
FORMATS: tuple[Format, ...] = get_args(Format)
TOGETHER = "together"
Json = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What is made of what: the name of the stage, its source and options, for report and card.

    No row to train on may be of a task of `test_suite`.
    """

    stage: Literal["steps", "pairs", "sdpo"]
    source: str
    source_kind: str
    options: Json
    format: str
    licence: str | None
    warnings: list[str] = field(default_factory=list)
    test_suite: "Suite | None" = None


def make(
    asked: Asked, parts: "Sequence[Part]", table: "tuple[Features, Features]", out: Path
) -> Json:
    """Run the parts, with rows and rejects of these columns, and publish `out`; return its report.

    `out` gets `data/`, `rejects/`, `report.json`, `README.md`, and with the format `together` its
    lines. A run that keeps nothing publishes its rejects. Raises OutputError, and Leakage for rows
    of tasks that are held out; then `out` is as it was.
    """
    from cards.render import render_stage_card
    from pimono_sdpo.runs.engine import add_counts, run_parts
    from pimono_sdpo.runs.folders import only_run, publish_folder
    from pimono_sdpo.runs.parquet import join_parts, outputs_of

    out = out.resolve()
    _check_licence(asked.licence)
    with only_run(out) as work:
        records = run_parts(parts, work, outputs_of(*table), desc=asked.stage, unit="run").records
        finished, held = join_parts(work, len(parts), *table)
        options = {**asked.options, **_held_out(finished / "data", held["rows"], asked.test_suite)}
        counts: Json = {}
        for record in records.values():
            add_counts(counts, record["counts"])
        dropped = counts.pop("dropped", {})
        report: Json = {
            "pimono_sdpo": __version__,
            "stage": asked.stage,
            "source": asked.source,
            "source_kind": asked.source_kind,
            "options": options,
            "counts": dict(sorted(counts.items())),
            **held,
            "drop_reasons": dict(sorted(dropped.items())),
            "warnings": asked.warnings,
            "licence": asked.licence,
            "together": _export(finished, asked) if asked.format == TOGETHER else None,
        }
        (finished / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        (finished / "README.md").write_text(render_stage_card(report, table[0]))
        publish_folder(finished, out)
    return report


def _held_out(data: Path, rows: int, suite: "Suite | None") -> Json:
    """Check rows against the tasks that are held out; return what the report says of it."""
    from pimono_sdpo.suites.split import check_leakage, rows_of

    if suite is None:
        return {}
    check_leakage(rows_of(data) if rows else [], suite)
    return {"test_suite": suite.name}


def suite_held_out(path: Path | None) -> "Suite | None":
    """Read the suite that is held out, if one is named; raises SourceError."""
    from pimono_sdpo.suites.suite import load

    return load(path, repos=False) if path is not None else None


def _check_licence(licence: str | None) -> None:
    from cards.lint import LICENCES

    if licence is not None and licence not in LICENCES:
        raise OutputError(
            f"The Hub knows no licence `{licence}`; give an id such as mit or apache-2.0, or "
            "leave --license out."
        )


def _export(finished: Path, asked: Asked) -> Json:
    """Write together/SPLIT.jsonl and SPLIT_meta.jsonl; return the counts of each split."""
    from pimono_sdpo.runs.parquet import SPLITS
    from pimono_sdpo.suites.rollouts import rows_of
    from processors.rollouts.together import dpo_line, sft_line, write_lines

    folder = finished / TOGETHER
    folder.mkdir()
    counts: Json = {}
    for split in SPLITS:
        files = sorted((finished / "data").glob(f"{split}-*.parquet"))
        if files:
            rows = (row for file in files for row in rows_of(file))
            line_of = sft_line if asked.stage == "steps" else dpo_line
            counts[split] = dict(
                sorted(write_lines(rows, line_of, folder / f"{split}.jsonl").items())
            )
    if not any(folder.iterdir()):
        folder.rmdir()
    return counts


def told(report: Json, out: Path) -> str:
    """Sum a report up in a few lines."""
    splits = ", ".join(f"{count} {split}" for split, count in report["splits"].items())
    lines = [f"{report['rows']} {report['stage']}" + (f" ({splits})" if splits else "")]
    reasons = ", ".join(f"{name} {count}" for name, count in report["drop_reasons"].items())
    if reasons:
        lines.append(f"dropped: {reasons}")
    for split, counts in (report["together"] or {}).items():
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        lines.append(f"together/{split}.jsonl: {said}")
    lines += [f"warning: {warning}" for warning in report["warnings"]]
    lines.append(f"rows, rejects, report.json and README.md are in {out}")
    return "\n".join(lines)


def nothing_kept(report: Json, advice: str) -> str:
    """Say in one sentence that no row is left, and what to do."""
    reasons = ", ".join(f"{count} {name}" for name, count in report["drop_reasons"].items())
    found = reasons or "nothing in it comes into question"
    return f"`{report['source']}` gives no {report['stage']} ({found}); {advice}."


def tokenizer_mark(tokenizer: str | None) -> str | None:
    """What tells a tokenizer again: its template and what it makes of a text."""
    if tokenizer is None:
        return None
    import hashlib

    from processors.rollouts.length_filter import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    known = json.dumps([loaded.chat_template, sorted(loaded.get_vocab().items())])
    return hashlib.sha256(known.encode()).hexdigest()


def tokenizer_name(tokenizer: str | None) -> str | None:
    """Name a tokenizer without the machine's path."""
    return Path(tokenizer).resolve().name if tokenizer and Path(tokenizer).exists() else tokenizer


def check_length(tokenizer: str | None, max_length: int | None) -> None:
    """Raise OutputError when only one of both is given."""
    if (tokenizer is None) != (max_length is None):
        raise OutputError(
            "--tokenizer and --max-length go together: the tokens of which model, and how many at "
            "most; give both or neither."
        )
