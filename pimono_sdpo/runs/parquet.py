"""Read and write parquet files, and join the files of parts to data/SPLIT-NNNNN-of-NNNNN.parquet."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Features

from pimono_sdpo.errors import SourceError
from pimono_sdpo.runs.engine import sha256
from pimono_sdpo.runs.folders import make_output
from pimono_sdpo.stage import iterate_rows

SPLITS = ("train", "test")
SHARD_BYTES = 256_000_000
READ_ROWS = 64
Json = dict[str, Any]


def read_tables(path: Path, rows: int = READ_ROWS, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield tables of up to `rows` rows of a file, with these columns or all; raises SourceError."""
    try:
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(rows, columns=columns and list(columns)):
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"Cannot read `{path}` ({str(error)[:200]}); write it again.") from error


def read_rows(files: Iterable[Path], columns: Sequence[str] | None = None, rows: int = READ_ROWS) -> Iterator[Json]:
    """Yield the decoded rows of files; up to `rows` of them are in memory at a time."""
    for file in files:
        for table in read_tables(file, rows, columns):
            yield from iterate_rows(table, Features.from_arrow_schema(table.schema))


def write_tables(path: Path, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Write tables to a file, one row group each."""
    with pq.ParquetWriter(path, schema) as writer:
        for table in tables:
            writer.write_table(table)


def write_rows(path: Path, rows: list[Json], schema: pa.Schema) -> None:
    """Write rows to a file."""
    write_tables(path, [pa.Table.from_pylist(rows, schema)], schema)


def number_files(files: Iterable[Path], folder: Path, name: str) -> list[Path]:
    """Rename the files that have rows to FOLDER/NAME-NNNNN-of-NNNNN.parquet, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    filled = [file for file in files if pq.read_metadata(file).num_rows]
    return [
        file.replace(folder / f"{name}-{index:05}-of-{len(filled):05}.parquet") for index, file in enumerate(filled)
    ]


def link_or_copy(source: Path, target: Path) -> None:
    """Create a hard link to a file, or copy it if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        # On a full disk, the copy fails as well.
        shutil.copyfile(source, target)


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file and rename it."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def join_parts(work: Path, parts: int, rows: Features, rejects: Features) -> tuple[Path, Json]:
    """Write the rows of all parts to WORK/out/data by split, and their rejects to WORK/out/rejects.

    Returns the folder, and for the report the rows of each split, the rejects and the sha256 of all files.
    """
    out = make_output(work)

    def read(kind: str) -> Iterator[pa.Table]:
        for number in range(parts):
            yield from read_tables(work / kind / f"{number:05}.parquet")

    splits: dict[str, int] = {}
    data: list[str] = []
    for split in SPLITS:
        tables = (table.filter(pc.equal(table["split"], split)) for table in read("rows"))
        count, hashes = _write_shards(tables, out / "data", split, rows)
        data += hashes
        if count:
            splits[split] = count
    rejected, hashes = _write_shards(read("rejects"), out / "rejects", "rejects", rejects)
    return out, {
        "splits": splits,
        "sha256": {"data": data, "rejects": hashes},
        "rejected": rejected,
        "rows": sum(splits.values()),
    }


def _write_shards(tables: Iterable[pa.Table], folder: Path, name: str, features: Features) -> tuple[int, list[str]]:
    """Write tables to files of about SHARD_BYTES; return the number of rows and the sha256 of each file."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    count = 0
    filled = (table for table in tables if table.num_rows)
    for first in filled:
        file = folder / f"{name}-{len(written):05}.tmp"
        written.append(file)
        with pq.ParquetWriter(file, features.arrow_schema, compression="zstd") as writer:
            for table in chain([first], filled):
                writer.write_table(table)
                count += table.num_rows
                if file.stat().st_size > SHARD_BYTES:
                    break
    # The final names contain the number of files.
    return count, list(map(sha256, number_files(written, folder, name)))
