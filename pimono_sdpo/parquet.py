"""Parquet files wherever they are: a folder, a file, a glob, or a dataset of the Hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo import hub
from pimono_sdpo.errors import SourceError

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class ParquetFiles:
    """Files and their bytes, in order; of the Hub, pinned to `revision`, relative to the dataset.

    `names` are relative to the source, so that they do not depend on where it lies.
    """

    source: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    root: Path | None = None
    revision: str | None = None

    @contextmanager
    def open(self, index: int) -> Iterator[pq.ParquetFile]:
        """Open a file without reading more than its footer; raises SourceError."""
        name = self.names[index]
        if self.root is None:
            assert self.revision is not None
            with hub.open_parquet(self.source, name, self.revision) as parquet:
                yield parquet
            return
        try:
            with pq.ParquetFile(self.root / name) as parquet:
                yield parquet
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(
                f"`{name}` cannot be read ({str(error).splitlines()[0]}); get it again or leave it "
                "out."
            ) from error

    def local(self, index: int) -> Path:
        """The file on this machine; one of the Hub is fetched into the cache."""
        if self.root is not None:
            return self.root / self.names[index]
        return hub.download(f"{self.source}/{self.names[index]}", self.revision)


def parquet_files(source: str) -> ParquetFiles:
    """Find the parquet files of a source; raises SourceError.

    Of a Hub dataset those of the viewer's export, or, where there is none, the repository's own.
    """
    path = Path(source)
    if has_magic(source) and not path.exists():
        root = Path(re.split(r"[*?\[]", source)[0] + "x").parent
        found = [Path(name) for name in glob(source, recursive=True)]  # noqa: PTH207
    elif path.is_dir():
        root, found = path, sorted(path.rglob("*.parquet"))
    elif path.exists():
        root, found = path.parent, [path]
    elif HUB_ID.fullmatch(source):
        revision, names, sizes = hub.parquet_of(source)
        return ParquetFiles(source, tuple(names), tuple(sizes), revision=revision)
    else:
        raise SourceError(
            f"`{source}` does not exist and is not a Hub dataset id such as `ns/name`; give "
            "parquet files, their folder, a glob or an id."
        )
    files = sorted(file for file in found if file.suffix == ".parquet" and file.is_file())
    if not files:
        raise SourceError(f"`{source}` holds no .parquet files; give a folder that does.")
    names = [file.relative_to(root).as_posix() for file in files]
    sizes = [file.stat().st_size for file in files]
    return ParquetFiles(path.name, tuple(names), tuple(sizes), root=root)
