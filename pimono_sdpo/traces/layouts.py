"""Convert parquet tables of sessions, in any layout of the Hub or as rollouts, to the SESSION columns.

traces_list   harness, session_id, traces: list<json>, file_name
trace_list    harness, session_id, trace: list<json>, file_path, ...
trace_text    harness, session_id, trace: json or text, file_path, messages, tools, ...
messages      messages in OpenAI's form, as a list or as JSON, and others, such as an id

Rollouts, as `rollout` and `import` write them, are converted to sessions as well.
"""

import json
import re
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_hexdigest

from pimono_sdpo.errors import SourceError
from pimono_sdpo.schema import SESSION
from pimono_sdpo.text import replace_surrogates
from pimono_sdpo.traces.harness.simple import ROLLOUT_COLUMNS, name_harness
from pimono_sdpo.traces.harness.simple import encode_session as encode_rollout
from pimono_sdpo.traces.trajectories.openai_messages import COLUMNS, encode_session

Layout = Literal["traces_list", "trace_list", "trace_text", "jsonl", "rollouts", "messages"]

NAME_COLUMNS = ("source", "file_path", "file_name")
READ_COLUMNS = ("harness", "session_id", "traces", "trace", *NAME_COLUMNS)
MESSAGE_COLUMNS = ("harness", "agent", "session_id", "messages", *COLUMNS["task"], *COLUMNS["run"], *NAME_COLUMNS)
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def detect_layout(schema: pa.Schema, where: str) -> Layout:
    """Detect the layout by its columns; raises SourceError naming the columns found."""
    for name in READ_COLUMNS:
        if schema.names.count(name) > 1:
            raise SourceError(f"`{where}` has {schema.names.count(name)} columns named `{name}`; leave one of them.")
    columns = _trace_columns(schema)
    if not columns and set(schema.names).issuperset(ROLLOUT_COLUMNS):
        return "rollouts"
    if not columns and "messages" in schema.names:
        return "messages"
    if not columns:
        raise SourceError(
            f"`{where}` has the columns {', '.join(schema.names)} but neither `trace` nor "
            "`traces` nor `messages`; give the viewer's parquet export of a dataset of agent traces."
        )
    name, kind = columns[0], schema.field(columns[0]).type
    if not _holds_traces(kind):
        raise SourceError(
            f"`{where}` has a column `{name}` of type {kind} instead of JSON text; "
            "give the viewer's parquet export, where traces are JSON."
        )
    if not _is_list(kind):
        return "trace_text"
    return "traces_list" if name == "traces" else "trace_list"


def convert_table(table: pa.Table, origin: str = "") -> pa.Table:
    """Convert a batch of any layout to the SESSION columns; the trace stays as recorded.

    Each row's source begins with `origin` (`repo@commit/`).
    """
    layout = detect_layout(table.schema, origin)
    if layout == "rollouts":
        return _convert_rollouts(table, origin)
    if layout == "messages":
        return _convert_messages(table, origin)
    columns = (table.column(name) for name in _trace_columns(table.schema))
    candidates = [_read_traces(column) for column in columns if _holds_traces(column.type)]
    trace, not_utf8 = candidates[0]
    for other, not_utf8_of_other in candidates[1:]:
        # After schema drift, old rows have `traces` and new ones `trace`.
        is_filled = pc.greater(pc.binary_length(trace), 0)
        trace = pc.if_else(is_filled, trace, other)
        not_utf8 = pc.if_else(is_filled, not_utf8, not_utf8_of_other)
    name = next((n for n in NAME_COLUMNS if n in table.column_names), "")
    source = [origin + value for value in _read_strings(table, name)]
    harness, session_id = _read_strings(table, "harness"), _read_strings(table, "session_id")
    values = (harness, session_id, source, trace, not_utf8)
    return pa.table(dict(zip(SESSION, values, strict=True)), SESSION.arrow_schema)


def _convert_rollouts(table: pa.Table, origin: str) -> pa.Table:
    rows = [
        {
            "harness": name_harness(row),
            "session_id": row["run_id"],
            "source": f"{origin}{row['run_id']}",
            "trace": encode_rollout(row),
            "bytes_not_utf8": 0,
        }
        for row in table.to_pylist()
    ]
    return pa.Table.from_pylist(rows, SESSION.arrow_schema)


