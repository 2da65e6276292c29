"""Rows with answers, as rollouts give them: every field of a turn, null where it says nothing."""

from pathlib import Path
from typing import Any

from datasets import Dataset, Features

from pimono_sdpo.schema import PAIR, STEP

Row = dict[str, Any]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file",
            "parameters": {
                "type": "object",
                "properties": {"rel_path": {"type": "string"}, "max_chars": {"type": "integer"}},
                "required": ["rel_path"],
            },
        },
    }
]


def turn(role: str, content: str | None = None, **fields: Any) -> Row:
    empty = {"content": content, "tool_calls": None, "tool_call_id": None, "name": None}
    return {"role": role, **empty, **fields}


def reads(path: str, call: str = "c1") -> Row:
    function = {"name": "read_file", "arguments": {"rel_path": path}}
    return turn("assistant", tool_calls=[{"id": call, "type": "function", "function": function}])


def asked(number: int, said: str = "def f(): pass") -> list[Row]:
    return [
        turn("system", "You fix code."),
        turn("user", f"Fix bug {number} in src/f{number}.py"),
        reads(f"src/f{number}.py"),
        turn("tool", said, tool_call_id="c1", name="read_file"),
    ]


def step(number: int, **changes: Any) -> Row:
    return {
        "prompt": asked(number),
        "completion": [reads(f"tests/t{number}.py", "c2")],
        "tools": TOOLS,
        "task_id": f"fix_{number}",
        "run_id": f"run-{number}",
        "step": 2,
        "n_tokens": 100,
        "split": "train",
        **changes,
    }


def pair(number: int, **changes: Any) -> Row:
    return {
        "prompt": asked(number),
        "chosen": [reads(f"tests/t{number}.py", "c2")],
        "rejected": [turn("assistant", "I cannot.")],
        "tools": TOOLS,
        "target": "step",
        "task_id": f"fix_{number}",
        "score_chosen": [1.0],
        "score_rejected": [0.0],
        "run_chosen": f"run-{number}",
        "run_rejected": f"other-{number}",
        "split": "train",
        **changes,
    }


def steps(*rows: Row) -> Dataset:
    return _filled(list(rows) or [step(n) for n in range(5)], STEP)


def pairs(*rows: Row) -> Dataset:
    return _filled(list(rows) or [pair(n) for n in range(5)], PAIR)


def written(folder: Path, rows: Dataset, test: Dataset | None = None) -> Path:
    """Put rows where a training finds them."""
    (folder / "data").mkdir(parents=True)
    rows.to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    if test is not None:
        test.to_parquet(folder / "data" / "test-00000-of-00001.parquet")
    return folder


def _filled(rows: list[Row], columns: Features) -> Dataset:
    """What no test looks at is null."""
    return Dataset.from_list([{**dict.fromkeys(columns), **row} for row in rows], features=columns)
