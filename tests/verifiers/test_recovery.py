"""The verifier `recovery` imitates the recorded repair, and nothing else wins."""

import json
from typing import Any

import pytest

from rewards.attacks import self_test
from rewards.verifiers.recovery import verify
from rewards.verifiers.reward import VerifierReward
from rewards.verifiers.rubric import BadSpec, Rubric, VerifierResult

Json = dict[str, Any]
SHELL = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
SPEC: Json = {
    "tools": [SHELL],
    "recovery": {
        "worked": {"name": "bash", "arguments": {"command": "bd list --parent cr-7"}},
        "failed": {"name": "bash", "arguments": {"command": "bd list --wisp cr-7"}},
    },
}


def check(*commands: str, name: str = "bash", **spec: Any) -> VerifierResult:
    calls = [{"name": name, "arguments": {"command": command}} for command in commands]
    return verify("", {**SPEC, "tool_calls": calls, **spec})


@pytest.mark.parametrize(
    ("commands", "status", "repeated"),
    [
        (["bd list --parent cr-7"], "passed", 0.0),
        (["bd  list --parent 'cr-7' 2>&1"], "passed", 0.0),
        (["bd list --wisp cr-7"], "failed", 1.0),
        (["bd list --parent cr-7", "bd list --wisp cr-7"], "failed", 1.0),
        ([], "failed", 0.0),
        (["bd list --parent cr-8"], "skipped", None),
        (["bd list --parent cr-7", "bd list --parent cr-8"], "skipped", None),
        (["bd list --parent cr-7 || true"], "skipped", None),
    ],
)
def test_only_the_recorded_repair_wins(commands: list[str], status: str, repeated: float | None) -> None:
    result = check(*commands)
    assert (result.status, result.metrics.get("repeated")) == (status, repeated)
    assert result.score == {"passed": 1.0, "failed": 0.0, "skipped": None}[status]


def test_an_invalid_call_fails_and_a_call_in_the_json_protocol_is_read() -> None:
    assert check("bd list", name="shell").category == "tool_schema_validation"
    text = json.dumps({"type": "tool_call", "name": "bash", "args": {"command": "bd list --parent cr-7"}})
    assert verify(text, {**SPEC, "format": "json"}).status == "passed"
    assert verify(f"Here it is: {text}", {**SPEC, "format": "json"}).status == "failed"


def test_other_rows_are_skipped_and_bad_specs_are_named() -> None:
    assert verify("x", {"tools": [SHELL]}).status == "skipped"
    with pytest.raises(BadSpec, match=r"`recovery\.worked` of the spec is not a call"):
        verify("x", {"recovery": {"worked": "bd"}})


def test_no_attack_wins() -> None:
    row = {
        "prompt": [{"role": "user", "content": "List the issues"}],
        "privileged_context": "Resolved by: bash bd list --parent cr-7",
        "verifier_spec": json.dumps(SPEC),
    }
    json_row = {**row, "verifier_spec": json.dumps({**SPEC, "format": "json"})}
    assert self_test(VerifierReward(Rubric([verify])), [row, json_row]) == []
