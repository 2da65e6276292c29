"""Runs published as parquet with OpenAI's messages: nebius, NVIDIA, SWE-smith, Kwai.

A column is found by its names below; messages may be a list or its JSON. Answers that call no tool
but end in a fenced block, as SWE-agent's and mini-swe-agent's do, become calls of `bash`;
`<function=NAME>` in the text becomes a call of NAME.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.traces.events import decode_json
from pimono_sdpo.traces.trajectories import base

MESSAGES = ("trajectory", "messages", "conversations", "conversation")
COLUMNS = {
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


def _recognises(file: Path) -> bool:
    if file.suffix != ".parquet":
        return False
    try:
        return _names(pq.read_schema(file).names).keys() >= {"messages", "task"}
    except (OSError, pa.ArrowException):
        return True  # reading it says why it cannot be read


def _names(columns: Sequence[str]) -> dict[str, str]:
    wanted = {"messages": MESSAGES, **COLUMNS}
    found = {key: [name for name in names if name in columns] for key, names in wanted.items()}
    return {key: names[0] for key, names in found.items() if names}


def _divide(file: Path) -> Iterator[base.Json]:
    names = _names(pq.read_schema(file).names)
    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches(ROWS, columns=list(names.values())):
            for row in batch.to_pylist():
                yield {key: row[name] for key, name in names.items()}


def _read(row: base.Json) -> base.Trajectory:
    messages: Any = row["messages"]
    if isinstance(messages, str):
        messages = decode_json(messages)
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise base.FormatError("its messages are not a list of objects")
    said = [base.read_message(one) for one in messages]
    for one in said:
        if one.role != "assistant":
            one.failed = base.read_code(one.text)
    tools = row.get("tools")
    tools = decode_json(tools) if isinstance(tools, str) else tools
    if not any(one.calls for one in said):
        base.call_written(said)
        names = {call.name for one in said for call in one.calls}
        tools = [base.BASH_TOOL] if names <= {"bash"} else tools
    run, ended = row.get("run"), str(row.get("ended") or "submit").lower()
    return base.Trajectory(
        task_id=str(row["task"]),
        run_id="" if run is None else str(run),
        messages=said,
        tools=base.drop_nulls(tools),
        model=row.get("model"),
        passed=base.to_verdict(row.get("verdict")),
        test_output=row.get("output"),
        patch=row.get("patch"),
        ended="final" if "submit" in ended or ended in {"stop", "finish"} else ended,
    )


FORMAT = base.Format(
    name="openai-messages",
    about="parquet with a column of messages, as nebius, NVIDIA, SWE-smith and Kwai publish them",
    recognises=_recognises,
    read=_read,
    divide=_divide,
    count=lambda file: pq.read_metadata(file).num_rows,
)
