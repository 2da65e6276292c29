"""Test datasets with a column of messages in OpenAI's form, as most traces on the Hub are published."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pimono_sdpo.filtering import run_filter
from pimono_sdpo.runs.parquet import read_rows
from pimono_sdpo.traces.trajectories.openai_messages import encode_session, split_rows
from tests.loopback_hub import LoopbackHub, run_client
from tests.test_hub_source import EXPORT, FILTER

Json = dict[str, Any]


def call(call_id: str, name: str, **arguments: str) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def answer(call_id: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


MESSAGES: list[Json] = [
    {"role": "system", "content": "You are an agent."},
    {"role": "user", "content": "The total of the cart is wrong for an empty cart; repair it."},
    call("a", "bash", command="pytest -q"),
    answer("a", "E   IndexError: list index out of range\n1 failed in 0.1s\nProcess exited with code 1"),
    call("b", "bash", command="sed -i 's/prices\\[0\\]/sum(prices)/' cart.py"),
    answer("b", ""),
    {"role": "assistant", "content": "The total of an empty cart is now 0."},
    {"role": "user", "content": "No, that's wrong: you should not use sed, and you did not run the tests again."},
    call("c", "bash", command="pytest -q"),
    answer("c", "4 passed in 0.1s"),
    {"role": "assistant", "content": "All 4 tests pass."},
]  # fmt: skip


def write_list(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"id": "s-1", "messages": MESSAGES}]), folder / "train.parquet")


def write_json_column(folder: Path) -> None:
    row = {"id": "s-1", "messages": json.dumps(MESSAGES), "source": None}
    pq.write_table(pa.Table.from_pylist([row]), folder / "train.parquet")


def write_lines(folder: Path) -> None:
    (folder / "train.jsonl").write_text(json.dumps({"messages": MESSAGES, "id": "s-1"}) + "\n")


def write_to_disk(folder: Path) -> None:
    datasets.Dataset.from_list([{"id": "s-1", "messages": MESSAGES}]).save_to_disk(str(folder))


def read(folder: Path, out: Path) -> tuple[list[Json], Json]:
    report = run_filter(str(folder), out)
    return [*read_rows(sorted((out / "data").glob("*.parquet")))], report


@pytest.mark.parametrize("write", [write_list, write_json_column, write_lines, write_to_disk])
def test_messages_are_read_as_a_session(tmp_path: Path, write: Callable[[Path], None]) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    write(folder)
    [row], report = read(folder, tmp_path / "out")
    assert (row["session_id"], row["harness"]) == ("s-1", "messages")
    assert row["source"].endswith("s-1")
    assert row["prompt"][-1]["content"] == MESSAGES[1]["content"]
    assert set(row["categories"]) >= {"command_error", "user_feedback"}
    assert "No, that's wrong" in row["privileged_context"]
    assert "IndexError" in row["privileged_context"]
    assert report["agents"] == {
        "messages": {"": {"calls": 3, "shell_calls": 3, "without_exit_code": 2, "entries": 0, "sessions": 1}
        | dict.fromkeys(("unknown_calls", "unknown_entries"), 0)}
    }  # fmt: skip


def test_a_dataset_with_messages_is_read_from_the_hub(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    write_list(tmp_path)
    export = {"default/train/0000.parquet": (tmp_path / "train.parquet").read_bytes()}
    loopback_hub.seed("lab/traces", "dataset", {"README.md": b"---\nlicense: mit\n---\n"})
    loopback_hub.seed("lab/traces", "dataset", export, revision=EXPORT)
    _, [source], _ = run_client(loopback_hub, tmp_path, FILTER)
    assert source.endswith("/s-1")


def test_a_file_of_many_sessions_has_an_entry_for_each_and_counts_a_damaged_line(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    lines = [json.dumps({"messages": MESSAGES}), json.dumps({"id": "t", "messages": MESSAGES[:6]}), '{"messages": [']
    (folder / "train.jsonl").write_text("\n".join(lines))
    rows, report = read(folder, tmp_path / "out")
    assert [row["source"] for row in rows] == ["train.jsonl#1"]
    assert report["stages"][0]["rows_in"] == 3
    assert report["not_read"]["no_messages"]["names"] == ["train.jsonl#3"]
    assert report["lines"]["skipped"] == 1


def test_other_files_with_messages_are_left_to_their_readers() -> None:
    gemini = {"sessionId": "s", "projectHash": "h", "messages": [{"type": "user", "content": "x"}]}
    exported = {"id": "s", "source": "cli", "started_at": 1.0, "messages": [{"role": "user", "content": "x"}]}
    pi = {"type": "agent_end", "messages": [{"role": "assistant", "content": []}]}
    others: list[Json] = [pi, {"messages": []}, {"messages": "text"}, {"type": "session"}]
    for row in (gemini, exported, *others):
        assert split_rows(json.dumps(row).encode()) == [], row


def test_blocks_of_an_answer_are_calls_in_runs_of_a_task_only() -> None:
    messages = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "Run:\n```bash\nls\n```"}]
    assert b"toolCalls" not in encode_session({"messages": messages})[1]
    assert b"toolCalls" in encode_session({"messages": messages, "instance_id": "t"})[1]
