"""Find the session files of a folder, file, glob or Hub dataset, divide them into shards and read them.

The kind of a source is detected by its files and their columns:

    viewer_export   parquet files in any of the layouts of `pimono_sdpo.traces.layouts`
    jsonl           raw session files, one session each, also compressed (.gz, .zst) or in UTF-16
    sqlite          the sessions in the database of an agent, see `pimono_sdpo.traces.stores`
    dataset         a folder written by `Dataset.save_to_disk`
    hub             `ns/name`, read at refs/convert/parquet and pinned to its commit

Files of `hf://datasets/...` and `hf://buckets/...` are downloaded first.
"""

import codecs
import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from errno import ENOENT
from fnmatch import fnmatchcase
from glob import glob, has_magic
from pathlib import Path, PurePath
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, IterableDataset, load_from_disk

from pimono_sdpo.errors import SourceError
from pimono_sdpo.schema import SESSION
from pimono_sdpo.stage import iterate_rows
from pimono_sdpo.text import describe_size
from pimono_sdpo.traces import hub
from pimono_sdpo.traces.harness import HARNESSES, hermes, opencode
from pimono_sdpo.traces.harness.simple import ROLLOUT_COLUMNS
from pimono_sdpo.traces.layouts import MESSAGE_COLUMNS, READ_COLUMNS, Layout, convert_table, detect_layout, ensure_utf8
from pimono_sdpo.traces.stores import BROKEN, StoredSession, is_database, list_stored, read_stored
from pimono_sdpo.traces.trajectories.openai_messages import split_rows

logger = logging.getLogger(__name__)

# The agents whose sessions are read, in a sentence.
AGENTS = f"{', '.join(one.name for one in HARNESSES[:-1])} or {HARNESSES[-1].name}"
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files in order; those of the Hub are pinned to `revision`.

    `names` are relative to the source, so that they are the same on every machine.
    """

    source: str
    names: tuple[str, ...]
    root: Path | None = None
    revision: str | None = None

    def open(self, index: int) -> AbstractContextManager[pq.ParquetFile]:
        """Open a file without reading more than its footer; raises SourceError."""
        name = self.names[index]
        if self.root is not None:
            return _open_parquet(self.root / name, name)
        return hub.open_parquet(self.source, name, str(self.revision))

    def local(self, index: int) -> Path:
        """Return the file on this machine; one of the Hub is downloaded into the cache."""
        if self.root is not None:
            return self.root / self.names[index]
        return hub.download(self.source, self.names[index], self.revision)


def find_parquet_files(source: str) -> ParquetFiles:
    """Find the parquet files of a source; raises SourceError.

    A Hub dataset gives the files of the viewer's export if there is one, otherwise its own.
    """
    local = _find_local(source)
    if local is None:
        revision, names = hub.find_parquet(source)
        return ParquetFiles(source, tuple(names), revision=revision)
    root, files, _ = local
    names = [file.relative_to(root).as_posix() for file in files if _is_parquet(file)]
    if not names:
        raise SourceError(f"`{source}` contains no .parquet files; use a folder that does.")
    return ParquetFiles(Path(source).name, tuple(names), root=root)


# Paths that are not files that can be read, and the reasons.
LeftOut = dict[Path, str]


def _find_local(source: str) -> tuple[Path, list[Path], LeftOut] | None:
    """Return the root folder, the sorted files and what is left out of a path or glob; None for a Hub dataset id.

    Raises SourceError for anything else.
    """
    path = Path(source)
    if has_magic(source) and not path.exists():
        root = Path(re.split(r"[*?\[]", source)[0] + "x").parent
        files, left_out = _expand(source)
        # A folder that several links reach is read once, under its shortest path.
        files.sort(key=lambda file: len(file.parts), reverse=True)
        files = [*{(os.path.realpath(file.parent), file.name): file for file in files}.values()]
    elif path.is_dir():
        root, (files, left_out) = path, list_files(path)
    elif path.exists():
        root, (files, left_out) = path.parent, _divide([path])
    elif HUB_ID.fullmatch(source):
        return None
    else:
        raise SourceError(
            f"`{source}` does not exist and is not a Hub dataset id such as `ns/name`; "
            "use a folder, a file, a glob or an id."
        )
    return root, sorted(files), left_out


def _expand(pattern: str) -> tuple[list[Path], LeftOut]:
    """Find the files that match a glob; Python's own `**` would go round in loops of links."""
    parts = pattern.split("/")
    if "**" not in parts:
        return _divide(map(Path, glob(pattern)))  # noqa: PTH207
    at = parts.index("**")
    files: list[Path] = []
    left_out: LeftOut = {}
    for folder in glob("/".join([*parts[:at], ""]) or "."):  # noqa: PTH207
        below, others = list_files(Path(folder))
        files += [file for file in below if _fits(file.relative_to(folder).parts, parts[at:])]
        left_out |= others
    return files, left_out


