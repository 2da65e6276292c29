import json
from typing import Any

import pytest
from hypothesis import given

from pimono_sdpo.traces.harness import agentsview
from pimono_sdpo.traces.parse import read_trace
from tests.harness.odd_entries import ENTRIES, check

Entry = dict[str, Any]


def message(ordinal: int, role: str, content: str, **columns: Any) -> Entry:
    return {"table": "messages", "id": 10 + ordinal, "ordinal": ordinal, "role": role, "content": content, **columns}


def call(ordinal: int, name: str, arguments: Entry, **columns: Any) -> Entry:
    return {
        "table": "tool_calls",
        "message_id": 10 + ordinal,
        "tool_name": name,
        "input_json": json.dumps(arguments),
        **columns,
    }


def end(ordinal: int, status: str, content: str = "", call_index: int = 0) -> Entry:
    position = {"tool_call_message_ordinal": ordinal, "call_index": call_index}
    return {"table": "tool_result_events", **position, "status": status, "content": content}


@given(ENTRIES)
def test_odd_entries_never_raise(entries: list[Entry]) -> None:
    for entry in entries:
        agentsview.recognises(entry)
    agentsview.read_header(entries)
    list(agentsview.list_kinds(entries))
    check(agentsview.read(entries))
    check(agentsview.read([{**entry, "table": "messages"} for entry in entries]))
    check(agentsview.read([message(1, "assistant", "x"), *({**entry, "table": "tool_calls"} for entry in entries)]))


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("I run it.\n[Bash: Run tests]\n$ npm test\nnow", "I run it.\nnow"),
        ("[Thinking]\nhm\n\nso\n[/Thinking]\nDone.", "Done."),
        ("[Read: a.py]\n[Tool: search]", ""),
        ("See [the docs] and `[x]`.", "See [the docs] and `[x]`."),
    ],
)
def test_what_agentsview_added_to_an_answer_is_removed(shown: str, text: str) -> None:
    events = agentsview.read([message(0, "assistant", shown), call(0, "Bash", {"command": "npm test"})])
    assert events[0].text == text


@pytest.mark.parametrize(
    ("ends", "content", "is_error", "lacks_status"),
    [
        ([end(0, "errored", "no")], None, True, False),
        ([end(0, "running", "a"), end(0, "completed", "b")], None, False, False),
        ([], "out", False, True),
        ([end(0, "errored", call_index=1)], "out", False, True),
    ],
)
def test_results(ends: list[Entry], content: str | None, is_error: bool, lacks_status: bool) -> None:
    entries = [message(0, "assistant", ""), call(0, "Edit", {}, tool_use_id="c", result_content=content), *ends]
    (result,) = (event for event in agentsview.read(entries) if event.kind == "tool_result")
    assert (result.is_error, result.lacks_status) == (is_error, lacks_status)
    assert result.text == (content or "\n".join(one["content"] for one in ends))


def test_who_wrote_a_message() -> None:
    entries = [
        message(0, "user", "Fix it."),
        message(1, "user", "a summary", is_compact_boundary=1),
        message(2, "user", "from a hook", is_system=1),
        message(3, "user", "a result", source_subtype="tool_result"),
        message(4, "assistant", "of a subagent", is_sidechain=1),
        message(5, "user", "No."),
    ]
    events = agentsview.read(entries)
    assert [event.kind for event in events] == ["user", "compaction", "custom_message", "other", "assistant", "user"]
    assert [event.on_active_branch for event in events] == [True, True, True, True, False, True]


def test_rows_name_the_agent() -> None:
    lines = [{"table": "sessions", "id": "s", "agent": "kiro", "source_version": "2.1"}, message(0, "user", "Hi")]
    trace = read_trace("\n".join(map(json.dumps, lines)))
    assert (trace.harness, trace.version, trace.session_id) == ("kiro", "2.1", "s")
