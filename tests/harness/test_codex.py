import json
from typing import Any

import pytest
from hypothesis import given

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import codex
from tests.harness.odd_entries import ENTRIES, check, envelope, kinds, texts

Entry = dict[str, Any]
META = envelope(type="session_meta", payload={"id": "s-1", "cwd": "/w", "source": "cli"})


def item(kind: str, **payload: Any) -> Entry:
    return envelope(type="response_item", payload={"type": kind, **payload})


def event(kind: str, **payload: Any) -> Entry:
    return envelope(type="event_msg", payload={"type": kind, **payload})


def says(role: str, *words: str) -> Entry:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": each} for each in words]
    return item("message", role=role, content=content)


def typed(words: str) -> list[Entry]:
    return [says("user", words), event("user_message", message=words)]


def call(name: str, given: Any, call_id: str = "c1") -> Entry:
    return item("function_call", name=name, arguments=json.dumps(given), call_id=call_id)


def output(recorded: Any, call_id: str = "c1", kind: str = "function_call_output") -> Entry:
    return item(kind, call_id=call_id, output=recorded)


def one_result(recorded: Any) -> Event:
    read = codex.read([call("exec_command", {"cmd": "make"}), output(recorded)])
    return next(step for step in read if step.kind == "tool_result")


@given(ENTRIES)
def test_odd_entries_never_raise(entries: list[Entry]) -> None:
    wrapped = [{"type": "response_item", "payload": entry} for entry in entries]
    recorded = [{"type": "event_msg", "payload": entry} for entry in entries]
    for shapes in (entries, wrapped, recorded, wrapped + recorded):
        for entry in shapes:
            codex.recognises(entry)
        codex.read_header(shapes)
        check(codex.read(shapes))


@pytest.mark.parametrize(
    ("entry", "own"),
    [
        (META, True),
        (says("user", "hi"), True),
        (says("user", "hi")["payload"], True),
        ({"record_type": "state"}, True),
        ({"type": "function_call_output", "call_id": "c", "output": ""}, True),
        ({"type": "reasoning", "summary": []}, True),
        ({"type": "message", "role": "user", "content": [{"type": "text", "text": "hi"}]}, False),
        ({"type": "message", "message": {"role": "user", "content": "hi"}}, False),
        ({"type": "compacted"}, False),
    ],
)
def test_a_line_is_recognised_by_its_content(entry: Entry, own: bool) -> None:
    assert codex.recognises(entry) is own


def test_headers() -> None:
    context = says("user", "<environment_context>\n  <cwd>/old</cwd>\n</environment_context>")
    old = {"id": "s-0", "timestamp": "t", "instructions": None}
    assert codex.read_header([META, context]) == ("s-1", "/w")
    assert codex.read_header([old, context["payload"]]) == ("s-0", "/old")


def test_messages_in_items_and_events_count_once() -> None:
    read = codex.read(
        [
            META,
            says("developer", "<permissions instructions>"),
            says("user", "# AGENTS.md instructions for /w", "<environment_context>x</environment_context>"),
            *typed("Fix it"),
            event("agent_message", message="On it."),
            says("assistant", "On it."),
            says("user", "Some note of the harness"),
            event("user_message", message="Only an event tells this"),
            *typed("Fix it"),
        ]
    )
    assert texts(read, "user") == ["Fix it", "Only an event tells this", "Fix it"]
    assert texts(read, "assistant") == ["On it."]
    assert len(texts(read, "custom_message")) == 3


def test_editor_context_and_images_are_not_typed_text() -> None:
    words = "# Context from my IDE setup:\n- a.py\n\n## My request for Codex:\nFix it"
    shown = says("user", "<image name=[Image #1]>", "</image>", "And this")
    read = codex.read([*typed(words), shown, event("user_message", message="And this")])
    assert texts(read, "user") == ["Fix it", "And this"]


@pytest.mark.parametrize(
    ("name", "given", "tool", "command"),
    [
        ("shell", {"command": ["bash", "-lc", "make | tail"]}, "bash", "make | tail"),
        ("shell", {"command": ["git", "commit", "-m", "a b"]}, "bash", "git commit -m 'a b'"),
        ("exec_command", {"cmd": "ls"}, "bash", "ls"),
        ("shell_command", {"command": "/bin/zsh -lc 'npm test'"}, "bash", "npm test"),
        ("shell_command", {"command": "bash -lc 'npm test' && ls"}, "bash", "bash -lc 'npm test' && ls"),
        ("shell", {"command": ["powershell.exe", "-Command", "ls"]}, "bash", "ls"),
        ("update_plan", {"plan": []}, "update_plan", None),
    ],
)
def test_calls(name: str, given: Entry, tool: str, command: str | None) -> None:
    (read,) = codex.read([call(name, given)])
    assert (read.kind, read.tool_name) == ("tool_call", tool)
    assert json.loads(read.arguments).get("command") == command


def test_broken_arguments_stay_as_text() -> None:
    broken = item("function_call", name="shell", arguments='{"command": [', call_id="c1")
    assert json.loads(codex.read([broken])[0].arguments) == {"command": '{"command": ['}


