"""Read the sessions in the SQLite file of an agent, also while the agent writes to it.

A session becomes JSON lines, one for each of its rows, as `harness.base.Table` says.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from pimono_sdpo.traces.harness import HARNESSES, OWN
from pimono_sdpo.traces.harness.base import Store, Table

# A damaged file makes SQLite return names and messages that are not UTF-8.
BROKEN = (sqlite3.Error, UnicodeDecodeError)
ENDINGS = (".db", ".sqlite", ".sqlite3")
# An agent's transaction takes milliseconds.
WAIT_SECONDS = 1.0
# Times in seconds stay below this number for 3,000 years, those in milliseconds have been above it since 1973.
_MILLISECONDS = 1e11
# OpenClaw compresses events of up to 4 MiB (its MAX_COMPRESSED_EVENT_BYTES).
_EVENT_BYTES = 4 * 2**20
_encode = msgspec.json.Encoder().encode
Row = dict[str, Any]
# The columns of each table of a file.
Columns = dict[str, list[str]]


@dataclass(frozen=True)
class StoredSession:
    """A session in a file: `mark` changes when a row of it does, `updated` is in seconds, 0.0 if unknown."""

    id: str
    mark: str
    updated: float
    bytes: int
    project: str = ""


@dataclass
class Stored:
    """The sessions in a file that are read here, in the order they began; `notes` say what is missing."""

    sessions: list[StoredSession] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_database(file: Path) -> bool:
    """Return whether a file is named like those of SQLite."""
    return file.suffix in ENDINGS and file.is_file()


def list_stored(file: Path) -> Stored | None:
    """Return the sessions in a file, None for a foreign one; raises BROKEN."""
    with _open(file) as connection:
        found = _find_store(connection)
        if found is None:
            return None
        store, columns = found
        facts: dict[str, list[Row]] = {}
        for table in store.tables:
            for row in connection.execute(_describe_sums(table, columns)):
                facts.setdefault(str(row["session"]), []).append(dict(row))
        first = store.tables[0]
        sql = f'SELECT *, min(rowid) AS first FROM "{first.name}" GROUP BY "{first.session}" ORDER BY first'
        stored, elsewhere = Stored(notes=[store.lacks] if store.lacks else []), Counter[str]()
        for row in connection.execute(sql):
            fields = {name: row[name] for name in columns[first.name] if name not in (first.json, first.zstd)}
            of = facts[str(row[first.session])]
            if (agent := fields.get(store.agent)) in OWN:
                elsewhere[str(agent)] += 1
            elif fields.get("deleted_at") is None:
                mark = xxhash.xxh3_128_hexdigest(repr((of, fields)).encode())
                updated, size = max(_read_time(one["last"]) for one in of), sum(one["size"] or 0 for one in of)
                project = str(fields.get(store.project) or "")
                stored.sessions.append(StoredSession(str(row[first.session]), mark, updated, size, project))
    for agent, count in sorted(elsewhere.items()):
        stored.notes.append(f"{count} sessions of {agent} are left out, which `{agent}` reads from its own files")
    return stored


def read_stored(file: Path, sessions: Iterable[StoredSession]) -> Iterator[tuple[StoredSession, bytes | Exception]]:
    """Yield the lines of each session, or the error for one that cannot be read; raises BROKEN."""
    with _open(file) as connection:
        store, columns = _find_store(connection) or (Store(()), {})
        for session in sessions:
            try:
                rows = (line for table in store.tables for line in _read_rows(connection, table, columns, session.id))
                yield session, b"\n".join(rows)
            except (*BROKEN, pa.ArrowException, OSError) as error:
                yield session, error


@contextmanager
def _open(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a file for reading, with the changes in its log; all reads show one state of it."""
    address = f"{file.absolute().as_uri()}?mode=ro"
    try:
        connection = _connect(address)
    except sqlite3.OperationalError as error:
        cannot_make_files = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if not cannot_make_files or file.with_name(f"{file.name}-wal").exists():
            raise
        # On a read-only disk, SQLite cannot make the files beside it; without a log nobody is writing.
        connection = _connect(f"{address}&immutable=1")
    with closing(connection):
        yield connection


def _connect(address: str) -> sqlite3.Connection:
    connection = sqlite3.connect(address, timeout=WAIT_SECONDS, isolation_level=None, uri=True)
    try:
        connection.row_factory = sqlite3.Row
        connection.text_factory = lambda text: text.decode(errors="replace")
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BROKEN:
        connection.close()
        raise
    return connection


def _find_store(connection: sqlite3.Connection) -> tuple[Store, Columns] | None:
    """Return the store whose tables a file has, None for a foreign file."""
    sql = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
    columns: Columns = {}
    for table, column in connection.execute(sql):
        columns.setdefault(table, []).append(column)
    for store in (harness.store for harness in HARNESSES if harness.store):
        if all(_name_columns(table) <= {*columns.get(table.name, ())} for table in store.tables):
            return store, columns
    return None


def _name_columns(table: Table) -> set[str]:
    return {table.session, table.changed, table.json, *table.keys, *table.order.split(", ")} - {"", "rowid"}


def _describe_sums(table: Table, columns: Columns) -> str:
    """Return the query for the number of rows of each session, their bytes and their last change."""
    stored = [name for name in (table.json, table.zstd) if name in columns[table.name]]
    size = " + ".join(f'ifnull(length("{name}"), 0)' for name in stored or columns[table.name])
    last = f'max("{table.changed}")' if table.changed else "NULL"
    sums = f'"{table.session}" AS session, count(*) AS rows, sum({size}) AS size, {last} AS last'
    return f'SELECT {sums} FROM "{table.name}" GROUP BY "{table.session}"'


def _read_time(value: object) -> float:
    """Return a time in seconds; numbers may be milliseconds."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            # An agent may write anything here.
            return 0.0
    number = float(value) if isinstance(value, int | float) else 0.0
    return number / 1000 if number > _MILLISECONDS else number


def _read_rows(connection: sqlite3.Connection, table: Table, columns: Columns, session: str) -> Iterator[bytes]:
    names = [*table.keys, table.json, table.zstd] if table.json else columns[table.name]
    chosen = ", ".join(f'"{name}"' for name in names if name in columns[table.name])
    sql = f'SELECT {chosen} FROM "{table.name}" WHERE "{table.session}" = ? ORDER BY {table.order}'
    for row in connection.execute(sql, (session,)):
        stored = {name: row[name] for name in row.keys() if row[name] is not None}  # noqa: SIM118
        data = _to_line(stored.pop(table.json, None), stored.pop(table.zstd, None))
        if table.json and not table.keys:
            yield data
        else:
            known = {name: value for name, value in stored.items() if not isinstance(value, bytes)}
            line = _encode({"table": table.name, **known})
            yield line[:-1] + b',"data":' + data + b"}" if table.json else line


def _to_line(value: object, compressed: object) -> bytes:
    """Return stored JSON as one line; a text in JSON has no line breaks."""
    if value is None and isinstance(compressed, bytes):
        value = pa.input_stream(pa.BufferReader(compressed), compression="zstd").read(_EVENT_BYTES)
    text = value if isinstance(value, bytes) else str("null" if value is None else value).encode()
    return text.replace(b"\n", b" ")
