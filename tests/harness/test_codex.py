import json
from typing import Any

import pytest
from hypothesis import given

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import codex
from pimono_sdpo.traces.parse import read_trace
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
        codex.read_version(shapes)
        assert all(isinstance(kind, str) for kind in codex.list_kinds(shapes))
        check(codex.read(shapes))


@pytest.mark.parametrize(
    ("entry", "own"),
    [
        (says("user", "hi"), True),
        (says("user", "hi")["payload"], True),
        (event("user_message", message="hi"), True),
        ({"type": "function_call_output", "call_id": "c", "output": ""}, True),
        ({"type": "item.completed", "item": {"type": "agent_message", "text": "hi"}}, True),
        # Lines in which nobody says or does anything.
        (META, False),
        (event("token_count"), False),
        (item("reasoning", summary=[]), False),
        ({"record_type": "state"}, False),
        ({"type": "reasoning", "summary": []}, False),
        ({"type": "thread.started", "thread_id": "s"}, False),
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


def done(kind: str, item_id: str, **fields: Any) -> Entry:
    return event("item_completed", item={"type": kind, "id": item_id, **fields})


def ran(line: str, code: int, shown: str = "", item_id: str = "exec-1", **fields: Any) -> Entry:
    command = ["/bin/zsh", "-lc", line]
    return done("CommandExecution", item_id, command=command, exit_code=code, aggregated_output=shown, **fields)


def script(source: str, call_id: str = "c1") -> Entry:
    return item("custom_tool_call", name="exec", input=source, call_id=call_id)


def printed(*texts: str, call_id: str = "c1", status: str = "completed") -> Entry:
    head = f"Script {status}\nWall time 0.1 seconds\nOutput:\n"
    content = [{"type": "input_text", "text": text} for text in (head, *texts)]
    return item("custom_tool_call_output", call_id=call_id, output=content)


def show(read: list[Event]) -> list[tuple[Any, ...]]:
    """Return tool and command of each call, and text, exit code and error of its result."""
    calls = {step.call_id: step for step in read if step.kind == "tool_call"}
    shown: list[tuple[Any, ...]] = []
    for step in read:
        if step.kind == "tool_result":
            made = json.loads(calls[step.call_id].arguments)
            command = made.get("command") or made.get("input")
            shown.append((step.tool_name, command, step.text, step.exit_code, step.is_error))
    return shown


BOTH = 'const [a, b] = await Promise.all([\n  tools.exec_command({cmd: "ls"}),\n  tools.exec_command({cmd: "make"}),\n]);\n'


def test_the_calls_of_a_script_end_as_their_items_say() -> None:
    lines = [script(BOTH), ran("make", 2, "stop", "exec-2"), ran("ls", 0, "a.py"), printed("a.py\nstop")]
    assert show(codex.read(lines)) == [
        ("bash", "make", "stop\n\nCommand exited with code 2", 2, True),
        ("bash", "ls", "a.py", 0, False),
    ]
    calls = [step.arguments for step in codex.read(lines) if step.kind == "tool_call"]
    assert [json.loads(one)["command"] for one in calls] == ["ls", "make"]


def test_what_a_script_ran_in_a_loop_is_in_its_items() -> None:
    loop = "for (const f of files) await tools.exec_command({cmd: `cat ${f}`});"
    lines = [script(loop), ran("cat a", 0, "1"), ran("cat b", 1, "no b", "exec-2"), printed()]
    assert show(codex.read(lines)) == [
        ("bash", "cat a", "1", 0, False),
        ("bash", "cat b", "no b\n\nCommand exited with code 1", 1, True),
    ]


PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-a\n+b\n*** End Patch"
CHANGES = {"a.py": {"type": "update", "unified_diff": "@@ -1 +1 @@\n-a\n+b\n", "move_path": None}}


@pytest.mark.parametrize("name", ["event", "item"])
def test_a_patch_of_a_script_is_an_edit(name: str) -> None:
    ended = {"success": False, "stderr": "a.py is locked", "changes": CHANGES}
    recorded = {
        "event": event("patch_apply_end", call_id="exec-1", **ended),
        "item": done("FileChange", "exec-1", status="failed", stderr="a.py is locked", changes=CHANGES),
    }[name]
    lines = [script(f"const p = {json.dumps(PATCH)};\ntext(await tools.apply_patch(p));"), recorded, printed("{}")]
    assert show(codex.read(lines)) == [("edit", PATCH, "a.py is locked", None, True)]
    # The item alone says what was changed.
    computed = [script("await tools.apply_patch(makePatch(files));"), recorded, printed("{}")]
    assert show(codex.read(computed)) == [("edit", PATCH, "a.py is locked", None, True)]


def test_a_script_without_items_is_read_from_its_source() -> None:
    fields = json.dumps({"chunk_id": "x", "wall_time_seconds": 0.1, "exit_code": 1, "output": "1 failed"})
    one = [script('const r = await tools.exec_command({"cmd": "pytest"}); text(JSON.stringify(r));'), printed(fields)]
    assert show(codex.read(one)) == [("bash", "pytest", "1 failed\n\nCommand exited with code 1", 1, True)]
    assert show(codex.read([script(BOTH), printed("a.py", "stop")])) == [
        ("bash", "ls", "a.py", None, False),
        ("bash", "make", "stop", None, False),
    ]
    # Nobody can tell which command printed what.
    assert show(codex.read([script(BOTH), printed("a.py\nstop")])) == [("bash", "ls\nmake", "a.py\nstop", None, False)]
    loop = "for (const f of files) await tools.exec_command({cmd: f});"
    assert show(codex.read([script(loop), printed("1")])) == [("exec", loop, "1", None, False)]


def test_a_script_that_broke_off_broke_at_its_last_call() -> None:
    source = f'text(await tools.exec_command({{cmd: "ls"}}));\nawait tools.apply_patch({json.dumps(PATCH)});'
    broke = "Script error:\napply_patch verification failed: Failed to find expected lines in a.py"
    read = codex.read([script(source), printed("a.py", broke, status="failed")])
    assert [(tool, error) for tool, *_, error in show(read)] == [("bash", False), ("edit", True)]
    assert show(read)[1][2] == broke.removeprefix("Script error:\n")
    bug = [
        script("await tools.exec_command({cmd: name});"),
        printed("Script error:\nname is not defined", status="failed"),
    ]
    assert [(tool, error) for tool, *_, error in show(codex.read(bug))] == [("exec", True)]


def test_a_script_that_goes_on_ends_where_it_is_waited_for() -> None:
    lines = [
        script('text((await tools.exec_command({cmd: "make"})).output);'),
        printed("step 1", status="running with cell ID 3"),
        call("wait", {"cell_id": "3"}, "c2"),
        output([{"type": "input_text", "text": text} for text in (PRINTED_HEAD, "step 2")], "c2"),
    ]
    assert show(codex.read(lines)) == [("bash", "make", "step 1\nstep 2", None, False)]
    ended = [*lines[:2], *lines[2:3], ran("make", 2, "step 1\nstep 2"), lines[3]]
    assert show(codex.read(ended)) == [("bash", "make", "step 1\nstep 2\n\nCommand exited with code 2", 2, True)]


PRINTED_HEAD = "Script completed\nWall time 3.0 seconds\nOutput:\n"


def test_a_terminal_goes_on_behind_its_script() -> None:
    begun = [
        script('const r = await tools.exec_command({cmd: "make"}); text(`session_id=${r.session_id}`);'),
        printed("session_id=71"),
    ]
    asked = script('const r = await tools.write_stdin({session_id: 71, chars: ""}); text(r.output);', "c2")
    ended = ran("make", 2, "stop", process_id="71")
    assert show(codex.read([*begun, asked, ended, printed("stop", call_id="c2")]))[1:] == [
        ("bash", "make", "stop\n\nCommand exited with code 2", 2, True)
    ]
    # The item of a command that ended between two scripts is that of the call which asks for its end.
    assert [code for *_, code, _ in show(codex.read([*begun, ended, asked, printed("stop", call_id="c2")]))] == [
        None,
        2,
    ]


def test_what_was_stopped_did_not_fail() -> None:
    lines = [script('await tools.exec_command({cmd: "make"});'), ran("make", -1)]
    stopped = [*lines, output("aborted by user after 3.2s", kind="custom_tool_call_output")]
    for read in (codex.read([*lines, event("turn_aborted", reason="interrupted")]), codex.read(stopped)):
        assert [(code, error) for *_, code, error in show(read)] == [(None, False)]
    declined = [
        script('await tools.exec_command({cmd: "make"});'),
        done("CommandExecution", "exec-1", command=["make"], status="declined"),
    ]
    read = codex.read([says("assistant", "On it."), *declined, printed()])
    assert [(code, error) for *_, code, error in show(read)] == [(None, False)]
    assert [step.stop_reason for step in read if step.kind == "assistant"] == ["aborted"]


def test_what_the_user_ran_is_no_call_of_the_agent() -> None:
    (step,) = [step for step in codex.read([ran("make", 2, "stop", source="user_shell")]) if step.kind != "other"]
    assert (step.kind, step.arguments, step.exit_code, step.is_error) == ("bash", "make", 2, True)


def test_the_item_of_a_recorded_call_adds_what_its_output_lacks() -> None:
    lines = [call("exec_command", {"cmd": "make"}), ran("make", 2, "stop", "c1"), output("stop")]
    assert show(codex.read(lines)) == [("bash", "make", "stop\n\nCommand exited with code 2", 2, True)]


NO_INDEX = {"content": [{"type": "text", "text": "No index"}], "isError": True}


@pytest.mark.parametrize(
    "lines",
    [
        [output({"isError": True, "content": "No index"})],
        [event("mcp_tool_call_end", call_id="c1", result={"Ok": NO_INDEX}), output("No index")],
        [event("mcp_tool_call_end", call_id="c1", result={"Err": "No index"}), output("No index")],
        [done("McpToolCall", "c1", server="docs", tool="search", result=NO_INDEX), output("No index")],
        [done("McpToolCall", "c1", server="docs", tool="search", status="failed", error={"message": "No index"}), output("No index")],
    ],
)  # fmt: skip
def test_a_tool_of_a_server_says_that_it_failed(lines: list[Entry]) -> None:
    made = item("function_call", name="search", namespace="mcp__docs__", arguments="{}", call_id="c1")
    read = codex.read([made, *lines])
    assert [(step.tool_name, step.text, step.is_error) for step in read if step.kind == "tool_result"] == [
        ("mcp__docs__search", "No index", True)
    ]


def test_a_tool_of_a_server_in_a_script() -> None:
    item_of = done("McpToolCall", "exec-1", server="docs", tool="search", arguments={"q": 1}, result=NO_INDEX)
    read = codex.read([script("text(await tools.mcp__docs__search({q: 1}));"), item_of, printed("No index")])
    assert [(step.tool_name, step.is_error) for step in read if step.kind == "tool_result"] == [
        ("mcp__docs__search", True)
    ]


def test_the_stream_of_an_exec_command() -> None:
    def streamed(kind: str, **fields: Any) -> Entry:
        return {"type": "item.completed", "item": {"id": f"item_{kind}", "type": kind, **fields}}

    lines = [
        {"type": "thread.started", "thread_id": "s-1"},
        streamed("command_execution", command="/bin/zsh -lc 'make'", aggregated_output="stop", exit_code=2),
        streamed("file_change", changes=[{"path": "a.py", "kind": "update"}], status="completed"),
        streamed(
            "mcp_tool_call", server="docs", tool="search", arguments={}, status="failed", error={"message": "no"}
        ),
        streamed("agent_message", text="Done."),
        {"type": "turn.failed", "error": {"message": "disconnected"}},
    ]
    read = codex.read(lines)
    assert codex.read_header(lines) == ("s-1", "")
    assert [(tool, code, error) for tool, _, _, code, error in show(read)] == [
        ("bash", 2, True), ("edit", None, False), ("mcp__docs__search", None, True)
    ]  # fmt: skip
    assert [(step.text, step.stop_reason) for step in read if step.kind == "assistant"] == [
        ("Done.", ""), ("disconnected", "error")
    ]  # fmt: skip


def of_kinds(*kinds: str, **entry: Any) -> Entry:
    """Return a message of the user with texts named after their kinds."""
    message = says("user", *(f"This is {kind}." for kind in kinds))
    passed = {"turn_id": "t", "content_item_kinds": [*kinds]}
    return {
        **message,
        **entry,
        "payload": {**message["payload"], "internal_chat_message_metadata_passthrough": passed},
    }


def mirrored(text: str) -> Entry:
    return done("UserMessage", "u", content=[{"type": "text", "text": text}])


def test_a_record_of_who_wrote_a_message_goes_before_its_wording() -> None:
    hook, goal = "<hook_prompt>Run the linter.</hook_prompt>", "No, that is wrong: go on with the goal."
    unknown = {"metadata": {"client_authored": False}}
    read = codex.read(
        [
            of_kinds("agents_md.instructions", "environments.environment_context"),
            of_kinds("user.text"),
            mirrored("This is user.text."),
            {**says("user", hook), **unknown},
            done("HookPrompt", "h", fragments=[{"text": "Run the linter."}]),
            {**says("user", goal), **unknown},
        ]
    )
    assert texts(read, "user") == ["This is user.text."]
    # A user may paste what a harness writes.
    pasted = "<environment_context>\nWhy is this in my file?"
    own = of_kinds("user.text")
    own["payload"]["content"][0]["text"] = pasted
    assert texts(codex.read([own, mirrored(pasted)]), "user") == [pasted]


def test_only_items_of_messages_are_read_as_messages_too() -> None:
    read = codex.read([mirrored("Fix it"), done("AgentMessage", "a", content=[{"type": "Text", "text": "Done."}])])
    assert (texts(read, "user"), texts(read, "assistant")) == (["Fix it"], ["Done."])


def test_replies_to_questions_are_the_words_of_the_user() -> None:
    questions = [{"id": "q", "question": "Which?", "options": [{"label": "The first"}, {"label": "The second"}]}]
    asked = call("request_user_input", {"questions": questions})
    typed_one = output(json.dumps({"answers": {"q": {"answers": ["Neither, rename it"]}}}))
    chosen = output(json.dumps({"answers": {"q": {"answers": ["The first"]}}}))
    assert texts(codex.read([asked, typed_one]), "user") == ["Neither, rename it"]
    assert texts(codex.read([asked, chosen]), "user") == []
    answers = json.dumps([{"questionItemId": json.dumps(["t", "c1"]), "answer": "Neither, rename it"}])
    reply = f"<send_user_message_question_reply>{answers}</send_user_message_question_reply>"
    assert texts(codex.read([asked, *typed(reply)]), "user") == ["Neither, rename it"]


def test_a_fork_is_the_session_of_its_first_header() -> None:
    parent = envelope(type="session_meta", payload={"id": "p", "cwd": "/p", "cli_version": "0.146.0"})
    child = envelope(type="session_meta", payload={"id": "c", "cwd": "/w", "cli_version": "0.153.0"})
    lines = [child, parent, *typed("Fix it")]
    assert (codex.read_header(lines), codex.read_version(lines)) == (("c", "/w"), "0.153.0")


def test_an_item_of_a_wrong_form_is_read_as_nothing() -> None:
    text = json.dumps({"type": "event_msg", "payload": {"type": "item_completed", "item": ["CommandExecution"]}})
    asked = json.dumps(says("user", "Fix it"))
    assert texts([*read_trace(f"{asked}\n{text}").events], "user") == ["Fix it"]