def _convert_messages(table: pa.Table, origin: str) -> pa.Table:
    rows = []
    for row in table.to_pylist():
        session_id, trace = encode_session(row)
        name = next((str(row[key]) for key in NAME_COLUMNS if row.get(key)), session_id) or xxh3_64_hexdigest(trace)
        rows.append(
            {"harness": "", "session_id": session_id, "source": origin + name, "trace": trace, "bytes_not_utf8": 0}
        )
    return pa.Table.from_pylist(rows, SESSION.arrow_schema)


def ensure_utf8(traces: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return binary traces as UTF-8, and how many bytes of each were invalid."""
    try:
        traces.cast(pa.large_string())
    except pa.ArrowInvalid:
        # Neither parquet nor a file guarantees that text is UTF-8.
        decoded = [decode_lossy(trace) for trace in traces.to_pylist()]
        return _encode([text for text, _ in decoded]), pa.array([count for _, count in decoded])
    return traces, pa.repeat(0, len(traces))


def unwrap_json(text: str) -> str:
    """Decode a text that was exported as a JSON string.

    >>> unwrap_json('"{}\\\\n{}"'), unwrap_json('{"type": "session"}')
    ('{}\\n{}', '{"type": "session"}')
    """
    try:
        value = json.loads(text) if text.startswith('"') else None
    except ValueError:
        # The first line merely starts with a quote.
        return text
    return replace_surrogates(value) if isinstance(value, str) else text


def _trace_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that can hold traces; after schema drift, some hold only nulls."""
    return [
        name for name in ("traces", "trace") if name in schema.names and not pa.types.is_null(schema.field(name).type)
    ]


def _read_traces(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return each row's trace as UTF-8, and how many of its bytes were invalid."""
    array = column.combine_chunks()
    if not _is_list(array.type):
        return _unwrap_all(*ensure_utf8(_cast_to_binary(array)))
    lines, not_utf8 = _unwrap_all(*ensure_utf8(_cast_to_binary(array.flatten())))
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum(pc.cast(lengths, pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    newline = pa.scalar(b"\n", pa.large_binary())
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, lines), newline)
    totals = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(not_utf8)])
    counts = pc.subtract(totals.take(ends), totals.take(offsets[:-1]))
    return joined, counts


def _cast_to_binary(array: pa.Array) -> pa.Array:
    """Cast text of any string type to binary, nulls to empty values."""
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    is_large = pa.types.is_large_string(storage.type)
    binary = storage.cast(pa.large_binary() if is_large else pa.binary())
    return pc.fill_null(binary.cast(pa.large_binary()), b"")


def _unwrap_all(traces: pa.Array, not_utf8: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Decode the texts that were exported as JSON strings."""
    if not pc.any(pc.starts_with(traces, b'"')).as_py():
        return traces, not_utf8
    return _encode([unwrap_json(trace.decode()) for trace in traces.to_pylist()]), not_utf8


def _encode(texts: list[str]) -> pa.Array:
    return pa.array([text.encode() for text in texts], pa.large_binary())


def _holds_traces(kind: pa.DataType) -> bool:
    return _is_text(kind.value_type if _is_list(kind) else kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _read_strings(table: pa.Table, name: str) -> list[str]:
    if name not in table.column_names:
        return [""] * table.num_rows
    column = table.column(name).combine_chunks()
    if _is_text(column.type):
        return [value.decode() for value in ensure_utf8(_cast_to_binary(column))[0].to_pylist()]
    return ["" if value is None else str(value) for value in column.to_pylist()]


def decode_lossy(content: bytes) -> tuple[str, int]:
    r"""Return text with U+FFFD in place of each byte that is not UTF-8, and their number.

    >>> decode_lossy(b"a\xff\xfeb")
    ('a\ufffd\ufffdb', 2)
    """
    # A line with such bytes usually still parses.
    return _NOT_UTF8.subn("\ufffd", content.decode(errors="surrogateescape"))


def _is_text(kind: pa.DataType) -> bool:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return bool(pa.types.is_string(storage) or pa.types.is_large_string(storage))