def _fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Match the parts of a path like a shell: `**` stands for any folders, and only a dot matches a first dot.

    >>> _fits(("a", "b", "c.md"), ("**", "*.md")), _fits((".a", "c.md"), ("**", "*.md"))
    (True, False)
    """
    if not path or not pattern:
        return not path and not pattern
    is_hidden = path[0][0] == "." and pattern[0][:1] != "."
    if pattern[0] == "**":
        return _fits(path, pattern[1:]) or (not is_hidden and _fits(path[1:], pattern))
    return not is_hidden and fnmatchcase(path[0], pattern[0]) and _fits(path[1:], pattern[1:])


def list_files(folder: Path) -> tuple[list[Path], LeftOut]:
    """List all files below a folder, also behind symbolic links, and what cannot be read there.

    A folder that several paths reach is read once, without links if possible.
    """
    files: list[Path] = []
    left_out: LeftOut = {}

    def leave_out(error: OSError) -> None:
        left_out[Path(error.filename)] = explain_os_error(error)

    folders, seen = [folder], set[tuple[int, int]]()
    while folders:
        links: list[Path] = []
        for start in sorted(folders):
            for parent, below, names in os.walk(start, onerror=leave_out):
                try:
                    status = os.stat(parent)  # noqa: PTH116
                except OSError as error:
                    leave_out(error)
                    continue
                if (status.st_dev, status.st_ino) in seen:
                    below.clear()
                    continue
                seen.add((status.st_dev, status.st_ino))
                links += [path for name in below if (path := Path(parent, name)).is_symlink()]
                if not below and not names and _SESSION_NAME.search(parent):
                    left_out[Path(parent)] = "empty folder"
                found, others = _divide(Path(parent, name) for name in names)
                files += found
                left_out |= others
        folders = links
    return files, left_out


def _divide(paths: Iterable[Path]) -> tuple[list[Path], LeftOut]:
    """Divide paths without folders into files, and all others with the reason why they are not read."""
    files: list[Path] = []
    left_out: LeftOut = {}
    for path in paths:
        try:
            mode = path.stat().st_mode
        except OSError as error:
            left_out[path] = explain_os_error(error)
        else:
            if stat.S_ISREG(mode):
                files.append(path)
            elif not stat.S_ISDIR(mode):
                left_out[path] = _OTHER_KINDS.get(stat.S_IFMT(mode), "device")
    return files, left_out


def explain_os_error(error: OSError) -> str:
    """Return why a path cannot be read, as words that follow a number of paths."""
    return "link without a target" if error.errno == ENOENT else f"with {str(error.strerror).lower()}"


def size_of(file: Path) -> int:
    """Return the size of a file, 0 if it is gone or locked; reading it then says so."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


Kind = Literal["viewer_export", "jsonl", "sqlite", "dataset", "hub", "several"]

