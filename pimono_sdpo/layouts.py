"""Bring every column layout the Hub ever exported for agent traces to one session table.

traces_list   harness, session_id, traces: list<json>, file_name
trace_list    harness, session_id, trace: list<json>, file_path, ...
trace_text    harness, session_id, trace: json or text, file_path, messages, tools, ...
"""

import json
from typing import Literal

import pyarrow as pa

from pimono_sdpo.errors import SourceError
from pimono_sdpo.schema import SESSION

Layout = Literal["traces_list", "trace_list", "trace_text", "jsonl"]

NAME_COLUMNS = ("source", "file_path", "file_name")
READ_COLUMNS = frozenset({"harness", "session_id", "traces", "trace", *NAME_COLUMNS})


def layout_of(schema: pa.Schema, where: str) -> Layout:
    """Tell the layout by its columns; raises SourceError naming the columns found."""
    for name in ("traces", "trace"):
        if name not in schema.names:
            continue
        kind = schema.field(name).type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not _is_text(kind.value_type if is_list else kind):
            raise SourceError(
                f"`{where}` has a column `{name}` of type {kind} where JSON text is expected; "
                "give the viewer's parquet export, where traces are JSON."
            )
        if is_list:
            return "traces_list" if name == "traces" else "trace_list"
        return "trace_text"
    raise SourceError(
        f"`{where}` has the columns {', '.join(schema.names)} but neither `trace` nor `traces`; "
        "give the viewer's parquet export of a dataset of agent traces."
    )


def session_table(table: pa.Table, layout: Layout, origin: str = "") -> pa.Table:
    """Bring one batch of a parquet layout to the SESSION columns; the trace stays as recorded.

    `origin` (`repo@commit/`) goes in front of each row's source.
    """
    column = table.column("traces" if "traces" in table.column_names else "trace").combine_chunks()
    if layout == "trace_text":
        traces = [plain(text) for text in _storage(column).to_pylist()]
    else:
        lines = iter(_storage(column.flatten()).to_pylist())
        lengths = column.value_lengths().to_pylist()
        traces = ["\n".join(plain(next(lines)) for _ in range(n or 0)) for n in lengths]
    name = next((n for n in NAME_COLUMNS if n in table.column_names), "")
    source = [origin + value for value in _strings(table, name)]
    return sessions(_strings(table, "harness"), _strings(table, "session_id"), source, traces)


def sessions(
    harness: list[str], session_id: list[str], source: list[str], trace: list[str]
) -> pa.Table:
    """Build a table of the SESSION columns."""
    columns = {"harness": harness, "session_id": session_id, "source": source, "trace": trace}
    return pa.Table.from_pydict(columns, schema=SESSION.arrow_schema)


def plain(text: str | None) -> str:
    """Undo the JSON string that wraps a text which travelled as JSON.

    >>> plain('"{}\\\\n{}"'), plain('{"type": "session"}')
    ('{}\\n{}', '{"type": "session"}')
    """
    if not text or text[0] != '"':
        return text or ""
    try:
        value = json.loads(text)
    except ValueError:
        # A trace whose first line merely starts with a quote is no wrapped text: keep it as it is.
        return text
    return value if isinstance(value, str) else text


def _strings(table: pa.Table, name: str) -> list[str]:
    if name not in table.column_names:
        return [""] * table.num_rows
    return [value or "" for value in table.column(name).to_pylist()]


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _is_text(kind: pa.DataType) -> bool:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return bool(pa.types.is_string(storage) or pa.types.is_large_string(storage))
