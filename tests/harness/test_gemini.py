import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import gemini
from pimono_sdpo.traces.parse import read_trace
from tests.harness.odd_entries import ENTRIES, check, texts

SESSIONS = Path(__file__).with_name("sessions")
PGID = "\nProcess Group PGID: 7"
Entry = dict[str, Any]


def load(name: str) -> list[Event]:
    return [*read_trace((SESSIONS / name).read_bytes()).events]


def response(text: str, name: str = "run_shell_command", key: str = "output") -> Entry:
    return {"functionResponse": {"id": "c", "name": name, "response": {key: text}}}


@given(ENTRIES)
def test_odd_entries_never_raise(entries: list[Entry]) -> None:
    parts = [{"functionCall": entry, "functionResponse": entry} for entry in entries]
    for entry in entries:
        gemini.recognises_gemini(entry)
        gemini.recognises_qwen(entry)
    gemini.read_gemini_header(entries)
    gemini.read_qwen_header(entries)
    check(gemini.read_gemini(entries))
    check(gemini.read_gemini([{"messages": entries}, {"$set": {"messages": entries}}]))
    check(gemini.read_gemini([{"id": "x", "type": "gemini", "content": parts, "toolCalls": entries}]))
    check(gemini.read_qwen(entries))
    check(gemini.read_qwen([{"type": "assistant", "message": {"parts": parts}}]))
    check(gemini.read_qwen([{"type": "tool_result", "message": {"parts": parts}}]))


@pytest.mark.parametrize(
    ("text", "status", "code", "is_error"),
    [
        (f"Output: 1 failed\nExit Code: 1{PGID}", "success", 1, True),
        (f"Output: (empty){PGID}", "success", 0, False),
        (f"<untrusted_context>\nOutput: no\nExit Code: 2{PGID}\n</untrusted_context>", "success", 2, True),
        (
            "Command: x\nError: (none)\nExit Code: 0\nSignal: (none)\nBackground PIDs: (none)" + PGID,
            "success",
            0,
            False,
        ),
        (
            "Command: x\nError: (none)\nExit Code: (none)\nSignal: 9\nBackground PIDs: (none)" + PGID,
            "success",
            None,
            False,
        ),
        (f"Output: (empty)\nError: spawn failed{PGID}", "success", None, False),
        (f"Output too large. Showing first 8 and last 8 characters.{PGID}", "success", 0, False),
        ("Command moved to background (PID: 7). Output hidden.", "success", None, False),
        ("Command timed out after 120000ms before it could complete.", "success", None, True),
        ("Command was cancelled by user before it could complete.", "success", None, False),
        ("[Operation Cancelled] Reason: User denied execution.", "cancelled", None, False),
    ],
)
def test_the_result_of_a_command(text: str, status: str, code: int | None, is_error: bool) -> None:
    call = {"id": "c", "name": "run_shell_command", "args": {"command": "make"}}
    lines: list[Entry] = [
        {"uuid": "1", "parentUuid": None, "type": "assistant", "message": {"parts": [{"functionCall": call}]}},
        {
            "uuid": "2",
            "type": "tool_result",
            "toolCallResult": {"status": status},
            "message": {"parts": [response(text)]},
        },
    ]
    stored = {
        "id": "g",
        "type": "gemini",
        "content": "",
        "toolCalls": [call | {"status": status, "result": [response(text)]}],
    }
    for event in (gemini.read_qwen(lines)[2], gemini.read_gemini([stored])[2]):
        assert (event.kind, event.tool_name, event.exit_code, event.is_error) == (
            "tool_result",
            "bash",
            code,
            is_error,
        )


def test_the_last_version_of_a_message_counts_and_results_are_read_once() -> None:
    events = load("gemini-jsonl.jsonl")
    results = [event for event in events if event.kind == "tool_result"]
    assert len({event.call_id for event in results}) == len(results) == 19
    assert [(event.is_error, event.exit_code) for event in results[:2]] == [(True, 1), (True, None)]


def test_what_a_person_typed_and_took_back() -> None:
    events = load("gemini-jsonl.jsonl")
    typed = [event.text for event in events if event.kind == "user" and event.on_active_branch]
    assert typed == ["Fix the failing test of the parser.", "No, keep the old name.", "Rename it to parse.", "Thanks."]
    assert texts([event for event in events if not event.on_active_branch], "assistant") == ["Renamed."]
    assert "/help" in texts(events, "custom_message")
    (summary,) = (event for event in events if event.kind == "compaction")
    assert events[summary.kept_from or 0].text == "Rename it to parse."
    assert sum(event.stop_reason == "aborted" for event in events) == 1


def test_a_document_is_one_session() -> None:
    content = (SESSIONS / "gemini-document.jsonl").read_bytes()
    document = json.loads(content)
    for trace in (content, json.dumps(document).encode()):
        read = read_trace(trace)
        assert (read.harness, read.session_id, read.lines.skipped) == ("gemini_cli", "s-0", 0)
        assert read.lines.bytes_parsed == len(trace)
        assert [event.exit_code for event in read.events if event.kind == "tool_result"] == [1]


def test_the_task_of_a_subagent_is_the_only_request() -> None:
    lines: list[Entry] = [
        {"sessionId": "s", "projectHash": "p", "kind": "subagent", "directories": ["/w"]},
        {"id": "1", "type": "user", "content": "Look around."},
        {"id": "2", "type": "user", "content": "Go on."},
    ]
    assert gemini.read_gemini_header(lines) == ("s", "/w")
    assert [e.kind for e in gemini.read_gemini(lines)] == ["other", "user", "custom_message"]


def test_the_provenance_of_a_qwen_record_says_who_wrote_it() -> None:
    events = load("qwen-0.24.jsonl")
    typed = [event.text for event in events if event.kind == "user" and event.on_active_branch]
    assert typed == [
        "Fix the failing test of the parser.",
        "No, keep the old name.",
        "One by voice.",
        "Thanks, that is all.",
    ]
    injected = texts(events, "custom_message")
    assert {"A monitor has news.", "Work on the goal.", "Check the build."} < {*injected}
    left = [event.text for event in events if event.text and not event.on_active_branch]
    assert left == ["Sub.", "Delete everything.", "Deleted."]
    assert texts(events, "compaction") == ["So far: the parser."]
    assert texts(load("qwen-0.12.jsonl"), "user") == ["Fix the failing test of the parser."]


def test_homes(tmp_path: Path) -> None:
    assert gemini.list_gemini_homes({"GEMINI_CLI_HOME": "/g"}, tmp_path) == [Path("/g/.gemini/tmp")]
    place = tmp_path / ".qwen"
    assert gemini.list_qwen_homes({}, tmp_path) == [place / "projects"]
    place.mkdir()
    (place / "settings.json").write_text('{"advanced": {"runtimeOutputDir": "/r"}}')
    assert gemini.list_qwen_homes({}, tmp_path) == [Path("/r/projects")]
    assert gemini.list_qwen_homes({"QWEN_RUNTIME_DIR": "/q"}, tmp_path) == [Path("/q/projects")]
