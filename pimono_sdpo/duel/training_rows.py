"""Turn duels that the challenger won into a folder of rows for SFT, DPO or SDPO.

reads   DIR/result/data/final-*.parquet, or those of other buckets
writes  OUT/data/train-*.parquet, OUT/rejects, report.json, README.md
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pimono_sdpo.dataset_writer import DatasetSpec, Format, explain_empty, write_dataset
from pimono_sdpo.duel.result import RESULT
from pimono_sdpo.errors import EmptySelection, SourceError
from pimono_sdpo.runs.folders import REPORT, apart
from pimono_sdpo.runs.tables import Made, Part, Table, code_of, read_rows, through
from pimono_sdpo.runs.workers import sha256
from pimono_sdpo.stage import Stage
from processors.duel.export import TABLES, Kind, build_stages

Json = dict[str, Any]
# The stage whose columns the rows have, by kind.
STAGES = {"sft": "steps", "dpo": "pairs", "sdpo": "sdpo"}


def write_training_rows(
    folder: Path,
    kind: Kind,
    out: Path,
    buckets: Sequence[str] = ("final",),
    format: Format = "trl",
    licence: str | None = None,
) -> Json:
    """Write the turns of these buckets as rows of a kind and return the report.

    Raises SourceError when the duel has no score, EmptySelection when no row is left, OutputError.
    """
    result = folder / RESULT
    if not (result / REPORT).is_file():
        raise SourceError(f"`{folder}` has no scored duel; run all stages of `duel` first.")
    apart(result.resolve(), out.resolve())
    stages = build_stages(kind)
    files = [
        path for name in buckets for path in sorted((result / "data").glob(f"{name}-*.parquet"))
    ]
    made_by = {"stages": code_of(stages), "kind": kind}
    parts = [
        Part({"file": sha256(path), **made_by}, 1, partial(_export, path, stages)) for path in files
    ]
    options: Json = {"buckets": " ".join(buckets)}
    name = folder.resolve().name
    spec = DatasetSpec(STAGES[kind], name, "duel", options, format, licence)  # type: ignore[arg-type]
    report = write_dataset(spec, parts, Table(*TABLES[kind]), out)
    if not report["rows"]:
        raise EmptySelection(explain_empty(report, "take another bucket with --bucket"))
    return report


def _export(path: Path, stages: Sequence[Stage]) -> Iterator[Made]:
    for rows in read_rows(path):
        made = through(rows, stages)
        made.counts["turns"] += len(rows)
        yield made
