"""Write the rows and rejects of finished parts to the files that are published.

reads   the files of parts, in order; those with rejects have a column `kept`
writes  OUT/data/SPLIT-NNNNN-of-NNNNN.parquet and OUT/rejects/rejects-NNNNN-of-NNNNN.parquet
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Features
from numpy.typing import NDArray

from pimono_sdpo.errors import SourceError
from pimono_sdpo.runs.engine import Made
from pimono_sdpo.runs.parquet import read_tables
from pimono_sdpo.stage import KEPT

SPLITS = ("train", "test")
REJECTS = "rejects"
FILE_BYTES = 256_000_000
# A reader holds a row group in memory, and many small ones take long to read.
GROUP_BYTES = 16_000_000
# Rows in memory are about so many times as large as in a part.
COMPRESSION = 4
# The rows that are rejected by a comparison with others: the numbers of the part and of the row there, and why.
DROPS = pa.schema(
    [("part", pa.int64()), ("row", pa.int64()), *((name, pa.string()) for name in ("stage", "drop_reason", "detail"))]
)
Json = dict[str, Any]


class Files:
    """Parquet files of at most FILE_BYTES with a common schema; without rows there are none."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema) -> None:
        self.folder, self.name, self.schema, self.rows = folder, name, schema, 0
        self._files: list[Path] = []
        self._writer: pq.ParquetWriter | None = None
        # The row group that is collected, and the size of the file.
        self._group: list[pa.Table] = []
        self._group_bytes = self._file_bytes = 0

    def write(self, table: pa.Table) -> None:
        """Add the rows of a table, which may have other columns as well."""
        if table.num_rows:
            table = table.select(self.schema.names).replace_schema_metadata(self.schema.metadata)
            self._group.append(table)
            self._group_bytes += table.nbytes
            self.rows += table.num_rows
        if self._group_bytes > GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        # The size in memory is an upper bound of that in the file.
        if self._writer is None or self._file_bytes + self._group_bytes > FILE_BYTES:
            self._close_file()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._files.append(self.folder / f"{self.name}-{len(self._files):05}.tmp")
            self._writer = pq.ParquetWriter(self._files[-1], self.schema, compression="zstd")
        self._writer.write_table(pa.concat_tables(self._group))
        self._file_bytes = self._files[-1].stat().st_size
        self._group, self._group_bytes = [], 0

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def close(self) -> list[Path]:
        """Write what is left, and rename the files to FOLDER/NAME-NNNNN-of-NNNNN.parquet."""
        if self._group:
            self._write_group()
        self._close_file()
        total = len(self._files)
        return [
            file.replace(self.folder / f"{self.name}-{number:05}-of-{total:05}.parquet")
            for number, file in enumerate(self._files)
        ]


class _Sorter:
    """Sorts rows by rank: in files of rows with near ranks, each of which fits into memory."""

    def __init__(self, folder: Path, schema: pa.Schema, rows: int, size: int) -> None:
        self.folder, self.schema = folder, schema
        self.step = -(-rows // (1 + COMPRESSION * size // FILE_BYTES)) or 1
        self.folder.mkdir(parents=True)
        self.writers: dict[int, pa.ipc.RecordBatchFileWriter] = {}

    def add(self, table: pa.Table, ranks: NDArray[np.int64]) -> None:
        table = table.select(self.schema.names).append_column("rank", pa.array(ranks))
        for near in np.unique(ranks // self.step):
            if near not in self.writers:
                self.writers[near] = pa.ipc.new_file(self.folder / f"{near}.arrow", table.schema)
            self.writers[near].write_table(table.filter(pa.array(ranks // self.step == near)))

    def read(self) -> Iterator[pa.Table]:
        """Yield all rows in order; afterwards they are removed."""
        for near in sorted(self.writers):
            self.writers[near].close()
            file = self.folder / f"{near}.arrow"
            with pa.OSFile(str(file)) as source:
                table = pa.ipc.open_file(source).read_all().sort_by("rank").drop_columns(["rank"])
            file.unlink()
            step = max(1, len(table) * GROUP_BYTES // max(table.nbytes, 1))
            yield from (table.slice(at, step) for at in range(0, len(table), step))
        self.folder.rmdir()


def write_files(
    parts: Sequence[Made],
    out: Path,
    rows: Features,
    rejects: Features | None = None,
    drops: pa.Table | None = None,
    split: str = "train",
    ranked: pa.Table | None = None,
) -> Json:
    """Write the rows of parts to OUT/data and their rejects to OUT/rejects; return their numbers and hashes.

    `drops` are sorted; these rows follow the other rejects of their part. `split` is for rows without such a column.
    `ranked` are the numbers of part and row of all other rows, in the order in which they are written.
    """
    splits = SPLITS if "split" in rows else (split,)
    files = {name: Files(out / "data", name, rows.arrow_schema) for name in splits}
    rejected = Files(out / REJECTS, REJECTS, Features(rejects or {}).arrow_schema)
    drops = DROPS.empty_table() if drops is None else drops
    numbers = drops["part"].to_numpy()
    sorter = None
    if ranked is not None:
        size = sum(part.file.stat().st_size for part in parts)
        sorter = _Sorter(out / "sorted", rows.arrow_schema, len(ranked), size)
        ranked = ranked.append_column("rank", pa.array(np.arange(len(ranked)))).sort_by(
            [("part", "ascending"), ("row", "ascending")]
        )
    written = 0

    def write(table: pa.Table) -> None:
        for name, some in files.items():
            some.write(table.filter(pc.equal(table["split"], name)) if "split" in rows else table)

    for number, part in enumerate(parts):
        start, end = np.searchsorted(numbers, [number, number + 1])
        dropped = drops.slice(start, end - start)
        places = dropped["row"].to_numpy()
        first, late = 0, []
        for table in read_part(part.file):
            kept = table[KEPT].to_numpy() if rejects else np.ones(table.num_rows, bool)
            rejected.write(table.filter(pa.array(~kept)))
            start, end = np.searchsorted(places, [first, first + table.num_rows])
            if rejects and end > start:
                at = places[start:end] - first
                late.append(_reject(table.select(list(rejects)).take(at), dropped.slice(start, end - start)))
                kept[at] = False
            first += table.num_rows
            table = table.filter(pa.array(kept))
            if ranked is None or sorter is None:
                write(table)
            else:
                sorter.add(table, ranked["rank"].slice(written, len(table)).to_numpy())
            written += len(table)
        for table in late:
            rejected.write(table)
    for table in sorter.read() if sorter else ():
        write(table)
    hashes = {"data": [hash_file(path) for some in files.values() for path in some.close()]}
    hashes[REJECTS] = [*map(hash_file, rejected.close())]
    counts = {name: some.rows for name, some in files.items() if some.rows}
    return {"splits": counts, "sha256": hashes, "rejected": rejected.rows, "rows": sum(counts.values())}


def read_part(file: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield tables of a part with these columns or all; a damaged part is removed, so that it is made again."""
    try:
        yield from read_tables(file, columns)
    except SourceError as error:
        file.unlink(missing_ok=True)
        raise SourceError(
            f"{str(error).partition(';')[0]}; run the same command again, which makes this part again."
        ) from error


def _reject(rows: pa.Table, why: pa.Table) -> pa.Table:
    """Return rows as rejects; what their details say already comes first."""
    detail = pc.coalesce(pc.binary_join_element_wise(rows["detail"], why["detail"], ", "), rows["detail"])
    for name, column in (("stage", why["stage"]), ("drop_reason", why["drop_reason"]), ("detail", detail)):
        if name in rows.column_names:
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def hash_file(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
