import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import hermes
from pimono_sdpo.traces.parse import read_trace
from tests.harness.odd_entries import ENTRIES, check

Entry = dict[str, Any]
SESSIONS = Path(__file__).with_name("sessions")


def read(*messages: Entry, **session: Any) -> list[Event]:
    rows = ({"table": "messages", "id": at, **message} for at, message in enumerate(messages, 1))
    return hermes.read([{"table": "sessions", "id": "s", **session}, *rows])


def user(text: str, **columns: Any) -> Entry:
    return {"role": "user", "content": text, **columns}


def one_result(value: object) -> Event:
    call = json.dumps([{"id": "c", "function": {"name": "terminal", "arguments": "{}"}}])
    content = value if isinstance(value, str) else json.dumps(value)
    events = read({"role": "assistant", "tool_calls": call}, {"role": "tool", "tool_call_id": "c", "content": content})
    return events[-1]


@given(ENTRIES)
def test_odd_entries_never_raise(entries: list[Entry]) -> None:
    for entry in entries:
        hermes.recognises(entry)
    hermes.read_header(entries)
    list(hermes.list_kinds(entries))
    check(hermes.read(entries))
    check(hermes.read([{"messages": entries}]))


@pytest.mark.parametrize("name", ["hermes-export", "hermes-rows", "hermes-files"])
def test_all_forms_of_a_session_say_the_same(name: str) -> None:
    trace = read_trace((SESSIONS / f"{name}.jsonl").read_bytes())
    events = trace.events
    assert trace.harness == "hermes"
    assert [event.text for event in events if event.kind == "user"] == [
        "The parser drops the last line of a file; please fix it and run the tests.",
        "No, that is wrong: keep empty lines too.",
        "add a test for empty lines",
    ]
    failed = [(event.tool_name, event.exit_code) for event in events if event.is_error]
    assert failed == [("bash", 1), ("edit", None), ("execute_code", None)]
    assert [event.kind for event in events].count("compaction") == 1
    assert next(event.text for event in events if event.tool_name == "bash" and event.kind == "tool_result") == (
        "FAILED tests/test_parser.py::test_last\nAssertionError: 2 != 3\n1 failed"
    )


@pytest.mark.parametrize(
    ("value", "text", "is_error", "code"),
    [
        ({"output": "x", "exit_code": 2, "error": None}, "x", True, 2),
        ({"output": "", "exit_code": 1, "exit_code_meaning": "No matches found (not an error)"}, "", False, 1),
        ({"output": "", "exit_code": -1, "error": "BLOCKED: User denied it.", "status": "blocked"}, None, False, None),
        ({"output": "", "exit_code": -1, "status": "pending_approval"}, "", False, None),
        ({"status": "error", "output": "a\nb", "error": "b"}, "a\nb", True, None),
        ({"error": "File not found"}, "File not found", True, None),
        ({"success": False}, '{"success": false}', True, None),
        ('{"content": "1|x"}\n\n[Hint: more]', "1|x\n[Hint: more]", False, None),
        ("plain", "plain", False, None),
        ('{"cut', '{"cut', False, None),
    ],
)
def test_results(value: object, text: str | None, is_error: bool, code: int | None) -> None:
    result = one_result(value)
    assert (result.is_error, result.exit_code) == (is_error, code)
    assert text is None or result.text == text


def test_what_was_undone_is_abandoned_and_a_copy_after_a_compaction_is_empty() -> None:
    events = read(
        user("a", active=0, compacted=1), user("b", active=0, compacted=1), user("c", active=0), user("b"), user("d")
    )
    assert [(event.kind, event.on_active_branch) for event in events] == [
        ("user", True),
        ("other", True),
        ("user", False),
        ("user", True),
        ("user", True),
    ]


def test_who_wrote_a_message() -> None:
    cron = "[IMPORTANT: You are running as a scheduled cron job. Say [SILENT] if so.]\n\nCheck the disk."
    reset = "[System: This session is about to be automatically reset due to inactivity."
    events = read(
        user(cron), user(reset), user("x", display_kind="hidden"), user('\0json:[{"type": "text", "text": "look"}]')
    )
    assert [(event.kind, event.text) for event in events if event.kind == "user"] == [
        ("user", "Check the disk."),
        ("user", "look"),
    ]
    delegated = read(user("do"), user("more"), parent_session_id="p", model_config=json.dumps({"_delegate_from": "p"}))
    assert [event.kind for event in delegated] == ["user", "custom_message"]


def test_an_export_is_split_only_if_every_line_is_a_session() -> None:
    line = json.dumps({"id": "a", "source": "cli", "messages": []}).encode()
    assert [name for name, _ in hermes.split_export(line + b"\n" + line)] == ["a", "a"]
    assert hermes.split_export(line) == hermes.split_export(line + b'\n{"id": "x"}') == []
    assert hermes.split_export(line + b"\n" + line.replace(b"cli", b"\xff")) == []


def test_its_homes(tmp_path: Path) -> None:
    folder = tmp_path / ".hermes"
    assert hermes.find_homes({}, tmp_path) == [folder / "state.db", folder / "sessions"]
    for name in ("state.db", "profiles/work/state.db"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert hermes.find_homes({"HERMES_HOME": str(folder)}, Path("/none")) == [
        folder / "state.db",
        folder / "profiles/work/state.db",
    ]
