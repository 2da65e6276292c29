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
    from datasets import Features

    from pimono_sdpo.runs.engine import Piece
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
    from pimono_sdpo.runs.engine import Part, sha256
    from pimono_sdpo.runs.folders import REPORT, require_disjoint
    from processors.duel import export

    data = folder / RESULT / "data"
    if not (folder / RESULT / REPORT).is_file():
        raise SourceError(f"`{folder}` holds no scored duel; run `pimono-sdpo duel` to its end.")
    require_disjoint((folder / RESULT).resolve(), out.resolve())
    stages = export.build_stages(kind)
    files = [path for name in buckets for path in sorted(data.glob(f"{name}-*.parquet"))]
    rows, rejects = export.TABLES[kind]
    parts = [
        Part(
            number,
            path.name,
            1,
            {"file": sha256(path)},
            {"kind": kind},
            partial(_export, path, stages, rows, rejects),
            tuple(stages),
        )
        for number, path in enumerate(files)
    ]
    options: Json = {"buckets": " ".join(buckets)}
    name = folder.resolve().name
    spec = DatasetSpec(STAGES[kind], name, "duel", options, format, licence)  # type: ignore[arg-type]
    report = write_dataset(spec, parts, (rows, rejects), out)
    if not report["rows"]:
        raise EmptySelection(explain_empty(report, "take another bucket with --bucket"))
    return report


def _export(
    path: Path, stages: "Sequence[Stage]", rows: "Features", rejects: "Features"
) -> "Iterator[Piece]":
    from pimono_sdpo.runs.parquet import read_tables
    from pimono_sdpo.runs.sessions import rows_and_rejects

    for table in read_tables(path):
        yield rows_and_rejects(table, stages, rows, rejects, "turns")
