"""Hand-made rollouts: what an agent of the json or the native protocol leaves behind."""

import difflib
import json
from pathlib import Path
from typing import Any

from datasets import Dataset

from pimono_sdpo.schema import ROLLOUT

Json = dict[str, Any]
BUGGY = "def add(a, b):\n    return a - b\n"
FIXED = "def add(a, b):\n    return a + b\n"
OTHER = "def add(a, b):\n    return a\n"
CASES = [{"args": [1, 2], "expected": 3}, {"args": [0, 0], "expected": 0}]


def _tool(name: str, required: list[str], **properties: str) -> Json:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": required,
        "additionalProperties": False,
    }
    about = {"name": name, "description": f"{name}.", "parameters": schema}
    return {"type": "function", "function": about}


TOOLS = [
    _tool("grep", ["pattern"], pattern="string", rel_dir="string"),
    _tool("list_files", ["rel_dir"], rel_dir="string", max_files="integer"),
    _tool("read_file", ["rel_path"], rel_path="string"),
    _tool("write_file", ["rel_path", "content"], rel_path="string", content="string"),
]


def read(path: str = "add.py", text: str = BUGGY) -> Json:
    return {"name": "read_file", "args": {"rel_path": path}, "result": text}


def write(text: str, passes: bool, path: str = "add.py") -> Json:
    said = "[TESTS PASS] 2 passed" if passes else "[TESTS FAIL] 1 failed\nassert -1 == 3"
    args = {"rel_path": path, "content": text}
    return {"name": "write_file", "args": args, "result": f"ok\n{said}", "tests_ok": passes}


def prose(text: str = "I would read the file first.") -> Json:
    return {"kind": "parse_error", "text": text, "result": "Answer with one JSON object."}


def final(summary: str = "fixed") -> Json:
    return {"kind": "final", "args": {"summary": summary, "changes": ["add.py"]}}


def patch_of(before: str, after: str, path: str = "add.py") -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    text = "".join(lines)
    return f"diff --git a/{path} b/{path}\n{text}" if text else ""


def rollout(task: str = "fix_add", seed: int = 42, actions: list[Json] | None = None, **more: Any) -> Json:
    """A rollout of these actions; tests_ok and patch are those of the last write."""
    actions = [read(), write(FIXED, True), final()] if actions is None else actions
    protocol = more.pop("protocol", "json")
    messages = [
        {"role": "system", "content": "You fix bugs. Answer with one JSON object."},
        {"role": "user", "content": f"Task {task}: make add.py right."},
    ]
    steps: list[Json] = []
    for action in actions:
        kind = action.get("kind", "tool_call")
        named, args = action.get("name"), action.get("args")
        step = {"index": len(steps), "kind": kind, "name": named, "args": args}
        ok = action.get("ok", kind in {"tool_call", "final", "loop"})
        told = {"ok": ok, "error": None if ok else "failed", "n_context": len(messages)}
        steps.append({**step, **told, "tests_ok": action.get("tests_ok"), "malformed": None})
        messages += _said(action, kind, protocol, len(steps))
    writes = [action for action in actions if action.get("name") == "write_file"]
    text = writes[-1]["args"]["content"] if writes else BUGGY
    row = {
        "run_id": f"{task}-{seed}", "task_id": task, "suite": "tiny", "seed": seed, "model": "m",
        "temperature": 0.7, "protocol": protocol, "test_policy": "on_write", "messages": messages,
        "tools": TOOLS, "steps": steps,
        "tests_ok": bool(writes) and bool(writes[-1].get("tests_ok")), "test_output": "2 passed",
        "patch": patch_of(BUGGY, text), "files_touched": ["add.py"] if writes else [],
        "n_steps": len(steps), "n_tool_calls": sum(s["kind"] != "final" for s in steps),
        "n_test_runs": len(writes), "parse_errors": sum(s["kind"] == "parse_error" for s in steps),
        "loop_detections": sum(s["kind"] == "loop" for s in steps), "prompt_tokens": 10,
        "completion_tokens": 5, "cost": None, "error": None, "ended": "final",
    }  # fmt: skip
    return {**row, **more}


def _said(action: Json, kind: str, protocol: str, number: int) -> list[Json]:
    if kind == "parse_error":
        said = {"role": "assistant", "content": action["text"]}
    elif kind == "final":
        called = {"type": "final", **action["args"]}
        said = {"role": "assistant", "content": json.dumps(called)}
    elif protocol == "json":
        called = {"type": "tool_call", "name": action["name"], "args": action["args"]}
        said = {"role": "assistant", "content": f"Let me see.\n{json.dumps(called)}"}
    else:
        function = {"name": action["name"], "arguments": action["args"]}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
    if "result" not in action:
        return [said]
    if protocol == "native" and kind != "parse_error":
        told = {"role": "tool", "content": action["result"], "tool_call_id": f"call_{number}"}
        return [said, {**told, "name": action["name"]}]
    return [said, {"role": "user", "content": f"[tool_result]\n{action['result']}"}]


def task(name: str, **more: Any) -> Json:
    spec = {"files": {"add.py": BUGGY}, "tests": {"kind": "value", "module": "add.py", "entry": "add", "cases": CASES}}
    row = {"task_id": name, "repo": "../repo", "goal": f"Task {name}", "verifier_spec": spec}
    return {**row, **more}


def write_folder(folder: Path, rows: list[Json], tasks: list[Json] | None = None, split: str | None = None) -> Path:
    """A folder of rollouts, a shard per eight rows, and the repo beside it."""
    (folder / "data").mkdir(parents=True)
    (folder / "traces").mkdir()
    repo = folder.parent / "repo"
    repo.mkdir(exist_ok=True)
    (repo / "add.py").write_text(BUGGY)
    shards = [rows[start : start + 8] for start in range(0, len(rows), 8)]
    for number, shard in enumerate(shards):
        name = f"{split or 'train'}-{number:05}-of-{len(shards):05}.parquet"
        Dataset.from_list(shard, features=ROLLOUT).to_parquet(folder / "data" / name)
    names = dict.fromkeys(row["task_id"] for row in rows)
    suite: Json = {"name": "tiny", "tasks": tasks or [task(name) for name in names]}
    suite |= {"split": split} if split else {}
    (folder / "suite.json").write_text(json.dumps(suite))
    (folder / "report.json").write_text(json.dumps({"pimono_sdpo": "0"}))
    return folder