SESSION_FILES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
# OpenClaw renames a session to `.jsonl.reset.TIME` when the next one begins.
# Gemini CLI and Hermes once wrote each session as a JSON file.
_SESSION_NAME = re.compile(
    r"\.jsonl(?:\.reset\.[\w.-]+)?(?:\.gz|\.zst)?$|(?:^|/)session-[\w.-]+\.json$|/sessions/session_\w+\.json$",
    re.IGNORECASE,
)
# The first of the files of an OpenCode session before 1.2, STORAGE/session/PROJECT/ID.json.
_SPLIT_NAME = re.compile(r"/session/[^/]+/ses_\w+\.json$")
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_OTHER_KINDS = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket"}
# The largest session known from bug reports has 153 MB; reading one takes several times its size in memory.
MAX_SESSION = 512_000_000
_TOO_LARGE = f"it has more than {describe_size(MAX_SESSION)}"
CHUNK_BYTES = 2**20
# JSON begins with two ASCII characters, so these bytes are certain (RFC 4627, section 3).
_UTF_16 = {
    **dict.fromkeys((codecs.BOM_UTF16_LE, b'{\0"\0'), "utf-16-le"),
    **dict.fromkeys((codecs.BOM_UTF16_BE, b'\0{\0"'), "utf-16-be"),
}
# The size of each session file that cannot be read, by its name and the reason.
Unreadable = dict[str, dict[str, int]]
JSONL_PER_SHARD = 64
BATCH_BYTES = 16 * 2**20
MAX_BATCH_ROWS = 512
# Arrow reads a row group as a whole.
GROUP_BYTES = 180_000_000


@dataclass(frozen=True)
class Shard:
    """A unit of work: one parquet file, one saved split, or up to 64 raw session files or sessions of a database.

    `path` is relative to the source; `files` are on disk (empty for the Hub, whose shards are
    downloaded when they are read); names of raw sessions are relative to `root`. `stored` are the sessions of a
    database, without which the whole file is read.
    """

    kind: Kind
    path: str
    layout: Layout
    sessions: int
    bytes: int
    files: tuple[Path, ...] = ()
    root: Path = Path()
    revision: str | None = None
    stored: tuple[StoredSession, ...] = ()

    @property
    def hashed(self) -> tuple[Path, ...]:
        """The files that the sessions depend on as a whole; in a database, each session has its own mark."""
        return () if self.stored else self.files

    def list_names(self) -> list[str]:
        """Return the names of raw sessions, with the marks of those in a database."""
        if self.kind == "jsonl":
            return [file.relative_to(self.root).as_posix() for file in self.files]
        return [f"{one.id} {one.mark}" for one in self.stored]


