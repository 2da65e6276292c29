from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import copilot
from pimono_sdpo.traces.parse import read_trace
from tests.harness.odd_entries import ENTRIES, check, texts

SESSIONS = Path(__file__).with_name("sessions")
Entry = dict[str, Any]


def load(name: str) -> tuple[Event, ...]:
    return read_trace((SESSIONS / name).read_bytes()).events


def complete(text: str, **data: Any) -> Event:
    """Return the event of a shell's result."""
    asked = {"toolCallId": "c", "name": "bash", "arguments": {"command": "make"}}
    lines: list[Entry] = [
        {"type": "assistant.message", "data": {"content": "", "toolRequests": [asked]}},
        {"type": "tool.execution_complete", "data": {"toolCallId": "c", "result": {"content": text}, **data}},
    ]
    return copilot.read(lines)[-1]


@given(ENTRIES)
def test_odd_entries_never_raise(entries: list[Entry]) -> None:
    for entry in entries:
        copilot.recognises(entry)
    copilot.read_header(entries)
    check(copilot.read(entries))
    check(copilot.read([{"type": "tool.execution_complete", "data": entry} for entry in entries]))
    check(copilot.read([{"type": "assistant.message", "data": {"toolRequests": entries}}]))


@pytest.mark.parametrize(
    ("text", "data", "code", "is_error"),
    [
        ("1 failed\n<exited with exit code 1>", {"success": True}, 1, True),
        ("ok\n<shellId: 3 completed with exit code 0>", {"success": True}, 0, False),
        ("<command with shellId: 3 completed with exit code -1>", {"success": True}, -1, True),
        ("<exited with exit code 1>\nis what it prints", {"success": True}, None, False),
        ("<command started in background with ID: x>", {"success": True}, None, False),
        ("", {"success": False, "result": None, "error": {"message": "no shell"}}, None, True),
        ("x", {"result": {"content": "x", "contents": [{"type": "shell_exit", "exitCode": 2}]}}, 2, True),
        (
            "",
            {"success": False, "result": None, "error": {"message": "The user rejected this tool call."}},
            None,
            False,
        ),
    ],
)
def test_the_result_of_a_command(text: str, data: Entry, code: int | None, is_error: bool) -> None:
    event = complete(text, **data)
    assert (event.tool_name, event.exit_code, event.is_error) == ("bash", code, is_error)


def test_what_a_person_typed() -> None:
    events = load("copilot-1.0.jsonl")
    active = [event for event in events if event.on_active_branch]
    assert texts(active, "user") == [
        "Fix the failing test of the parser.",
        "Use the strict mode, please.",
        "Never push to main.",
        "No, keep the old name of the function.",
        "Thanks, that is all.",
    ]
    assert [event.text for event in events if event.is_veto] == ["Never push to main."]
    assert {"Do what the skill says.", "Continue."} <= {*texts(active, "custom_message")}
    assert texts([event for event in events if event.is_subagent], "assistant") == ["Nothing there."]


def test_calls_and_what_the_user_ran_and_took_back() -> None:
    events = load("copilot-1.0.jsonl")
    (own,) = (event for event in events if event.kind == "bash")
    assert (own.arguments, own.exit_code) == ("ls", 0)
    names = [event.tool_name for event in events if event.kind == "tool_call"]
    assert names[:5] == ["report_intent", "bash", "read", "edit", "edit"]
    rewound = [event.text for event in events if not event.on_active_branch and not event.is_subagent]
    assert rewound == ["Delete everything.", "Deleted."]
    assert texts(list(events), "compaction") == ["So far: the parser.", ""]
    assert [event.stop_reason for event in events if event.kind == "assistant"][-1] == "aborted"


def test_the_editor_of_earlier_versions_is_several_tools() -> None:
    calls = [event.tool_name for event in load("copilot-0.0.jsonl") if event.kind == "tool_call"]
    assert calls == ["read", "edit", "write", "insert", "bash", "think"]


def test_a_session_that_begins_in_the_middle_of_a_turn() -> None:
    start: Entry = {"type": "tool.execution_start", "data": {"toolCallId": "c", "toolName": "view", "arguments": {}}}
    done: Entry = {"type": "tool.execution_complete", "data": {"toolCallId": "c", "result": {"content": "x"}}}
    assert [(e.kind, e.tool_name) for e in copilot.read([start, done])] == [
        ("tool_call", "read"),
        ("tool_result", "read"),
    ]
    assert [e.kind for e in copilot.read([start, start])] == ["tool_call", "other"]


def test_homes() -> None:
    assert copilot.list_homes({}, Path("/h")) == [Path("/h/.copilot/session-state")]
    assert copilot.list_homes({"COPILOT_HOME": "/c", "XDG_STATE_HOME": "/s"}, Path("/h")) == [
        Path("/c/session-state"),
        Path("/s/.copilot/session-state"),
    ]
