"""The trace of a run: one JSON object per line, in the order of what happened.

    {"kind": "final", "run_id": "...", "t": 4, "final": {...}}

`t` counts the model's turns from 0. Kinds and what they add: run_start (task_id, goal, seed, model
and rules), llm_request (messages: those the model had not seen before, n_messages), llm_action
(raw, action, usage), llm_parse_error (raw, error, usage), tool_result (name, args, ok, output,
changed), tests (ok, output, error), driver_note (note), final (final: the model's report with
`test_result`), run_end (ended, error and the counts). No line holds a time: a replayed run has the
same bytes.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

Kind = Literal[
    "run_start", "llm_request", "llm_action", "llm_parse_error", "tool_result", "tests",
    "driver_note", "final", "run_end",
]  # fmt: skip
Event = dict[str, Any]


def event(kind: Kind, run_id: str, t: int, **fields: Any) -> Event:
    """Return one event."""
    return {"kind": kind, "run_id": run_id, "t": t, **fields}


def write_trace(path: Path, events: Sequence[Event]) -> None:
    """Write a trace, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(
        "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in events), encoding="utf-8"
    )
    partial.replace(path)


def read_trace(path: Path) -> list[Event]:
    """Return the events of a trace."""
    # Not splitlines: texts may hold other ends of lines.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