@dataclass(frozen=True)
class Source:
    """An opened input: its name without machine paths, its kind and its shards in order.

    `upstream` says how far the viewer's export is behind its dataset, see `hub.find_export`;
    `recorder` holds names to redact, see `processors.identity`; `others` are the names of what is not
    read below its folders and not hidden, with the endings of other files or the reasons; `notes` say
    what its sessions do not record.
    """

    name: str
    kind: Kind
    revision: str | None
    shards: tuple[Shard, ...]
    upstream: dict[str, Any] | None = None
    recorder: tuple[str, ...] = ()
    others: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the description of the input for a report."""
        return {
            "source": self.name,
            "kind": self.kind,
            "revision": self.revision,
            **({"upstream": self.upstream} if self.kind == "hub" else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
            "shards": [
                {name: getattr(shard, name) for name in ("path", "layout", "sessions", "bytes")}
                for shard in self.shards
            ],
        }


def open_source(source: str) -> Source:
    """Find the shards of a path, a glob or a Hub dataset id; raises SourceError."""
    if not source:
        raise SourceError("The source is empty; use a folder, a file, a glob or a Hub id.")
    source = source.removeprefix("https://huggingface.co/datasets/")
    if source.startswith("~"):
        source = str(Path(source).expanduser())
    path = Path(source)
    # A folder of raw sessions may contain one of these two files, but not both.
    is_saved = (path / "state.json").exists() and (path / "dataset_info.json").exists()
    if is_saved or (path / "dataset_dict.json").exists():
        return _open_saved(path)
    left_out: LeftOut = {}
    if source.startswith("hf://"):
        name, revision, root, files = hub.fetch_files(source, (".parquet", *SESSION_FILES))
    else:
        local = _find_local(source)
        if local is None:
            return _open_hub(source)
        root, files, left_out = local
        name, revision = _make_readable((path if path.is_file() else root).resolve().name), None
    if path.is_dir():
        # Agents keep sessions in hidden folders such as .claude; other files there are not read.
        files = [
            f
            for f in files
            if f.name[0] != "."
            and (is_session(f) or is_database(f) or "/." not in f"/{f.relative_to(root).as_posix()}")
        ]
        data = [file for file in files if file.parent == path / "data" and _is_parquet(file)]
        for first in data[:1]:
            with _open_parquet(first, first.name) as parquet:
                if set(parquet.schema_arrow.names).issuperset(ROLLOUT_COLUMNS):
                    # The folder also contains the rejects and traces of the same rollouts.
                    files = data
    parquet = [file for file in files if _is_parquet(file)]
    raw = [file for file in files if is_session(file) or (file.suffix == ".json" and not path.is_dir())]
    stored, notes = shard_databases((root, file) for file in files if is_database(file))
    others = name_others(files, root, left_out, {*raw, *(file for shard in stored for file in shard.files)})
    if not parquet and not raw and not stored:
        problem = (
            "is a database without sessions of an agent that is read"
            if is_database(path)
            else "is neither a .parquet nor a .jsonl file"
            if path.is_file()
            else "contains neither .parquet nor .jsonl files" + (f", only {count_kinds(others)}" if others else "")
        )
        raise SourceError(
            f"`{source}` {problem}; use a viewer export, raw session files of {AGENTS}, or a saved dataset."
        )
    shards = [_describe_parquet(file, _name_relative(file, root)) for file in parquet]
    shards += shard_sessions((root, file) for file in raw)
    shards += stored
    kind: Kind = "viewer_export" if parquet else "jsonl" if raw else "sqlite"
    return Source(name, kind, revision, tuple(shards), others=others, notes=notes)


def join_sources(sources: Sequence[Source]) -> Source:
    """Combine several sources into one; a file that occurs in several of them is read once."""
    first = sources[0]
    if len(sources) == 1:
        return first
    all_shards = dict.fromkeys(shard for source in sources for shard in source.shards)
    shards = [shard for shard in all_shards if shard.kind != "jsonl"]
    raw = [(shard.root, file) for shard in all_shards if shard.kind == "jsonl" for file in shard.files]
    shards += shard_sessions(dict.fromkeys(raw))
    kinds = {source.kind for source in sources}
    revisions = ", ".join(source.revision for source in sources if source.revision)
    return Source(
        ", ".join(dict.fromkeys(source.name for source in sources)),
        first.kind if len(kinds) == 1 else "several",
        revisions or None,
        tuple(shards),
        recorder=tuple(dict.fromkeys(name for source in sources for name in source.recorder)),
        others={name: why for source in sources for name, why in source.others.items()},
        notes=tuple(dict.fromkeys(note for source in sources for note in source.notes)),
    )


def is_session(file: Path) -> bool:
    """Return whether a file has the name of a raw session, or of the first of the files of an OpenCode session."""
    return bool(_SESSION_NAME.search(file.as_posix()) or _is_split(file))


def _is_split(file: Path) -> bool:
    return bool(_SPLIT_NAME.search(file.as_posix()))


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def name_others(files: Iterable[Path], root: Path, left_out: LeftOut, read: Collection[Path] = ()) -> dict[str, str]:
    """Return the names of the files that are neither sessions nor hidden, and of what is left out, see `Source`.

    `read` are databases and other files that are read although their names do not say so.
    """
    shown = [file for file in files if "/." not in f"/{file.relative_to(root).as_posix()}"]
    # The other files of OpenCode sessions.
    parts = {file.parents[2] for file in shown if _is_split(file)}
    others = {
        file: file.suffix.lower() or "without an ending"
        for file in shown
        if not is_session(file) and file not in read and parts.isdisjoint(file.parents)
    }
    others = {file: ending for file, ending in others.items() if ending != ".parquet"} | left_out
    return {_name_relative(file, root): why for file, why in sorted(others.items())}


def count_kinds(others: Mapping[str, str]) -> str:
    """Count what is not read by its ending or the reason.

    >>> count_kinds({"a.db": ".db", "b.JSON": ".json", "c.json": ".json", "pipe": "named pipe"})
    '2 .json, 1 .db, 1 named pipe'
    """
    return ", ".join(f"{count} {kind}" for kind, count in Counter(others.values()).most_common())


def shard_sessions(files: Iterable[tuple[Path, Path]]) -> list[Shard]:
    """Group session files into shards; each file comes with the folder that its name is relative to."""
    by_root: dict[Path, list[Path]] = {}
    for root, file in files:
        by_root.setdefault(root, []).append(file)
    shards = []
    for root, sessions in by_root.items():
        for start in range(0, len(sessions), JSONL_PER_SHARD):
            part = sessions[start : start + JSONL_PER_SHARD]
            name = _name_relative(part[0], root) + (f" and {len(part) - 1} more" if len(part) > 1 else "")
            size = sum(map(size_of, part))
            shards.append(Shard("jsonl", name, "jsonl", len(part), size, tuple(part), root))
    return shards


def shard_databases(files: Iterable[tuple[Path, Path]]) -> tuple[list[Shard], tuple[str, ...]]:
    """Group the sessions in databases of agents into shards, and say what they lack; foreign databases have none.

    A database that cannot be read is a shard without sessions, which will say so.
    """
    shards, notes = [], dict[str, None]()
    for root, file in files:
        name = _name_relative(file, root)
        try:
            found = list_stored(file)
        except BROKEN:
            shards.append(Shard("sqlite", name, "jsonl", 1, size_of(file), (file,), root))
            continue
        if found is not None:
            notes |= dict.fromkeys(found.notes)
            shards += _shard_stored(root, file, found.sessions)
    return shards, tuple(notes)


def _shard_stored(root: Path, file: Path, sessions: Sequence[StoredSession]) -> Iterator[Shard]:
    for start in range(0, len(sessions), JSONL_PER_SHARD):
        part = tuple(sessions[start : start + JSONL_PER_SHARD])
        name = f"{_name_relative(file, root)}#{part[0].id}" + (f" and {len(part) - 1} more" if len(part) > 1 else "")
        yield Shard("sqlite", name, "jsonl", len(part), sum(one.bytes for one in part), (file,), root, stored=part)


def select_sessions(
    shards: Iterable[Shard], is_kept: Callable[[str, Path, StoredSession | None], bool]
) -> list[Shard]:
    """Keep the raw sessions for which `is_kept`, given the name, the file and, in a database, the session, is true."""
    raw: list[tuple[Path, Path]] = []
    stored: dict[tuple[Path, Path], list[StoredSession]] = {}
    for shard in shards:
        for file in shard.files:
            name = _name_relative(file, shard.root)
            if shard.kind == "jsonl":
                raw += [(shard.root, file)] * is_kept(name, file, None)
            else:
                kept = (one for one in shard.stored if is_kept(f"{name}#{one.id}", file, one))
                stored.setdefault((shard.root, file), []).extend(kept)
    parts = (part for (root, file), some in stored.items() for part in _shard_stored(root, file, some))
    return [*shard_sessions(raw), *parts]


def load_sessions(source: str | Path | Sequence[str | Path], *, streaming: bool = False) -> Dataset | IterableDataset:
    """Open recorded sessions as a dataset of one row each.

    Args:
        source: A folder, file or glob of session JSONL or of the viewer's parquet export, a dataset
            saved by `save_to_disk`, or a Hub dataset id (`ns/name`); or a list of these. Use
            `~/.claude/projects` for the `claude` of the command line.
        streaming: Return an `IterableDataset`, which reads the files while you iterate over it. A
            `Dataset` is first written to the cache of `datasets` and reused until a file changes.

    Returns:
        Columns `harness` and `session_id` (empty if the source has none), `source` (the name of the
        session's file), `trace` (its JSONL, as bytes in UTF-8) and `bytes_not_utf8` (how many bytes
        had to be replaced).

    Raises:
        SourceError: There are no sessions, or a file cannot be read.
    """
    sources = [source] if isinstance(source, str | Path) else source or [""]
    if not isinstance(sources, Sequence) or not all(isinstance(one, str | Path) for one in sources):
        raise SourceError(f"{source!r:.80} is not a source; give a path, a Hub id or a list of these.")
    opened = join_sources([open_source(str(one)) for one in sources])
    for name, why in opened.others.items():
        if why not in (PurePath(name).suffix.lower(), "without an ending"):
            logger.warning("`%s` is skipped (%s).", name, why)
    shards = list(opened.shards)
    arguments: dict[str, Any] = {"shards": shards}
    if streaming:
        return IterableDataset.from_generator(_session_rows, SESSION, gen_kwargs=arguments)
    # The times become part of the cache key.
    modified = (file.stat().st_mtime_ns for shard in shards for file in shard.hashed)
    arguments["modified"] = (*modified, *(name for shard in shards for name in shard.list_names()))
    dataset = Dataset.from_generator(_session_rows, SESSION, gen_kwargs=arguments)
    assert isinstance(dataset, Dataset)
    return dataset


def _session_rows(shards: list[Shard], modified: object = None) -> Iterator[dict[str, Any]]:
    for shard in shards:
        for table in read_sessions(shard):
            yield from iterate_rows(table, SESSION)


def read_sessions(shard: Shard, unreadable: Unreadable | None = None) -> Iterator[pa.Table]:
    """Yield tables of the SESSION columns, about BATCH_BYTES of traces at a time.

    A session that cannot be read is skipped and added to `unreadable`, or logged as a warning if that is
    None. Raises SourceError for a file of many sessions.
    """
    skipped: Unreadable = {} if unreadable is None else unreadable
    if shard.kind in ("jsonl", "sqlite"):
        yield from _read_raw(shard, skipped)
    else:
        for table in _read_tables(shard):
            yield _drop_large(table, skipped)
    if unreadable is None:
        for name, reasons in skipped.items():
            logger.warning("`%s` cannot be read (%s) and is skipped.", name, *reasons)


def _drop_large(table: pa.Table, unreadable: Unreadable) -> pa.Table:
    """Drop the sessions that have more than MAX_SESSION bytes, and add them to `unreadable`."""
    sizes = pc.binary_length(table["trace"])
    is_large = pc.greater(sizes, MAX_SESSION)
    large = pa.table({"name": table["source"], "size": sizes}).filter(is_large).to_pylist()
    unreadable |= {one["name"]: {_TOO_LARGE: one["size"]} for one in large}
    return table.filter(pc.invert(is_large)) if large else table


def _read_tables(shard: Shard) -> Iterator[pa.Table]:
    rows = _count_batch_rows(shard.bytes, shard.sessions)
    if shard.kind == "dataset":
        dataset = load_from_disk(str(shard.files[0]))
        assert isinstance(dataset, Dataset)
        for start in range(0, dataset.num_rows, rows):
            yield convert_table(dataset.data.slice(start, rows).table)
    elif shard.kind == "hub":
        *repo, name = shard.path.split("/", 2)
        repo_id = "/".join(repo)
        file = hub.download(repo_id, name, shard.revision)
        yield from _read_parquet(file, shard.path, f"{repo_id}@{shard.revision}/")
    else:
        yield from _read_parquet(shard.files[0], shard.path)


def _read_parquet(file: Path, name: str, origin: str = "") -> Iterator[pa.Table]:
    with _open_parquet(file, name) as parquet:
        layout = detect_layout(parquet.schema_arrow, name)
        known = {"rollouts": ROLLOUT_COLUMNS, "messages": MESSAGE_COLUMNS}.get(layout, READ_COLUMNS)
        columns = [name for name in parquet.schema_arrow.names if name in known]
        rows = _count_batch_rows(sum(_list_group_sizes(parquet)), parquet.metadata.num_rows)
        # Threads decode one column each, but only one column is large.
        for batch in parquet.iter_batches(rows, columns=columns, use_threads=False):
            yield convert_table(pa.Table.from_batches([batch]), origin)


def _list_group_sizes(parquet: pq.ParquetFile) -> list[int]:
    return [parquet.metadata.row_group(index).total_byte_size for index in range(parquet.num_row_groups)]


def _count_batch_rows(size: int, rows: int) -> int:
    """Return how many rows of average size make up a batch of BATCH_BYTES."""
    average = max(size // max(rows, 1), 1)
    return min(max(BATCH_BYTES // average, 1), MAX_BATCH_ROWS)


def _describe_parquet(file: Path, name: str) -> Shard:
    with _open_parquet(file, name) as parquet:
        layout, rows = detect_layout(parquet.schema_arrow, name), parquet.metadata.num_rows
        largest = max(_list_group_sizes(parquet), default=0)
        if largest > GROUP_BYTES:
            logger.warning(
                "`%s` has a row group of %d MB, and each worker may need three times that in "
                "memory; write it with smaller row groups if that is too much.",
                *(name, largest // 1_000_000),
            )
        return Shard("viewer_export", name, layout, rows, file.stat().st_size, (file,))


@contextmanager
def _open_parquet(file: Path, name: str) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(file) as parquet:
            yield parquet
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"`{name}` cannot be read ({_explain(error)}); download it again or leave it out."
        ) from error


def _explain(error: Exception) -> str:
    """Return why a file cannot be read, without its path."""
    message = getattr(error, "strerror", None) or str(error)
    return next(iter(message.splitlines()), type(error).__name__)


def read_head(file: Path, size: int) -> bytes:
    """Return the first bytes of a session, decompressed and in UTF-8."""
    with _open_raw(file) as stream:
        return _decode_utf16(stream.read(size))


def _open_raw(file: Path) -> Any:
    """Open a raw session file and decompress it; its name may be other than UTF-8."""
    compression = _COMPRESSIONS.get(file.suffix.lower())
    stream = file.open("rb")
    return pa.input_stream(stream, compression=compression) if compression else stream


def _read_raw(shard: Shard, unreadable: Unreadable) -> Iterator[pa.Table]:
    """Yield tables of raw sessions as soon as they hold BATCH_BYTES."""
    names: list[str] = []
    ids: list[str] = []
    traces: list[bytes] = []

    def make_table() -> pa.Table:
        values = ([""] * len(names), list(ids), list(names), *ensure_utf8(pa.array(traces, pa.large_binary())))
        # The copies in the table are all that stays in memory.
        names.clear()
        ids.clear()
        traces.clear()
        return pa.table(dict(zip(SESSION, values, strict=True)), SESSION.arrow_schema)

    read = _read_files if shard.kind == "jsonl" else _read_database
    for name, session_id, trace in read(shard, unreadable):
        names.append(name)
        ids.append(session_id)
        traces.append(trace)
        if sum(map(len, traces)) >= BATCH_BYTES:
            yield make_table()
    if names:
        yield make_table()


def _read_files(shard: Shard, unreadable: Unreadable) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the id if it is known, and the trace of each session in files."""
    for file in shard.files:
        name = _name_relative(file, shard.root)
        try:
            content = opencode.join_files(file) if _is_split(file) else _read_session(file)
        except (pa.ArrowException, OSError, OverflowError) as error:
            unreadable[name] = {_explain(error): size_of(file)}
            continue
        exported = hermes.split_export(content) or split_rows(content)
        yield from (
            (f"{name}#{session_id or number}", session_id, trace)
            for number, (session_id, trace) in enumerate(exported, 1)
        )
        if not exported:
            yield name, "", content


