"""Answers are parsed as actions; malformed answers are explained."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimono_sdpo.agent.driver import Action, read_action
from pimono_sdpo.llm.calls import Reply

CALL = {"type": "tool_call", "name": "grep", "args": {"pattern": "x", "rel_dir": "."}}
FINAL = {"type": "final", "summary": "done", "changes": []}
TEXT = json.dumps(CALL)


def read_json(text: str, finish: str = "stop") -> Action:
    return read_action(Reply(text, finish_reason=finish), "json")


def read_native(text: str, calls: list[dict[str, Any]], finish: str = "stop") -> Action:
    return read_action(Reply(text, calls, finish), "native")


# Answer, and what is wrong with it.
MALFORMED = [
    ("", "it is empty"),
    ("   \n", "it is empty"),
    ("I will look at the files first.", "it is prose"),
    (TEXT[:-20], "it is not valid: Input data was truncated"),
    (f"```json\n{TEXT}\n```", "stands in a code fence"),
    (f"Let me see:\n{TEXT}", "text before the JSON object"),
    (f"{TEXT}\nNow I wait.", "trailing characters"),
    (TEXT + TEXT, "trailing characters"),
    (json.dumps([CALL]), "text before the JSON object"),
    ('{"type": "tool_call", "name": "grep", "args": "x"}', "Expected `object`, got `str`"),
    ('{"type": "tool_call", "name": " ", "args": {}}', "at `$.name`"),
    ('{"type": "tool_call", "name": "a", "args": {}, "id": 1}', "unknown field `id`"),
    ('{"type": "final"}', "missing required field `summary`"),
    ('{"type": "tool_call", "name": "a", "args": {"n": NaN}}', "invalid character"),
    ('{"type": "tool_call", "name": "a", "args": {"n": 9223372036854775808}}', "too large"),
    ('{"type": "tool_call", "name": "a", "args": {"n": ' + "[" * 80 + "]" * 80 + "}}", "deeper"),
    ("[" * 100_000, "prose"),
    ('{"a":' * 100_000, "nested too deeply"),
    ("{" * 100_000, "it is not valid"),
]  # fmt: skip


def test_what_strict_takes() -> None:
    assert read_json(TEXT) == Action("tool_call", "grep", CALL["args"])  # type: ignore[arg-type]
    assert read_json(f"\n {json.dumps(FINAL, indent=1)} ") == Action("final", args={"summary": "done", "changes": []})
    assert read_json(f"<think>hm {{}}</think>\n{TEXT}").name == "grep"
    assert read_json(json.dumps({**CALL, "thought": "hm"})).kind == "tool_call"
    assert read_json(TEXT).render() == CALL
    assert read_json(json.dumps(FINAL)).render() == FINAL


@pytest.mark.parametrize(("answer", "why"), MALFORMED)
def test_a_malformed_answer_is_explained(answer: str, why: str) -> None:
    read = read_json(answer)
    assert read.kind == "parse_error"
    assert why in read.malformed


def test_a_truncated_answer_is_reported_to_the_model() -> None:
    told = read_json(TEXT[:-1], finish="length").malformed
    assert told.startswith("it was cut off at the maximum length: it is not valid")
    assert read_native("All is", [], finish="length").kind == "parse_error"


def call(name: Any, arguments: Any) -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_native_calls() -> None:
    good = read_native("I look.", [call("grep", '{"pattern": "x"}')])
    assert (good.name, good.args, good.text, good.malformed) == (
        "grep", {"pattern": "x"}, "I look.", "",
    )  # fmt: skip
    assert read_native("", [call("grep", "")]).args == {}
    assert read_native("It is done.", []).args == {"summary": "It is done."}
    assert "2 calls" in read_native("", [call("grep", "{}"), call("x", "{")]).malformed


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("", []),
        ("<think>nothing</think>", []),
        ("", [call("grep", '{"pattern": ')]),
        ("", [call("grep", "[]")]),
        ("", [call("", "{}")]),
        ('<tool_call>\n{"name": "grep"}\n</tool_call>', []),
        ("<|tool_call>call:grep{}", []),
        (TEXT, []),
    ],
)
def test_native_answers_that_cannot_be_read(text: str, calls: list[dict[str, Any]]) -> None:
    action = read_native(text, calls)
    assert action.kind == "parse_error"
    assert action.malformed


PIECES = st.sampled_from(
    ['{"type": "tool_call"', '"name": "grep"', '"args": {', "}", ",", "```json\n", "\n```", '"', "{",
     '{"type": "final", "summary": "s"}', TEXT, "prose", "\\ud800", "<think>", "</think>", "[", "1e999"]
)  # fmt: skip


@given(st.lists(PIECES | st.text(), max_size=12).map("".join))
def test_every_action_can_be_written_and_read_again(text: str) -> None:
    for action in (read_json(text), read_native(text, []), read_native("", [call("grep", text)])):
        if action.kind == "parse_error":
            assert action.malformed
        else:
            assert read_json(json.dumps(action.render())).render() == action.render()
