"""Read runs published as parquet with OpenAI messages, as by nebius, NVIDIA, SWE-smith and Kwai.

Columns are found by their names below; messages may be a list or its JSON. Answers that call no
tool but end in a fenced block, as SWE-agent's and mini-swe-agent's do, become calls of `bash`;
`<function=NAME>` in the text becomes a call of NAME.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.traces.events import decode_json
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
    recorded, tools = row["messages"], row.get("tools")
    recorded = decode_json(recorded) if isinstance(recorded, str) else recorded
    tools = decode_json(tools) if isinstance(tools, str) else tools
    if not isinstance(recorded, list) or not all(isinstance(one, dict) for one in recorded):
        raise base.FormatError("its messages are not a list of objects")
    messages = [base.read_message(one) for one in recorded]
    for message in messages:
        if message.role != "assistant":
            message.failed = base.read_code(message.text)
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


FORMAT = base.Format(
    name="openai-messages",
    about="parquet with a column of messages, as nebius, NVIDIA, SWE-smith and Kwai publish them",
    recognises=_recognises,
    read=_read,
    divide=_divide,
    count=lambda file: pq.read_metadata(file).num_rows,
)
