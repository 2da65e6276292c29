"""Duels the challenger won to rows for SFT, DPO or SDPO: a dataset folder of their own.

reads   DIR/result/data/final-*.parquet, or those of other buckets
writes  OUT/data/train-*.parquet, OUT/rejects, report.json, README.md
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimono_sdpo.errors import EmptySelection, SourceError

if TYPE_CHECKING:
    from pimono_sdpo.runs.tables import Made
    from pimono_sdpo.stage import Stage
    from processors.duel.export import Kind

Json = dict[str, Any]
STAGES = {"sft": "steps", "dpo": "pairs", "sdpo": "sdpo"}


def run_duel_rows(
    folder: Path,
    kind: "Kind",
    out: Path,
    buckets: Sequence[str] = ("final",),
    format: str = "trl",
    licence: str | None = None,
) -> Json:
    """Write the turns of these buckets as rows of a kind and return the report.

    Raises SourceError when nothing was scored, EmptySelection when no row is left, OutputError.
    """
    from pimono_sdpo.dataset_writer import DatasetSpec, explain_empty, write_dataset
    from pimono_sdpo.duel.result import RESULT
    from pimono_sdpo.runs.folders import REPORT, apart
    from pimono_sdpo.runs.tables import Part, Table, code_of
    from pimono_sdpo.runs.workers import sha256
    from processors.duel import export

    data = folder / RESULT / "data"
    if not (folder / RESULT / REPORT).is_file():
        raise SourceError(f"`{folder}` holds no scored duel; run `pimono-sdpo duel` to its end.")
    apart((folder / RESULT).resolve(), out.resolve())
    stages = export.build_stages(kind)
    files = [path for name in buckets for path in sorted(data.glob(f"{name}-*.parquet"))]
    made_by = {"stages": code_of(stages), "kind": kind}
    parts = [
        Part({"file": sha256(path), **made_by}, 1, partial(_made, path, stages)) for path in files
    ]
    options: Json = {"buckets": " ".join(buckets)}
    name = folder.resolve().name
    spec = DatasetSpec(STAGES[kind], name, "duel", options, format, licence)  # type: ignore[arg-type]
    report = write_dataset(spec, parts, Table(*export.TABLES[kind]), out)
    if not report["rows"]:
        raise EmptySelection(explain_empty(report, "take another bucket with --bucket"))
    return report


def _made(path: Path, stages: "Sequence[Stage]") -> "Iterator[Made]":
    from pimono_sdpo.runs.tables import read_rows, through

    for rows in read_rows(path):
        made = through(rows, stages)
        made.counts["turns"] += len(rows)
        yield made
