"""Read runs published as parquet with OpenAI messages, as by nebius, NVIDIA, SWE-smith and Kwai.

Columns are found by their names below; messages may be a list or its JSON. Answers that call no
tool but end in a fenced block, as SWE-agent's and mini-swe-agent's do, become calls of `bash`;
`<function=NAME>` in the text becomes a call of NAME.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.text import replace_surrogates
from pimono_sdpo.traces.events import decode_json
from pimono_sdpo.traces.harness import hermes
from pimono_sdpo.traces.trajectories import base

COLUMNS = {
    "messages": ("trajectory", "messages", "conversations", "conversation"),
    "task": ("instance_id", "task_id", "problem_id"),
    "run": ("trajectory_id", "traj_id", "run_id", "id", "uuid"),
    "verdict": ("resolved", "target", "reward", "score", "passed"),
    "patch": ("model_patch", "generated_patch", "patch", "submission"),
    "tools": ("tools",),
    "model": ("model", "model_name"),
    "ended": ("exit_status", "finish_reason"),
    "output": ("eval_logs", "test_output"),
}
ROWS = 16
# The exit code that mini-swe-agent, OpenHands and others add to the text of a result.
_EXIT = re.compile(
    r"<returncode>(-?\d{1,9})</returncode>"
    r"|^\W?(?:(?:The )?command |process )?(?:exited|completed|finished) with (?:exit )?code:? (-?\d{1,9})\W{0,3}$"
    r"|\A(?:Exit code|exit_code): (-?\d{1,9})\b",
    re.MULTILINE | re.IGNORECASE,
)


def _recognises(file: Path) -> bool:
    if file.suffix != ".parquet":
        return False
    try:
        return _find_columns(pq.read_schema(file).names).keys() >= {"messages", "task"}
    except (OSError, pa.ArrowException):
        return True  # reading the file reports the error


def _find_columns(columns: Sequence[str]) -> dict[str, str]:
    """Return the name in this file of each column that we read."""
    present = {key: [name for name in names if name in columns] for key, names in COLUMNS.items()}
    return {key: names[0] for key, names in present.items() if names}


def _divide(file: Path) -> Iterator[base.Json]:
    columns = _find_columns(pq.read_schema(file).names)
    with pq.ParquetFile(file) as parquet:
        for batch in parquet.iter_batches(ROWS, columns=list(columns.values())):
            for row in batch.to_pylist():
                yield {key: row[name] for key, name in columns.items()}


def _read(row: base.Json) -> base.Trajectory:
    tools = row.get("tools")
    tools = decode_json(tools) if isinstance(tools, str) else tools
    messages = _read_messages(row["messages"])
    if not any(message.calls for message in messages):
        base.call_written(messages)
        names = {call.name for message in messages for call in message.calls}
        tools = [base.BASH_TOOL] if names <= {"bash"} else tools
    run, ended = row.get("run"), str(row.get("ended") or "submit").lower()
    return base.Trajectory(
        task_id=str(row["task"]),
        run_id="" if run is None else str(run),
        messages=messages,
        tools=base.drop_nulls(tools),
        model=row.get("model"),
        passed=base.to_verdict(row.get("verdict")),
        test_output=row.get("output"),
        patch=row.get("patch"),
        ended="final" if "submit" in ended or ended in {"stop", "finish"} else ended,
    )


def _read_messages(recorded: object) -> list[base.Message]:
    """Read messages or their JSON; raises FormatError."""
    recorded = decode_json(recorded) if isinstance(recorded, str) else recorded
    items = (
        [decode_json(one) if isinstance(one, str) else one for one in recorded] if isinstance(recorded, list) else []
    )
    if not items or not all(isinstance(one, dict) for one in items):
        raise base.FormatError("its messages are not a list of objects")
    messages = [base.read_message(one) for one in items]
    for message in messages:
        if message.role != "assistant":
            message.failed = base.read_code(message.text)
    return messages


def encode_session(row: base.Json) -> tuple[str, bytes]:
    """Return the id of a row with messages, and its session in the Session Trace Simple Format.

    Only runs of a task write calls into the text of an answer. A row whose messages cannot be read stays as it is.
    """
    found = _find_columns([name for name, value in row.items() if value is not None])
    names = ("session_id", found.get("run", ""))
    session_id = next((str(row[name]) for name in names if row.get(name) is not None), "")
    try:
        messages = _read_messages(row.get(found.get("messages", "")))
        if "task" in found and not any(message.calls for message in messages):
            base.call_written(messages)
        base.pair_results(messages)
    except (base.FormatError, AttributeError, LookupError, TypeError, ValueError):
        return session_id, _encode(row)
    harness = row.get("harness") or row.get("agent")
    header = {"type": "session", "harness": harness if isinstance(harness, str) else "messages", "id": session_id}
    lines = [{"type": "message", "message": _encode_message(message)} for message in messages]
    return session_id, b"\n".join(map(_encode, [header, *lines]))


def _encode(value: object) -> bytes:
    # Parquet also holds times and decimal numbers.
    return replace_surrogates(json.dumps(value, ensure_ascii=False, default=str)).encode()


def _encode_message(message: base.Message) -> base.Json:
    encoded: base.Json = {"role": message.role, "content": message.text}
    if message.calls:
        functions = [(call.id, {"name": call.name, "arguments": call.arguments}) for call in message.calls]
        encoded["toolCalls"] = [{"id": call_id, "function": function} for call_id, function in functions]
    if message.role == "tool":
        encoded["toolCallId"] = message.call_id
        if code := _EXIT.search(message.text):
            encoded["exitCode"] = int(next(filter(None, code.groups())))
    return encoded


def split_rows(content: bytes) -> list[tuple[str, bytes]]:
    """Return the id and the session of each row of JSON lines with messages, [] for any other content.

    A line that cannot be decoded stays as it is.
    """
    first = content[: content.find(b"\n") + 1 or None]
    if b'"messages"' not in first or not _is_row(_decode(first)):
        return []
    lines = [line for line in content.split(b"\n") if line.strip()]
    return [
        encode_session(row) if _is_row(row) else ("", line)
        for line, row in zip(lines, map(_decode, lines), strict=True)
    ]


def _decode(line: bytes) -> Any:
    return decode_json(line.decode(errors="replace"))


def _is_row(row: Any) -> bool:
    """Check for messages with roles; Gemini CLI's have types, and Pi's JSON mode and Hermes have their own readers."""
    messages = row.get("messages") if isinstance(row, dict) else None
    has_roles = (
        isinstance(messages, list) and bool(messages) and isinstance(messages[0], dict) and "role" in messages[0]
    )
    return has_roles and "type" not in row and not hermes.recognises(row)


FORMAT = base.Format(
    name="openai-messages",
    about="parquet with a column of messages, as nebius, NVIDIA, SWE-smith and Kwai publish them",
    recognises=_recognises,
    read=_read,
    divide=_divide,
    count=lambda file: pq.read_metadata(file).num_rows,
)
