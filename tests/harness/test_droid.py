from typing import Any

import pytest
from hypothesis import given

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import droid
from tests.harness.odd_entries import ENTRIES, check, envelope, kinds, texts

Entry = dict[str, Any]
START: Entry = {"type": "session_start", "id": "s-1", "title": "A title", "cwd": "/w"}


def says(role: str, *content: Any, **entry: Any) -> Entry:
    blocks = [{"type": "text", "text": c} if isinstance(c, str) else c for c in content]
    return envelope(type="message", message={"role": role, "content": blocks}, **entry)


def use(name: str, call_id: str = "c1", **given: Any) -> Entry:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(content: Any, call_id: str = "c1", **flags: Any) -> Entry:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **flags}


def one_result(content: Any, tool: str = "Execute", **flags: Any) -> Event:
    turn = [says("assistant", use(tool, command="make")), says("user", result(content, **flags))]
    return next(event for event in droid.read(turn) if event.kind == "tool_result")


@given(ENTRIES)
def test_odd_entries_never_raise(entries: list[Entry]) -> None:
    for entry in entries:
        droid.recognises(entry)
    droid.read_header(entries)
    check(droid.read(entries))
    check(droid.read([{"type": "message", "message": entry} for entry in entries]))


@pytest.mark.parametrize(
    ("entry", "own"),
    [
        (START, True),
        # A fork of Pi writes Anthropic's blocks into the same envelope.
        (says("assistant", use("Read")), False),
        ({"type": "compaction_state", "summaryText": "So far"}, True),
        (says("user", "hi"), False),
        ({"type": "session_start"}, False),
        ({"type": "user", "message": {"content": [use("Read")]}}, False),
    ],
)
def test_a_line_is_recognised_by_its_content(entry: Entry, own: bool) -> None:
    assert droid.recognises(entry) is own


def test_the_header_in_both_shapes() -> None:
    nested = {"type": "session_start", "session": {"id": "s-2", "cwd": "/v"}}
    assert droid.read_header([START]) == ("s-1", "/w")
    assert droid.read_header([nested]) == ("s-2", "/v")
    assert droid.read_header([]) == ("", "")


def test_a_turn() -> None:
    context = says("user", "<system-reminder>x</system-reminder>")
    context["message"]["visibility"] = "llm_only"
    read = droid.read(
        [
            START,
            context,
            says("user", "<system-reminder>\nBe brief.\n</system-reminder>\n\nFix it"),
            says("assistant", {"type": "thinking", "thinking": "hm"}, "On it.", use("Create", path="a")),
            says("user", result("made", is_error=False)),
            {"type": "todo_state", "todos": []},
        ]
    )
    spoken = "custom_message custom_message user assistant tool_call tool_result"
    assert kinds(read) == spoken.split()
    assert (texts(read, "user"), texts(read, "assistant")) == (["Fix it"], ["On it."])
    assert read[-2].tool_name == "write"
    assert all(event.on_active_branch for event in read)


@pytest.mark.parametrize(
    ("content", "flags", "tool", "is_error", "code"),
    [
        ("ok\n\n[Process exited with code 0]", {}, "Execute", False, 0),
        ("bad\n\n[Process exited with code 3]", {}, "Execute", True, 3),
        ("[Process exited with code 3]", {"is_error": False}, "Read", False, None),
        ("Error: Command failed (exit code: 1)\nls: x", {}, "Execute", True, 1),
        ([{"type": "text", "text": "no"}], {"is_error": True}, "Glob", True, None),
        ("Error: Tool execution cancelled by user", {"is_error": True}, "Execute", False, None),
    ],
)
def test_results(content: Any, flags: Entry, tool: str, is_error: bool, code: int | None) -> None:
    event = one_result(content, tool, **flags)
    assert (event.is_error, event.exit_code) == (is_error, code)


def test_an_interruption_aborts_its_own_turn() -> None:
    read = droid.read(
        [
            says("user", "One"),
            says("assistant", "Done"),
            says("user", "Two"),
            says("user", result("Error: Tool execution cancelled by user", "lost", is_error=True)),
            says("user", "Request interrupted by user"),
            says("user", "Two, but better"),
        ]
    )
    assert [e.stop_reason for e in read if e.kind == "assistant"] == ["", "aborted"]
    assert texts(read, "user") == ["One", "Two", "Two, but better"]
    assert next(e for e in read if e.kind == "tool_result").call_id == ""


def test_the_active_path_with_a_repeated_id() -> None:
    read = droid.read(
        [
            {**START, "id": "s"},
            says("user", "Ask", id="a"),
            says("assistant", "Left", id="b", parentId="a"),
            says("assistant", "Kept", id="c", parentId="a"),
            says("user", "More", id="a", parentId="c"),
            says("assistant", "End", id="e", parentId="a"),
        ]
    )
    assert [event.text for event in read if not event.on_active_branch] == ["Left"]


def test_a_compaction_keeps_what_comes_after_its_anchor() -> None:
    anchor = {"type": "compaction_state", "summaryText": "So far", "anchorMessage": {"id": "a"}}
    lines = [says("user", "Ask", id="a"), says("assistant", "Kept", id="b"), anchor]
    assert [(e.kind, e.kept_from) for e in droid.read(lines)][2] == ("compaction", 1)
    assert droid.read([lines[0], {"type": "compaction_state"}])[1].kept_from == 1


def test_the_task_of_a_subagent_is_the_request() -> None:
    start = {**START, "callingSessionId": "s-0"}
    read = droid.read([start, says("user", "Look around"), says("user", "Stop", id="b")])
    assert [event.kind for event in read] == ["other", "user", "custom_message"]
    assert read[1].on_active_branch


def test_messages_without_an_envelope() -> None:
    bare = {"type": "message", "role": "user", "content": [{"type": "text", "text": "Fix it"}]}
    assert texts(droid.read([bare]), "user") == ["Fix it"]
