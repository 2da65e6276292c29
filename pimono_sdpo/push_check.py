"""What must hold of a finished folder before it is published: ours, whole, no secrets."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.errors import OutputError
from pimono_sdpo.runs.folders import PICTURES, REPORT, mark_of, read_json

CARD = "README.md"
ALONE = (CARD, REPORT, "report.md", *PICTURES)
SHARDS = ("data", "rejects")


def checked_files(
    folder: Path,
    lint: Callable[[Path], Sequence[str]],
    secrets: Callable[[str], Sequence[str]],
) -> dict[str, Path]:
    """Return the files to publish by their path in the repository, in order.

    `lint` says what is wrong with a card, `secrets` names the kinds of secrets in a text. Raises
    OutputError when the folder is not of a finished filter run, a shard is damaged, the card would
    be refused, or a text still holds what looks like a secret.
    """
    if mark_of(folder) != REPORT:
        raise OutputError(
            f"`{folder}` is no folder that `filter` or `merge` has finished; give one, as it was "
            "written."
        )
    paths = [folder / name for name in ALONE]
    paths += [path for kind in SHARDS for path in sorted((folder / kind).glob("*.parquet"))]
    files = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    if CARD not in files:
        raise OutputError(f"`{folder}` has no {CARD}; filter again.")
    problems = lint(files[CARD])
    if problems:
        raise OutputError(f"The Hub may refuse `{files[CARD]}`: {problems[0]} Mend it and push.")
    for path in files.values():
        for column, text in _texts_of(path):
            kinds = secrets(text)
            if kinds:
                where = f" in its column `{column}`" if column else ""
                raise OutputError(
                    f"`{path}` holds what looks like a secret ({', '.join(sorted(set(kinds)))})"
                    f"{where}, so nothing was pushed; take it out of the traces and filter again."
                )
    return files


def _texts_of(path: Path) -> Iterator[tuple[str, str]]:
    """Every text of a file, with its column (the key of a JSON object, nothing in a card)."""
    match path.suffix:
        case ".md":
            yield "", path.read_text()
        case ".json":
            report = read_json(path)
            # Value by value, as they were redacted: what escapes look like is no concern here.
            for key, value in report.items() if isinstance(report, dict) else ():
                yield from ((key, text) for text in _texts_in(value))
        case ".parquet":
            yield from _texts_of_shard(path)


def _texts_of_shard(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with pq.ParquetFile(path) as shard:
            for batch in shard.iter_batches():
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    yield from ((name, text) for text in _texts_in_array(column))
    except pa.ArrowInvalid as error:
        raise OutputError(
            f"`{path}` is damaged ({str(error).splitlines()[0]}); filter again."
        ) from error


def _texts_in_array(array: pa.Array) -> Iterator[str]:
    """Every different text in an array, however deep it lies."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        # JSON: what its texts are, once their escapes are read.
        for text in array.storage.unique().to_pylist():
            yield from _texts_in(json.loads(text) if text else None)
    elif pa.types.is_struct(kind):
        # Arrow cannot flatten JSON; the children hold all there is, and what is null besides.
        for number in range(kind.num_fields):
            yield from _texts_in_array(array.field(number))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _texts_in_array(array.values)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield from (text for text in array.unique().to_pylist() if text)


def _texts_in(value: object) -> Iterator[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, below in value.items():
            yield key
            yield from _texts_in(below)
    elif isinstance(value, list):
        for below in value:
            yield from _texts_in(below)