def test_local_shells_and_patches() -> None:
    read = codex.read(
        [
            item("local_shell_call", call_id="c1", action={"type": "exec", "command": ["ls"]}),
            output("a.py", kind="local_shell_call_output"),
            item("custom_tool_call", name="apply_patch", input="*** Begin Patch", call_id="c2"),
            output('{"output": "No such file", "metadata": {"exit_code": 1}}', "c2", "custom_tool_call_output"),
        ]
    )
    assert [step.tool_name for step in read] == ["bash", "bash", "edit", "edit"]
    assert (read[3].text, read[3].is_error, read[3].exit_code) == ("No such file", True, 1)


HEAD = "Chunk ID: ab12\nWall time: 0.1 seconds\n"


@pytest.mark.parametrize(
    ("recorded", "text", "is_error", "code"),
    [
        (f"{HEAD}Process exited with code 0\nOutput:\nok", "ok", False, 0),
        (f"{HEAD}Process exited with code 2\nOutput:\nbad\n", "bad\n\nCommand exited with code 2", True, 2),
        (
            f'Command: /bin/zsh -lc "a\n\nb"\n{HEAD}Process exited with code 2\nOutput:\nbad\n',
            "bad\n\nCommand exited with code 2",
            True,
            2,
        ),
        ("Exit code: 1\nWall time: 1 seconds\nOutput:\n", "Command exited with code 1", True, 1),
        ('{"output": "x", "metadata": {"exit_code": 0}}', "x", False, 0),
        ({"content": "no", "success": False}, "no", True, None),
        ([{"type": "input_text", "text": "ok"}, {"type": "input_image"}], "ok", False, None),
        (f"{HEAD}Process running with session ID 7\nOutput:\n", "", False, None),
        ("failed to parse function arguments: x", "failed to parse function arguments: x", True, None),
        ("aborted by user after 3.2s", "aborted by user after 3.2s", False, None),
        ("Exit code: 1 is what it printed", "Exit code: 1 is what it printed", False, None),
        ('{"output_of": "the command"}', '{"output_of": "the command"}', False, None),
    ],
)
def test_outputs(recorded: Any, text: str, is_error: bool, code: int | None) -> None:
    read = one_result(recorded)
    assert (read.text, read.is_error, read.exit_code) == (text, is_error, code)


def test_a_running_command_continues_by_its_session_id() -> None:
    ended = f"{HEAD}Process exited with code 1\nOutput:\n1 failed"
    read = codex.read(
        [
            call("exec_command", {"cmd": "npm test"}),
            output(f"{HEAD}Process running with session ID 7\nOutput:\n"),
            call("write_stdin", {"session_id": 7, "chars": ""}, "c2"),
            output(ended, "c2"),
            call("write_stdin", {"session_id": 7, "chars": "\x03"}, "c3"),
            output(ended, "c3"),
        ]
    )
    assert json.loads(read[2].arguments)["command"] == "npm test"
    assert [(e.tool_name, e.is_error) for e in read[3::2]] == [("bash", True), ("write_stdin", False)]


def test_aborted_turns_and_errors_of_the_provider() -> None:
    read = codex.read(
        [
            *typed("Fix it"),
            says("assistant", "On it."),
            event("turn_aborted", reason="interrupted"),
            says("user", "<turn_aborted>\nThe user interrupted.\n</turn_aborted>"),
            *typed("No, the other one"),
            event("turn_aborted", reason="interrupted"),
            *typed("Go on"),
            event("error", message="usage limit reached"),
        ]
    )
    stops = [(step.text, step.stop_reason) for step in read if step.kind == "assistant"]
    assert stops == [("On it.", "aborted"), ("", "aborted"), ("usage limit reached", "error")]
    assert texts(read, "user") == ["Fix it", "No, the other one", "Go on"]


def test_rolled_back_turns_and_compactions() -> None:
    read = codex.read(
        [
            *typed("One"),
            *typed("Two"),
            says("assistant", "Second"),
            event("thread_rolled_back", num_turns=1),
            *typed("Two, but better"),
            envelope(type="compacted", payload={"message": "So far"}),
        ]
    )
    off = [step.text for step in read if not step.on_active_branch and step.kind != "other"]
    assert off == ["Two", "Second"]
    assert kinds(read)[-1] == "compaction"


def test_bare_items_of_the_first_versions() -> None:
    wrapped = [says("user", "Fix it"), call("shell", {"command": ["ls"]}), output("a"), says("assistant", "Ok")]
    read = codex.read([{"id": "s-0"}, {"record_type": "state"}, *(e["payload"] for e in wrapped)])
    assert kinds(read) == "user tool_call tool_result assistant".split()


def test_the_task_of_a_subagent_is_the_request() -> None:
    meta = envelope(type="session_meta", payload={"id": "s", "source": {"subagent": "review"}})
    read = codex.read([meta, *typed("Review it"), says("assistant", "Ok"), says("user", "Go on"), *typed("No")])
    assert texts(read, "user") == ["Review it"]
    assert all(step.on_active_branch for step in read)


def test_a_command_that_the_user_rejected_is_not_an_error() -> None:
    said = "exec_command failed for `/bin/zsh -lc 'ls'`: CreateProcess { message: "
    output = said + r'"Rejected(\"rejected by user\")" }'
    called = item("function_call", name="shell", arguments='{"command":"ls"}', call_id="c")
    answered = item("function_call_output", call_id="c", output=output)
    read = codex.read([META, *typed("Look"), called, answered])
    assert [e.is_error for e in read if e.kind == "tool_result"] == [False]
