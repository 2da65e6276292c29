"""Trajectories and pull requests written by hand, as parquet."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Json = dict[str, Any]


def step(thought: str, command: str) -> str:
    return f"THOUGHT: {thought}\n\n```bash\n{command}\n```"


def trajectory(instance: str, steps: int = 4, sample: int = 0) -> Json:
    """A run of an agent: system, issue, then steps with their observations."""
    messages = [
        {"role": "system", "content": "You are an agent that works in a shell."},
        {"role": "user", "content": f"Issue of {instance}: the parser drops the last row."},
    ]
    for number in range(steps):
        messages += [
            {"role": "assistant", "content": step(f"step {number}", f"grep -rn row{sample} src")},
            {"role": "user", "content": f"Observation:\nsrc/parser.py:{number}: row{sample}"},
        ]
    return {
        "instance_id": instance,
        "repo": "acme/" + instance.partition("-")[0],
        "messages": messages,
        "exit_status": "Submitted",
    }


def pull_request(instance: str) -> Json:
    return {
        "instance_id": instance,
        "problem_statement": "The parser drops the last row.",
        "patch": (
            "diff --git a/src/flush_guard.py b/src/flush_guard.py\n--- a/src/flush_guard.py\n"
            "+++ b/src/flush_guard.py\n@@ -1 +1 @@\n-x\n+flush_pending_rows(buffer)\n"
        ),
        "base_commit": "abc123",
        "title": "Flush what is pending",
        "body": "Calls flush_pending_rows at the end.",
    }


def write_trajectories(folder: Path, files: int = 3, groups: int = 4, rows: int = 10) -> Path:
    """`files` files of `groups` row groups; ten instances, each with its samples."""
    folder.mkdir(parents=True)
    for file in range(files):
        found = []
        for row in range(groups * rows):
            number = file * groups * rows + row
            found.append(trajectory(f"proj{number % 10}-{number % 10}", 2 + number % 4, number))
        table = pa.Table.from_pylist(found)
        pq.write_table(table, folder / f"train-{file:05}.parquet", row_group_size=rows)
    return folder


def write_pull_requests(path: Path, numbers: range = range(10)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [pull_request(f"proj{number}-{number}") for number in numbers]
    pq.write_table(pa.Table.from_pylist(records), path)
    return path
