"""Answers read as actions: what strict takes, what lenient mends, what neither does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimono_sdpo.agent.protocol import Action, read_json, read_native, render_action

CALL = {"type": "tool_call", "name": "grep", "args": {"pattern": "x", "rel_dir": "."}}
FINAL = {"type": "final", "summary": "done", "changes": []}
TEXT = json.dumps(CALL)

# Answer, what is wrong with it in the eyes of a strict reader, whether a lenient one takes it.
MALFORMED = [
    ("", "it is empty", False),
    ("   \n", "it is empty", False),
    ("I will look at the files first.", "it is prose", False),
    (TEXT[:-20], "it is not valid JSON", False),
    ('{"type": "tool_call", "name": "grep"', "it is not valid JSON", False),
    (f"```json\n{TEXT}\n```", "stands in a code fence", True),
    (f"Let me see:\n{TEXT}", "text before the JSON object", True),
    (f"{TEXT}\nNow I wait.", "text after the JSON object", True),
    (TEXT + TEXT, "text after the JSON object", True),
    (json.dumps([CALL]), "text before the JSON object", True),
    ('{"name": "grep", "arguments": {"pattern": "x", "rel_dir": "."}}', "no `type`", True),
    ('{"type": "tool_call", "name": "grep", "args": "x"}', "is not an object", False),
    ('{"type": "tool_call", "args": {}}', "has no `name`", False),
    ('{"type": "tool_call", "name": " ", "args": {}}', "has no `name`", False),
    ('{"type": "tool_call", "name": 7, "args": {}}', "has no `name`", False),
    ('{"type": "tool_call", "name": "grep"}', "has no `args`", True),
    ('{"type": "tool_call", "name": "a", "args": {}, "id": 1}', "unknown key `id`", True),
    ('{"type": "final"}', "has no `summary`", False),
    ('{"type": "final", "summary": 3}', "has no `summary`", False),
    ('{"type": "final", "summary": "s", "changes": {}}', "is not a list", False),
    ('{"type": "tool_call", "name": "a", "args": {"n": NaN}}', "not a JSON number", False),
    ('{"type": "tool_call", "name": "a", "args": {"n": 1e999}}', "not a JSON number", False),
    ('{"type": "tool_call", "name": "a", "args": {"n": 9223372036854775808}}', "too large", False),
    ('{"type": "tool_call", "name": "a", "args": {"n": ' + "9" * 5000 + "}}", "too large", False),
    ('{"type": "tool_call", "name": "a", "args": {"n": ' + "[" * 80 + "]" * 80 + "}}", "deeper", False),
    ("[" * 100_000, "prose", False),
    ('{"a":' * 100_000, "nesting is too large", False),
    ("{" * 100_000, "it is not valid JSON", False),
]  # fmt: skip


def test_what_strict_takes() -> None:
    assert read_json(TEXT) == Action("tool_call", "grep", CALL["args"])  # type: ignore[arg-type]
    assert read_json(f"\n {json.dumps(FINAL, indent=1)} ") == Action("final", report=FINAL)
    assert read_json(f"<think>hm {{}}</think>\n{TEXT}").name == "grep"
    assert read_json(json.dumps({**CALL, "thought": "hm"})).kind == "tool_call"
    assert render_action(read_json(TEXT)) == TEXT
    assert render_action(read_json(json.dumps(FINAL))) == json.dumps(FINAL)


@pytest.mark.parametrize(("answer", "why", "mended"), MALFORMED)
def test_what_is_malformed_is_told(answer: str, why: str, mended: bool) -> None:
    strict, lenient = read_json(answer), read_json(answer, lenient=True)
    assert strict.kind == "parse_error"
    assert why in strict.malformed
    assert (lenient.kind == "tool_call") == mended
    assert lenient.malformed
    if mended:
        assert read_json(render_action(lenient)) == Action("tool_call", lenient.name, lenient.args)


def test_an_answer_that_was_cut_is_told_so() -> None:
    told = read_json(TEXT[:-1], cut=True).malformed
    assert told.startswith("it was cut off at the maximum length: it is not valid JSON")
    assert read_native("All is", [], cut=True).kind == "parse_error"


def test_half_characters_are_replaced() -> None:
    action = read_json('{"type": "tool_call", "name": "a", "args": {"\\ud800": ["\\udfff"]}}')
    assert action.args == {"\ufffd": ["\ufffd"]}


def call(name: Any, arguments: Any) -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_native_calls() -> None:
    good = read_native("I look.", [call("grep", '{"pattern": "x"}')])
    assert (good.name, good.args, good.text, good.malformed) == (
        "grep", {"pattern": "x"}, "I look.", "",
    )  # fmt: skip
    assert read_native("", [call("grep", "")]).args == {}
    assert read_native("It is done.", []).report == {"type": "final", "summary": "It is done."}
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


def test_lenient_takes_a_call_written_into_the_text() -> None:
    text = '<tool_call>\n{"name": "grep", "arguments": {"pattern": "x"}}\n</tool_call>'
    action = read_native(text, [], lenient=True)
    assert (action.name, action.args) == ("grep", {"pattern": "x"})
    assert action.malformed == "a call written into the text"


PIECES = st.sampled_from(
    ['{"type": "tool_call"', '"name": "grep"', '"args": {', "}", ",", "```json\n", "\n```", '"', "{",
     '{"type": "final", "summary": "s"}', TEXT, "prose", "\\ud800", "<think>", "</think>", "[", "1e999"]
)  # fmt: skip


@given(st.lists(PIECES | st.text(), max_size=12).map("".join), st.booleans())
def test_every_answer_is_an_action_that_can_be_render_action(text: str, lenient: bool) -> None:
    for action in (
        read_json(text, lenient=lenient),
        read_native(text, [], lenient=lenient),
        read_native("", [call("grep", text)], lenient=lenient),
    ):
        if action.kind == "parse_error":
            assert action.malformed
        else:
            render_action(action).encode()
            assert read_json(render_action(action)).kind == action.kind
