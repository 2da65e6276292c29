import json
from typing import Any

import pytest
from hypothesis import given

from pimono_sdpo.traces.harness import simple
from tests.harness.odd_entries import ENTRIES, check, kinds, texts

Entry = dict[str, Any]
HEADER: Entry = {"type": "session", "harness": "my-agent", "id": "s-1", "name": "A title"}


def says(role: str, content: Any = "", **message: Any) -> Entry:
    return {"type": "message", "message": {"role": role, "content": content, **message}}


def calls(name: str, given: Any, key: str = "toolCalls") -> Entry:
    call = {"id": "c1", "function": {"name": name, "arguments": given}}
    return says("assistant", "", **{key: [call]})


@given(ENTRIES)
def test_odd_entries_never_raise(entries: list[Entry]) -> None:
    for entry in entries:
        simple.recognises(entry)
    simple.read_header(entries)
    check(simple.read(entries))
    messages = [{"type": "message", "message": entry} for entry in entries]
    if not any(map(simple._is_pi, messages)):
        check(simple.read(messages))


def test_only_the_header_is_recognised() -> None:
    assert simple.recognises(HEADER)
    assert not simple.recognises({"type": "session", "version": 3, "id": "s"})
    assert not simple.recognises(says("user", "hi"))
    assert simple.read_header([HEADER]) == ("s-1", "")
    assert simple.read_header([{**HEADER, "cwd": "/w"}]) == ("s-1", "/w")


@pytest.mark.parametrize("key", ["toolCalls", "tool_calls"])
def test_a_session(key: str) -> None:
    read = simple.read(
        [
            HEADER,
            says("system", "Be brief."),
            says("user", "Fix it", timestamp=1_767_225_600_000),
            calls("execute_command", '{"command": "make"}', key),
            says("tool", "Command exited with code 2", toolCallId="c1"),
            says("assistant", [{"type": "text", "text": "Done."}], reasoningContent="hm"),
        ]
    )
    assert kinds(read) == "custom_message user assistant tool_call tool_result assistant".split()
    assert read[2].timestamp == "2026-01-01T00:00:00+00:00"
    assert json.loads(read[4].arguments) == {"command": "make"}
    assert (read[5].tool_name, read[5].is_error, read[5].exit_code) == ("bash", True, 2)
    assert texts(read, "assistant") == ["", "Done."]


@pytest.mark.parametrize(
    ("message", "is_error"),
    [
        ({}, False),
        ({"is_error": True}, True),
        ({"isError": True}, True),
        ({"isError": False}, False),
        ({"error": "no such tool"}, True),
        ({"exitCode": 1}, True),
    ],
)
def test_error_flags(message: Entry, is_error: bool) -> None:
    read = simple.read([calls("look", "{}"), says("tool", "x", tool_call_id="c1", **message)])
    assert (read[-1].call_id, read[-1].is_error) == ("c1", is_error)


def test_a_result_without_its_call_has_no_tool_name() -> None:
    assert simple.read([says("tool", "x", toolCallId="lost")])[0].call_id == ""


def test_a_cancelled_answer_is_aborted() -> None:
    assert simple.read([says("assistant", "Well", stopReason="cancelled")])[0].stop_reason == "aborted"


def test_pi_entries_under_the_header_are_read_as_pis() -> None:
    block = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}}
    read = simple.read(
        [
            HEADER,
            says("user", "Fix it"),
            says("assistant", [block], stopReason="toolUse"),
            says("toolResult", [{"type": "text", "text": "no"}], toolCallId="c1", isError=True),
        ]
    )
    assert kinds(read) == "user assistant tool_call tool_result".split()
    assert read[-1].is_error
