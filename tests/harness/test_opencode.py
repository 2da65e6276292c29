import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pimono_sdpo.edits import Edit, decode_arguments, read_edits, read_patch
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import opencode
from pimono_sdpo.traces.parse import read_trace
from tests.harness.odd_entries import ENTRIES, check

Entry = dict[str, Any]
SESSIONS = Path(__file__).with_name("sessions")
VERSIONS = ("opencode-0.15", "opencode-1.2", "opencode-1.18")


def session(*messages: tuple[str, list[Entry]], **columns: Any) -> list[Event]:
    """Return the events of a session whose messages have these roles and parts."""
    entries: list[Entry] = [{"table": "session", "id": "ses_1", **columns}]
    for at, (role, parts) in enumerate(messages):
        entries.append({"table": "message", "id": f"msg_{at}", "data": {"role": role}})
        entries += [{"table": "part", "message_id": f"msg_{at}", "data": part} for part in parts]
    return opencode.read(entries)


def text(of: str, **more: Any) -> Entry:
    return {"type": "text", "text": of, **more}


def tool(name: str, status: str = "completed", **state: Any) -> Entry:
    return {"type": "tool", "callID": "c", "tool": name, "state": {"status": status, "input": {}, **state}}


@given(ENTRIES)
def test_odd_entries_never_raise(entries: list[Entry]) -> None:
    for entry in entries:
        opencode.recognises(entry)
    opencode.read_header(entries)
    opencode.read_version(entries)
    list(opencode.list_kinds(entries))
    check(opencode.read(entries))
    check(opencode.read([{"type": "tool", "messageID": "msg_1", **entry} for entry in entries]))


@pytest.mark.parametrize("name", VERSIONS)
def test_all_forms_of_a_session_say_the_same(name: str) -> None:
    one, other = (read_trace((SESSIONS / f"{of}.jsonl").read_bytes()) for of in (name, VERSIONS[0]))
    assert (one.session_id, one.cwd, one.version.split(".")[:2]) == ("ses_0a1", "/w/app", name[9:].split("."))
    assert one.events == other.events


def test_a_session() -> None:
    events = read_trace((SESSIONS / "opencode-1.18.jsonl").read_bytes()).events
    assert [event.text for event in events if event.kind == "user"] == [
        "The parser drops the last line of a file; please fix it and run the tests.",
        "do not push, only commit",
        "No, that is wrong: keep empty lines too.",
        "only those between two others",
        "Now add a test.",
    ]
    assert [event.text for event in events if event.is_veto] == ["do not push, only commit"]
    assert [(event.tool_name, event.exit_code) for event in events if event.is_error] == [("bash", 1), ("edit", None)]
    edits = [decode_arguments(event) for event in events if event.kind == "tool_call" and event.tool_name == "edit"]
    assert [read_edits(one) for one in edits] == [[Edit("a", "b")], [Edit("[:-1]", "")], []]
    assert [patch.path for patch in read_patch(edits[2])] == ["parser.py"]
    assert [event.text for event in events if event.kind == "compaction"] == ["The parser was fixed."]
    assert events[-1].stop_reason == "aborted"
    assert [event.text for event in events if event.kind == "custom_message"] == [
        "Called the Read tool with parser.py"
    ]


def test_every_occurrence_is_replaced() -> None:
    assert read_edits({"filePath": "a", "oldString": "x", "newString": "y", "replaceAll": True})[0].everywhere


@pytest.mark.parametrize(
    ("part", "is_error", "code"),
    [
        (tool("bash", output="x", metadata={"exit": 0}), False, 0),
        (tool("bash", output="x", metadata={"exit": 2}), True, 2),
        # It took too long.
        (tool("bash", output="x", metadata={"exit": None}), True, None),
        (tool("read", output="x", metadata={}), False, None),
        (tool("read", "error", error="File not found"), True, None),
        (tool("bash", "error", error="Tool execution aborted"), False, None),
        (tool("question", "error", error="Error: The user dismissed this question"), False, None),
    ],
)
def test_how_calls_end(part: Entry, is_error: bool, code: int | None) -> None:
    (result,) = (event for event in session(("assistant", [part])) if event.kind == "tool_result")
    assert (result.is_error, result.exit_code) == (is_error, code)


@pytest.mark.parametrize("status", ["pending", "running"])
def test_a_call_that_has_not_ended_has_no_result(status: str) -> None:
    assert [event.kind for event in session(("assistant", [tool("bash", status)]))] == ["assistant", "tool_call"]


def test_an_older_message_holds_several_steps() -> None:
    start = {"type": "step-start"}
    parts = [start, text("one"), tool("read", output="x"), start, text("two")]
    assert [event.text for event in session(("assistant", parts)) if event.kind == "assistant"] == ["one", "two"]


def test_what_was_reverted_is_abandoned() -> None:
    messages = [("user", [text("a")]), ("assistant", [text("b")]), ("user", [text("c")]), ("assistant", [text("d")])]
    events = session(*messages, revert=json.dumps({"messageID": "msg_2"}))
    assert [event.on_active_branch for event in events] == [True, True, False, False]
    assert [event.parent_id for event in events] == ["", "msg_0", "msg_1", "msg_2"]


def test_a_subagent_has_one_request() -> None:
    messages = [("user", [text("a")]), ("assistant", [text("b")]), ("user", [text("c")])]
    kinds = [event.kind for event in session(*messages, parent_id="ses_0")]
    assert kinds == ["user", "assistant", "custom_message"]


def test_a_compaction_keeps_the_messages_after_its_mark() -> None:
    mark = {"type": "compaction", "auto": True, "tail_start_id": "msg_1"}
    entries = [
        {"table": "message", "id": "msg_0", "data": {"role": "user"}},
        {"table": "message", "id": "msg_1", "data": {"role": "assistant"}},
        {"table": "message", "id": "msg_2", "data": {"role": "user"}},
        {"table": "message", "id": "msg_3", "data": {"role": "assistant", "summary": True}},
        *(
            {"table": "part", "message_id": f"msg_{at}", "data": part}
            for at, part in enumerate((text("a"), text("b"), mark, text("so far")))
        ),
    ]
    assert [event.kept_from for event in opencode.read(entries)] == [None, None, None, 1]


def test_its_homes(tmp_path: Path) -> None:
    default = tmp_path / ".local/share/opencode"
    assert opencode.find_homes({}, tmp_path) == [default / "opencode.db", default / "storage/session"]
    default.mkdir(parents=True)
    (default / "opencode-dev.db").touch()
    assert default / "opencode-dev.db" in opencode.find_homes({}, tmp_path)
    moved = opencode.find_homes({"XDG_DATA_HOME": "/data", "OPENCODE_DB": "/db/x.db"}, tmp_path)
    assert moved == [Path("/db/x.db"), Path("/data/opencode/storage/session")]