def _read_database(shard: Shard, unreadable: Unreadable) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the id and the trace of each session in a database."""
    (file,) = shard.files
    name = _name_relative(file, shard.root)
    try:
        found = None if shard.stored else list_stored(file)
        for one, trace in read_stored(file, found.sessions if found else shard.stored):
            if isinstance(trace, bytes):
                yield f"{name}#{one.id}", one.id, trace
            else:
                unreadable[f"{name}#{one.id}"] = {_explain(trace): one.bytes}
    except BROKEN as error:
        unreadable[name] = {_explain(error): shard.bytes}


def _read_session(file: Path) -> bytes:
    """Return a session, decompressed; raises OverflowError if it has more than MAX_SESSION bytes then."""
    _check_size(size_of(file))
    with _open_raw(file) as stream:
        if file.suffix == ".json":
            # One object on many lines; what a command printed before it may stand above.
            return _decode_utf16(stream.read()).replace(b"\n", b" ")
        if file.suffix.lower() not in _COMPRESSIONS:
            return _decode_utf16(stream.read())
        chunks: list[bytes] = []
        size = 0
        # A few kilobytes can become gigabytes.
        while chunk := stream.read(CHUNK_BYTES):
            chunks.append(chunk)
            size += len(chunk)
            _check_size(size)
    return _decode_utf16(b"".join(chunks))


def _check_size(size: int) -> None:
    if size > MAX_SESSION:
        raise OverflowError(_TOO_LARGE)


def _decode_utf16(content: bytes) -> bytes:
    """Return UTF-16 as UTF-8, and other content as it is.

    PowerShell 5 writes UTF-16 when it redirects a stream into a file.
    """
    encoding = _UTF_16.get(content[:2]) or _UTF_16.get(content[:4])
    return content.decode(encoding, "replace").removeprefix("\ufeff").encode() if encoding else content


def _open_saved(path: Path) -> Source:
    try:
        loaded = load_from_disk(str(path))
    except (ValueError, KeyError, TypeError, OSError, pa.ArrowException) as error:
        # `datasets` does not validate what it loads.
        raise SourceError(
            f"`{path}` looks like a saved dataset that cannot be opened ({type(error).__name__}); "
            "save it again, or remove its `dataset_dict.json` or `state.json`."
        ) from error
    splits = {"train": (loaded, path)}
    if isinstance(loaded, DatasetDict):
        splits = {str(name): (dataset, path / str(name)) for name, dataset in loaded.items()}
    shards = []
    for name, (dataset, folder) in splits.items():
        layout = detect_layout(dataset.data.schema, name)
        size = dataset.data.nbytes
        shards.append(Shard("dataset", name, layout, dataset.num_rows, size, (folder,)))
    return Source(_make_readable(path.resolve().name), "dataset", None, tuple(shards))


def _open_hub(repo_id: str) -> Source:
    revision, files, upstream = hub.find_export(repo_id)
    shards = []
    for name, size in files.items():
        location = f"{repo_id}/{name}"
        with hub.open_parquet(repo_id, name, revision) as parquet:
            layout, rows = detect_layout(parquet.schema_arrow, location), parquet.metadata.num_rows
        shards.append(Shard("hub", location, layout, rows, size, revision=revision))
    return Source(repo_id, "hub", revision, tuple(shards), upstream)


def _name_relative(file: Path, root: Path) -> str:
    return _make_readable(file.relative_to(root).as_posix())


def _make_readable(name: str) -> str:
    """Replace the bytes of a file name that are invalid UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")
