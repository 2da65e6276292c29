"""Read rows from parquet files, and write files whole or not at all."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features

from pimono_sdpo.errors import SourceError
from pimono_sdpo.stage import BATCH_ROWS, iterate_rows

Json = dict[str, Any]


def read_tables(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield tables of a few rows of a file, with these columns or all; raises SourceError."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
            for batch in parquet.iter_batches(BATCH_ROWS, columns=columns and list(columns)):
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"Cannot read `{path}` ({str(error)[:200]}); write it again.") from error


def read_rows(files: Iterable[Path], columns: Sequence[str] | None = None) -> Iterator[Json]:
    """Yield the decoded rows of files; only a few are in memory at a time."""
    for file in files:
        for table in read_tables(file, columns):
            yield from iterate_rows(table, Features.from_arrow_schema(table.schema))


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
