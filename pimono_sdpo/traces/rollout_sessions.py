"""Write rollouts as sessions in the Hub's Session Trace Simple Format.

Format: https://huggingface.co/docs/hub/session-traces-format. In the json protocol calls are read
from the steps, and their results lose the heading.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

COLUMNS = ("run_id", "suite", "model", "protocol", "test_policy", "messages", "tools", "steps")
OWN = "repo_agent"
_ENCODER = msgspec.json.Encoder()
Json = dict[str, Any]


def name_harness(row: Mapping[str, Any]) -> str:
    """Return the agent of a run of ours, or the format that a run was imported from."""
    if not row["test_policy"]:
        return str(row["suite"])
    # It has one tool, our own agent several.
    return "mini-swe-agent" if len(row["tools"]) == 1 else OWN


def encode_session(row: Mapping[str, Any]) -> bytes:
    """Return the JSON lines of a rollout; arguments of its steps may be JSON text."""
    steps = {step["n_context"]: step for step in row["steps"] if step["name"]}
    header = {"type": "session", "harness": name_harness(row), "id": row["run_id"]}
    lines: list[Json] = [{**header, "model": row["model"]}]
    is_json, failed = row["protocol"] == "json", None
    for at, turn in enumerate(row["messages"]):
        said = {"role": turn["role"], "content": turn["content"] or ""}
        if failed is not None:
            said["role"], said["toolCallId"], said["isError"] = "tool", f"call_{at - 1}", failed
            if is_json:
                said["content"] = said["content"].removeprefix("[tool_result]\n")
        failed = None
        if step := steps.get(at):
            failed = not step["ok"] or step["tests_ok"] is False
            args = step["args"]
            text = args if isinstance(args, str) else _ENCODER.encode(args).decode()
            function = {"name": step["name"], "arguments": text}
            said["toolCalls"] = [{"id": f"call_{at}", "function": function}]
            if is_json:
                said["content"] = ""
        lines.append({"type": "message", "message": said})
    return _ENCODER.encode_lines(lines)
