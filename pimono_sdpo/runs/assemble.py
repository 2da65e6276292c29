"""Put the finished shards together: judge rows against each other, number the files.

The folders of the run stay as they are, so that a kill in the middle costs only this step.
"""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pimono_sdpo.report import OVER_MAX_SAMPLES
from pimono_sdpo.runs.duplicates import (
    Verdict,
    add_shard,
    judge_duplicates,
    judge_surplus,
    open_candidates,
    verdicts,
)
from pimono_sdpo.schema import REJECT, SDPO_ROW

BATCH_ROWS = 256
SPLITS = ("train", "test")


class ShardFiles(NamedTuple):
    """The three files of a finished shard; they share their name."""

    rows: Path
    prints: Path
    rejects: Path


def files_of(folder: Path, index: int) -> ShardFiles:
    """Find the files of a shard, by its number in the source, in the folder of a run or a part."""
    return ShardFiles(*(folder / kind / f"{index:05}.parquet" for kind in ShardFiles._fields))


def judge(
    shards: Sequence[ShardFiles],
    database_file: Path,
    max_samples: int | None,
    seed: int,
    dedupe: bool,
) -> sqlite3.Connection:
    """Decide which rows stay: one of each story, then the best `max_samples` by score."""
    database = open_candidates(database_file)
    if dedupe or max_samples is not None:
        for number, shard in enumerate(shards):
            add_shard(database, number, shard.rows, shard.prints, seed)
    if dedupe:
        judge_duplicates(database)
    if max_samples is not None:
        judge_surplus(database, max_samples, OVER_MAX_SAMPLES)
    return database


def assemble(
    shards: Sequence[ShardFiles], work: Path, database: sqlite3.Connection
) -> tuple[Path, dict[str, Counter[str]]]:
    """Write `work/out/{data,rejects}/*.parquet`; return the folder and the reasons of each step."""
    out, parts = work / "out", work / "parts"
    for folder in (out, parts):
        shutil.rmtree(folder, ignore_errors=True)
    for name in (*SPLITS, "rejects"):
        (parts / name).mkdir(parents=True)
    dropped: dict[str, Counter[str]] = {"dedupe": Counter(), "choose": Counter()}
    for number, (path, _, rejects) in enumerate(shards):
        against = verdicts(database, number)
        for why in against.values():
            dropped[why.stage][why.reason] += 1
        for split in SPLITS:
            with pq.ParquetWriter(parts / split / path.name, SDPO_ROW.arrow_schema) as writer:
                for first, batch in _batches(path):
                    stays = [first + i not in against for i in range(batch.num_rows)]
                    here = pc.equal(batch.column("split"), split)
                    writer.write_table(batch.filter(pc.and_(pa.array(stays, pa.bool_()), here)))
        with pq.ParquetWriter(parts / "rejects" / path.name, REJECT.arrow_schema) as writer:
            for _, batch in _batches(rejects):
                writer.write_table(batch)
            for first, batch in _batches(path):
                writer.write_table(_rejected(batch, first, against))
    for split in SPLITS:
        _number(parts / split, out / "data", split)
    _number(parts / "rejects", out / "rejects", "rejects")
    shutil.rmtree(parts)
    return out, dropped


def _number(parts: Path, folder: Path, split: str) -> None:
    """Name the files that hold rows; `load_dataset` reads them in this order."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [file for file in sorted(parts.iterdir()) if pq.read_metadata(file).num_rows]
    for index, file in enumerate(files):
        file.replace(folder / f"{split}-{index:05}-of-{len(files):05}.parquet")


def _rejected(rows: pa.Table, first: int, against: dict[int, Verdict]) -> pa.Table:
    columns = ["session_id", "source", "episode", "harness", "score", "counts"]
    rejects = [
        {
            "session_id": row["session_id"],
            "source": row["source"],
            "episode": row["episode"],
            "stage": why.stage,
            "drop_reason": why.reason,
            "detail": ", ".join(
                filter(None, [row["harness"], f"score {row['score']:g}", why.detail])
            ),
            "counts": row["counts"],
        }
        for number, row in enumerate(rows.select(columns).to_pylist(), start=first)
        if (why := against.get(number))
    ]
    return pa.Table.from_pylist(rejects, REJECT.arrow_schema)


def _batches(path: Path) -> Iterator[tuple[int, pa.Table]]:
    """Yield parts of a file with the number of their first row."""
    first = 0
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(BATCH_ROWS):
            yield first, pa.Table.from_batches([batch])
            first += batch.num_rows
