"""Write what becomes of the parts of an input: rows and rejects, resumed part by part.

Work happens in the folder of `only_run`. Each part ends with a small JSON that says what it was
made from; a rerun skips what is there for the same input, code and options.

    work/parts/NNNNN.{rows,rejects}.parquet, NNNNN.json     while a run lasts
    work/out/data/{train,test}-*.parquet, work/out/rejects/rejects-*.parquet
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset, Features

from pimono_sdpo.runs.progress import Progress
from pimono_sdpo.runs.workers import sha256
from pimono_sdpo.stage import Filter, Row, Stage, apply_rows, name_of

SPLITS = ("train", "test")
SLICE_CHARS = 4_000_000
SHARD_BYTES = 256_000_000
READ_ROWS = 64
Json = dict[str, Any]


@dataclass
class Made:
    """What became of some input: rows, rejects with `drop_reason`, and counts for the report."""

    rows: list[Row] = field(default_factory=list)
    rejects: list[Row] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Part:
    """A unit of work; `run` yields what is made, a piece at a time; `units` are for the bar."""

    made_from: Json
    units: int
    run: Callable[[], Iterable[Made]]


@dataclass(frozen=True)
class Table:
    """The columns of rows and of rejects."""

    rows: Features
    rejects: Features


def through(rows: Iterable[Row], stages: Sequence[Stage]) -> Made:
    """Run stages over rows in memory; what a filter drops gets its reason."""
    made = Made()
    kept = list(rows)
    for stage in stages:
        if not isinstance(stage, Filter):
            kept = apply_rows(kept, stage)
            continue
        stays = []
        for row in kept:
            reason = stage.fn(row)
            if reason is None:
                stays.append(row)
            else:
                made.rejects.append({**row, "drop_reason": reason})
        kept = stays
    made.rows = kept
    return made


def code_of(stages: Sequence[Stage]) -> list[list[str]]:
    """Return names and hashes of stages, for `made_from`."""
    return [[name_of(stage), stage.code] for stage in stages]


def read_rows(file: Path) -> Iterator[list[Row]]:
    """Yield the decoded rows of a parquet file, some at a time."""
    with pq.ParquetFile(file) as parquet:
        for batch in parquet.iter_batches(READ_ROWS):
            yield list(Dataset(pa.Table.from_batches([batch])))


def encoded(rows: Sequence[Row], features: Features) -> pa.Table:
    """Return rows as a table of just these columns."""
    if not rows:
        return features.arrow_schema.empty_table()
    named = [{name: row.get(name) for name in features} for row in rows]
    table: pa.Table = Dataset.from_list(named, features=features).data.table
    return table.cast(features.arrow_schema)


def run_parts(parts: Sequence[Part], work: Path, table: Table, noun: str) -> list[Json]:
    """Run every part that is not done yet, under a bar; return their records in order."""
    folder = work / "parts"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.suffix == ".tmp" or int(path.name.split(".")[0]) >= len(parts):
            path.unlink()
    records = []
    with Progress(sum(part.units for part in parts), len(parts), noun, "run") as progress:
        for number, part in enumerate(parts):
            done = folder / f"{number:05}.json"
            record = json.loads(done.read_text()) if done.exists() else {}
            if record.get("made_from") == part.made_from:
                progress.resumed(part.units)
            else:
                done.unlink(missing_ok=True)
                record = _run(part, folder, number, table)
                progress.sessions(part.units)
                progress.shard()
            records.append(record)
    return records


def _run(part: Part, folder: Path, number: int, table: Table) -> Json:
    counts, dropped = Counter[str](), Counter[str]()
    files = {kind: folder / f"{number:05}.{kind}.parquet" for kind in ("rows", "rejects")}
    temporary = {kind: path.with_suffix(".tmp") for kind, path in files.items()}
    with (
        pq.ParquetWriter(temporary["rows"], table.rows.arrow_schema, compression="zstd") as kept,
        pq.ParquetWriter(temporary["rejects"], table.rejects.arrow_schema) as rejected,
    ):
        for made in part.run():
            counts += made.counts
            dropped.update(str(row["drop_reason"]) for row in made.rejects)
            for rows in _slices(made.rows):
                kept.write_table(encoded(rows, table.rows))
            for rows in _slices(made.rejects):
                rejected.write_table(encoded(rows, table.rejects))
    for kind, path in files.items():
        temporary[kind].replace(path)
    record = {"made_from": part.made_from, "counts": dict(sorted(counts.items()))}
    record["dropped"] = dict(sorted(dropped.items()))
    done = folder / f"{number:05}.tmp"
    done.write_text(json.dumps(record))
    done.replace(folder / f"{number:05}.json")
    return record


def _slices(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield so many rows at a time as can be encoded in little memory."""
    kept: list[Row] = []
    chars = 0
    for row in rows:
        kept.append(row)
        chars += _chars(row)
        if chars > SLICE_CHARS:
            yield kept
            kept, chars = [], 0
    if kept:
        yield kept


def _chars(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_chars(one) for one in value.values())
    if isinstance(value, list):
        return sum(map(_chars, value))
    return 8


def assemble(work: Path, parts: int, table: Table) -> tuple[Path, Json]:
    """Put the parts together; return the folder and what it holds.

    What it holds: rows per split, rejects, and a hash over the files of each.
    """
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    folder = work / "parts"
    held: Json = {"splits": {}, "sha256": {}}
    shards: list[Path] = []
    for split in SPLITS:
        kept = (
            rows.filter(pc.equal(rows.column("split"), split))
            for rows in _tables(folder, parts, "rows")
        )
        count, files = _write(kept, out / "data", split, table.rows)
        shards += files
        if count:
            held["splits"][split] = count
    held["rejected"], rejects = _write(
        _tables(folder, parts, "rejects"), out / "rejects", "rejects", table.rejects
    )
    held["rows"] = sum(held["splits"].values())
    for name, files in (("data", shards), ("rejects", rejects)):
        held["sha256"][name] = [sha256(file) for file in files]
    return out, held


def _tables(folder: Path, parts: int, kind: str) -> Iterator[pa.Table]:
    for number in range(parts):
        with pq.ParquetFile(folder / f"{number:05}.{kind}.parquet") as parquet:
            for batch in parquet.iter_batches(READ_ROWS):
                yield pa.Table.from_batches([batch])


def _write(
    tables: Iterable[pa.Table], folder: Path, name: str, features: Features
) -> tuple[int, list[Path]]:
    """Write tables to files of about SHARD_BYTES, named when their number is known."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    writer: pq.ParquetWriter | None = None
    count = 0
    for table in tables:
        if not table.num_rows:
            continue
        if writer is None:
            written.append(folder / f"{name}-{len(written):05}.tmp")
            writer = pq.ParquetWriter(written[-1], features.arrow_schema, compression="zstd")
        writer.write_table(table)
        count += table.num_rows
        if written[-1].stat().st_size > SHARD_BYTES:
            writer.close()
            writer = None
    if writer is not None:
        writer.close()
    final = []
    for index, path in enumerate(written):
        final.append(path.replace(folder / f"{name}-{index:05}-of-{len(written):05}.parquet"))
    return count, final
