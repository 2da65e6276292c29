"""Put the finished shards together: choose the best rows, number the files, move nothing twice.

The folders of the run stay as they are, so that a kill in the middle costs only this step.
"""

import hashlib
import heapq
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.schema import REJECT, SDPO_ROW

BATCH_ROWS = 256
OVER_MAX_SAMPLES = "over_max_samples"
RowKey = tuple[float, str, str, int]


def choose(shards: Iterable[Path], max_samples: int | None, seed: int) -> RowKey | None:
    """Return the key of the last row that stays, or None when all rows stay.

    Rows are ranked by score; `seed` decides among equal scores.
    """
    if max_samples is None:
        return None
    best = heapq.nsmallest(max_samples + 1, _keys(shards, seed))
    return best[max_samples - 1] if len(best) > max_samples else None


def assemble(work: Path, last: RowKey | None, seed: int) -> tuple[Path, int]:
    """Write `work/out/{data,rejects}/*.parquet`; return the folder and the rows cut by `choose`."""
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    rows = sorted((work / "rows").glob("*.parquet"))
    kept_parts, cut_parts = work / "kept", work / "cut"
    for folder in (kept_parts, cut_parts):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    cut = 0
    for path in rows:
        with (
            pq.ParquetWriter(kept_parts / path.name, SDPO_ROW.arrow_schema) as kept_out,
            pq.ParquetWriter(cut_parts / path.name, REJECT.arrow_schema) as cut_out,
        ):
            with pq.ParquetFile(work / "rejects" / path.name) as rejects:
                for batch in rejects.iter_batches(BATCH_ROWS):
                    cut_out.write_batch(batch)
            for batch in _batches(path):
                stays = [last is None or key <= last for key in _batch_keys(batch, seed)]
                kept_out.write_table(batch.filter(pa.array(stays, pa.bool_())))
                lost = batch.filter(pa.array([not stay for stay in stays], pa.bool_()))
                cut_out.write_table(_cut_rows(lost))
                cut += lost.num_rows
    _number(kept_parts, out / "data", "train")
    _number(cut_parts, out / "rejects", "rejects")
    return out, cut


def _number(parts: Path, folder: Path, split: str) -> None:
    """Name the files that hold rows; `load_dataset` reads them in this order."""
    folder.mkdir(parents=True)
    files = [file for file in sorted(parts.iterdir()) if pq.read_metadata(file).num_rows]
    for index, file in enumerate(files):
        file.replace(folder / f"{split}-{index:05}-of-{len(files):05}.parquet")
    shutil.rmtree(parts)


def _cut_rows(rows: pa.Table) -> pa.Table:
    rejects = [
        {
            "session_id": row["session_id"],
            "source": row["source"],
            "episode": row["episode"],
            "stage": "choose",
            "drop_reason": OVER_MAX_SAMPLES,
            "detail": f"{row['harness']}, score {row['score']:g}",
            "counts": row["counts"],
        }
        for row in rows.select(
            ["session_id", "source", "episode", "harness", "score", "counts"]
        ).to_pylist()
    ]
    return pa.Table.from_pylist(rejects, REJECT.arrow_schema)


def _keys(shards: Iterable[Path], seed: int) -> Iterator[RowKey]:
    for path in shards:
        for batch in _batches(path, ["score", "session_id", "source", "episode"]):
            yield from _batch_keys(batch, seed)


def _batch_keys(batch: pa.Table, seed: int) -> list[RowKey]:
    return [
        (
            -row["score"],
            hashlib.sha256(f"{seed}:{row['session_id']}:{row['episode']}".encode()).hexdigest(),
            row["source"],
            row["episode"],
        )
        for row in batch.select(["score", "session_id", "source", "episode"]).to_pylist()
    ]


def _batches(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(BATCH_ROWS, columns=columns):
            yield pa.Table.from_batches([batch])
