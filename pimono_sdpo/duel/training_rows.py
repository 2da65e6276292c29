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
from pimono_sdpo.runs.engine import Part, Piece, sha256
from pimono_sdpo.runs.folders import REPORT, require_disjoint
from pimono_sdpo.runs.parquet import read_tables
from pimono_sdpo.runs.sessions import rows_and_rejects
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
    require_disjoint(result.resolve(), out.resolve())
    stages = build_stages(kind)
    files = [
        path for name in buckets for path in sorted((result / "data").glob(f"{name}-*.parquet"))
    ]
    parts = []
    for number, path in enumerate(files):
        given = {"file": sha256(path)}
        run = partial(_export, path, stages, kind)
        parts.append(Part(number, path.name, 1, given, {"kind": kind}, run, tuple(stages)))
    options: Json = {"buckets": " ".join(buckets)}
    name = folder.resolve().name
    spec = DatasetSpec(STAGES[kind], name, "duel", options, format, licence)  # type: ignore[arg-type]
    report = write_dataset(spec, parts, TABLES[kind], out)
    if not report["rows"]:
        raise EmptySelection(explain_empty(report, "take another bucket with --bucket"))
    return report


def _export(path: Path, stages: Sequence[Stage], kind: Kind) -> Iterator[Piece]:
    for table in read_tables(path):
        yield rows_and_rejects(table, stages, *TABLES[kind], "turns")
