"""The sample sessions in the layouts of the Hub's exports."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.samples import SAMPLE_SESSIONS

ExportLayout = Literal["traces_list", "trace_list", "trace_text"]


def write_samples(folder: Path) -> list[Path]:
    """Write every sample once, spread over the three export layouts and raw files.

    Returns the written files. Sessions with broken lines can only be exported as text.
    """
    sessions = sorted(SAMPLE_SESSIONS.glob("*.jsonl"))
    whole = [path for path in sessions if is_intact(path)]
    broken = [path for path in sessions if path not in whole]
    written = [
        write_export(folder / "traces_list", "traces_list", whole[0::4]),
        write_export(folder / "trace_list", "trace_list", whole[1::4]),
        write_export(folder / "trace_text", "trace_text", [*whole[2::4], *broken[0::2]]),
    ]
    raw = folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for path in [*whole[3::4], *broken[1::2]]:
        (raw / path.name).write_bytes(path.read_bytes())
        written.append(raw / path.name)
    return written


def write_export(folder: Path, layout: ExportLayout, sessions: Iterable[Path], json_as_text: bool = False) -> Path:
    """Write session files as one viewer-export shard; returns the parquet file.

    `json_as_text` stores JSON in plain string columns instead of the `arrow.json` extension.
    """
    rows = [_build_row(path) for path in sessions]
    kind = pa.string() if json_as_text else pa.json_(pa.string())

    def column(name: str, type_: pa.DataType | None = None) -> pa.Array:
        return pa.array([row[name] for row in rows], type_ or pa.string())

    harness = pa.array(["pi"] * len(rows), pa.string())
    columns: dict[str, pa.Array] = {"harness": harness, "session_id": column("session_id")}
    if layout == "trace_text":
        trace = column("text").cast(kind)
    else:
        trace = column("lines", pa.list_(pa.string())).cast(pa.list_(kind))
    plural = layout == "traces_list"
    columns |= {"traces" if plural else "trace": trace}
    columns |= {"file_name" if plural else "file_path": column("name")}
    if not plural:
        columns |= {"prompt": column("prompt"), "num_user_messages": column("users", pa.int64())}
    path = folder / "default" / "train" / "0000.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    pq.write_table(table, path)
    return path


def _build_row(path: Path) -> dict[str, Any]:
    text = path.read_text().rstrip("\n")
    lines = [line for line in text.split("\n") if line]
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines] if is_intact(path) else []
    header: dict[str, Any] = next((entry for entry in entries if entry["type"] == "session"), {})
    said = [
        entry["message"]["content"]
        for entry in entries
        if entry["type"] == "message" and entry["message"]["role"] == "user"
    ]
    return {
        "name": path.name,
        "session_id": header.get("id", path.stem),
        "text": json.dumps(text, ensure_ascii=False),
        "lines": lines,
        "prompt": json.dumps(said[0], ensure_ascii=False) if said else "",
        "users": len(said),
    }


def is_intact(path: Path) -> bool:
    """Return whether every line is JSON; some samples are broken on purpose."""
    try:
        return bool([json.loads(line) for line in path.read_text().split("\n") if line])
    except ValueError:
        return False
