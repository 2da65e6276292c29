import json
from typing import Any

import pytest
from hypothesis import given

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import claude_code
from processors.evidence import gather_evidence
from tests.harness.odd_entries import ENTRIES, check, envelope, kinds, texts

Entry = dict[str, Any]
REFUSED = "The user doesn't want to proceed with this tool use. The tool use was rejected."


def user(content: Any, **entry: Any) -> Entry:
    return envelope(type="user", message={"role": "user", "content": content}, **entry)


def answer(*content: Entry, name: str = "", stop: str | None = None, **entry: Any) -> Entry:
    message = {"role": "assistant", "content": list(content), "stop_reason": stop}
    return envelope(type="assistant", message={**message, **({"id": name} if name else {})}, **entry)


def text(words: str) -> Entry:
    return {"type": "text", "text": words}


def use(name: str, call_id: str = "c1", **given: Any) -> Entry:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(content: Any, error: bool = False, call_id: str = "c1") -> Entry:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": error}


def one_result(content: Any, error: bool = False, tool: str = "Bash") -> Event:
    read = claude_code.read([answer(use(tool, command="make")), user([result(content, error)])])
    return next(event for event in read if event.kind == "tool_result")


@given(ENTRIES)
def test_odd_entries_never_raise(entries: list[Entry]) -> None:
    for entry in entries:
        claude_code.recognises(entry)
    claude_code.read_header(entries)
    claude_code.read_version(entries)
    assert all(isinstance(kind, str) for kind in claude_code.list_kinds(entries))
    check(claude_code.read(entries))


@pytest.mark.parametrize(
    ("entry", "own"),
    [
        (user("hi"), True),
        (answer(text("hi")), True),
        ({"type": "summary", "summary": "Title", "leafUuid": "u"}, False),
        ({"type": "progress", "parentUuid": None}, False),
        ({"type": "system", "subtype": "init", "session_id": "s"}, False),
        ({"type": "message", "message": {"role": "user", "content": "hi"}}, False),
        ({"type": "user", "text": "hi"}, False),
        ({"type": "session", "version": 3, "id": "s"}, False),
    ],
)
def test_a_line_is_recognised_by_its_content(entry: Entry, own: bool) -> None:
    assert claude_code.recognises(entry) is own


def test_the_header_is_in_the_first_lines_that_have_it() -> None:
    lines = [{"type": "summary"}, user("hi", sessionId="s-1", cwd="/w"), user("x", sessionId="s-2")]
    assert claude_code.read_header(lines) == ("s-1", "/w")


def test_an_answer_in_several_lines_is_one_event_and_each_block_counts_once() -> None:
    read = claude_code.read(
        [
            user("Fix it"),
            answer({"type": "thinking", "thinking": "hm"}, name="m1"),
            answer(text("Looking."), name="m1"),
            answer(text("Looking."), use("Bash", command="ls"), name="m1", stop="tool_use"),
            user([result("a.py")]),
            answer(use("Read", "c2", file_path="a.py"), name="m1"),
            answer(text("Done."), name="m2", stop="end_turn"),
        ]
    )
    assert kinds(read) == "user assistant tool_call tool_result tool_call assistant".split()
    assert texts(read, "assistant") == ["Looking.", "Done."]
    assert [e.stop_reason for e in read if e.kind == "assistant"] == ["tool_use", "end_turn"]
    assert [e.tool_name for e in read if e.kind == "tool_call"] == ["bash", "read"]


@pytest.mark.parametrize(
    ("content", "error", "tool", "seen", "is_error", "code"),
    [
        ("Exit code 2\nmake: failed", True, "Bash", "Exit code 2\nmake: failed", True, 2),
        ("Exit code 2", False, "Bash", "Exit code 2", False, None),
        ("<tool_use_error>No file.</tool_use_error>", False, "Read", "No file.", True, None),
        ("<tool_use_error>Sibling tool call errored</tool_use_error>", True, "Bash", None, False, None),
        ([text("ok"), {"type": "image"}], False, "Read", "ok", False, None),
        ("1 a\n\n<system-reminder>Be good.</system-reminder>\n", False, "Read", "1 a", False, None),
        (REFUSED, True, "Bash", None, False, None),
        ("Exit code 137\n[Request interrupted by user for tool use]", True, "Bash", None, False, None),
    ],
)
def test_results(content: Any, error: bool, tool: str, seen: str | None, is_error: bool, code: int | None) -> None:
    event = one_result(content, error, tool)
    assert (event.is_error, event.exit_code) == (is_error, code)
    assert seen is None or event.text == seen


@pytest.mark.parametrize(
    "words",
    [
        "To tell you how to proceed, the user said:\nuse tabs\n\nNote: The user's next message",
        "The user provided the following reason for the rejection:  use tabs",
    ],
)
def test_a_refusal_aborts_the_turn_and_its_message_is_from_the_user(words: str) -> None:
    text = f"{REFUSED} {words}"
    read = claude_code.read([user("Go on"), answer(use("Edit")), user([result(text, True)])])
    assert kinds(read) == "user assistant tool_call tool_result user".split()
    assert (read[1].stop_reason, read[-1].text) == ("aborted", "use tabs")
    assert [event.is_veto for event in read if event.kind == "user"] == [False, True]


def test_the_message_of_a_refusal_does_not_begin_a_request() -> None:
    text = f"{REFUSED} To tell you how to proceed, the user said:\nno, rename the branch first"
    before = [user("yep"), answer(use("Edit")), user([result(text, True)])]
    # A bare name answers the agent's question.
    after = [
        user("ent-95-add-folders"),
        user("Run the tests of the parser"),
        answer(use("Bash", "c2", command="make")),
    ]
    for entries in (before, before[1:], [*before, *after], [*before[1:], *after]):
        text = "\n".join(map(json.dumps, entries))
        row = {"trace": text, "bytes_not_utf8": 0, "session_id": "s", "source": "s"}
        (found,) = gather_evidence(row, "session", 0)
        assert found["prompt"] == ("Run the tests of the parser" if after[0] in entries else "")
    asked = [user("Push the branch and open it"), *before[1:], *after]
    text = "\n".join(map(json.dumps, asked))
    row = {"trace": text, "bytes_not_utf8": 0, "session_id": "s", "source": "s"}
    (found,) = gather_evidence(row, "session", 0)
    assert found["prompt"] == "Push the branch and open it"
    (correction,) = found["findings"]
    assert (correction["text"], correction["kind"]) == ("no, rename the branch first", "correction")


def test_an_interruption_aborts_its_turn() -> None:
    mark = [text("[Request interrupted by user]")]
    read = claude_code.read([user("One"), answer(text("Yes")), user(mark), user("No, stop")])
    assert kinds(read) == "user assistant custom_message user".split()
    assert read[1].stop_reason == "aborted"
    early = claude_code.read([answer(text("Done")), user("Two"), user(mark), user("Three")])
    assert [(e.kind, e.stop_reason) for e in early][-2:] == [("assistant", "aborted"), ("user", "")]
    assert early[0].stop_reason == ""


@pytest.mark.parametrize(
    ("entry", "typed"),
    [
        (user("Fix <div> in a.html"), ["Fix <div> in a.html"]),
        (user([text("<ide_opened_file>a.py</ide_opened_file>"), text("Fix it")]), ["Fix it"]),
        (user("<system-reminder>x</system-reminder>\nFix it"), ["Fix it"]),
        (user("<system-reminder> is odd"), ["<system-reminder> is odd"]),
        (user("Skill text", isMeta=True), []),
        (user("Look around", isSidechain=True), []),
        (user("Task done", origin={"kind": "task-notification"}), []),
        (user("Caveat: The messages below were generated by the user"), []),
        (user("<bash-stdout>a</bash-stdout><bash-stderr></bash-stderr>"), []),
        (user("<local-command-stdout>ok</local-command-stdout>"), []),
        (user("<command-name>/clear</command-name><command-args></command-args>"), []),
        (user("<command-name>/model</command-name><command-args>a b</command-args>"), []),
        (user("<command-name>/fix</command-name><command-args>the bug</command-args>"), ["the bug"]),
        (user("Summary of it", isCompactSummary=True), []),
        ({"type": "attachment", "attachment": {"type": "queued_command", "prompt": "And b"}}, ["And b"]),
        (
            {
                "type": "attachment",
                "attachment": {"type": "queued_command", "commandMode": "task-notification", "prompt": "x"},
            },
            [],
        ),
    ],
)
def test_only_typed_text_is_a_user_message(entry: Entry, typed: list[str]) -> None:
    assert texts(claude_code.read([entry]), "user") == typed


def test_repeated_lines_count_once() -> None:
    queued = {"type": "queued_command", "prompt": "And b", "source_uuid": "q1"}
    twice = {"type": "attachment", "attachment": queued}
    read = claude_code.read([user("Fix a", uuid="u1"), user("Fix a", uuid="u1"), twice, twice])
    assert texts(read, "user") == ["Fix a", "And b"]


def test_a_queued_message_is_read_where_it_is_taken_if_nothing_repeats_it() -> None:
    def queue(operation: str, content: str | None = None) -> Entry:
        return {"type": "queue-operation", "sessionId": "s", "operation": operation, "content": content}

    entries = [user("Fix a", uuid="1"), queue("enqueue", "And b"), queue("enqueue", "And c"), queue("remove")]
    entries += [queue("dequeue"), user("And c", uuid="2", parentUuid="1"), queue("enqueue", "And d"), queue("popAll")]
    entries += [queue("enqueue", "<task-notification>x"), queue("remove"), queue("enqueue", "Fix a"), queue("remove")]
    read = claude_code.read(entries)
    assert [(e.index, e.text) for e in read if e.kind == "user"] == [(0, "Fix a"), (3, "And b"), (5, "And c")]
    assert all(e.on_active_branch for e in read)


def test_errors_of_the_provider_and_placeholders() -> None:
    failed = answer(text("API Error: 529 overloaded"), isApiErrorMessage=True)
    filler = answer(text("No response requested."))
    filler["message"]["model"] = "<synthetic>"
    read = claude_code.read([user("Go"), failed, filler])
    assert [(e.kind, e.stop_reason) for e in read[1:]] == [("assistant", "error"), ("other", "")]


def test_the_active_path() -> None:
    read = claude_code.read(
        [
            user("Ask", uuid="a", parentUuid=None),
            answer(text("Old"), uuid="b", parentUuid="a", name="m1"),
            user("Went back from", uuid="c", parentUuid="b"),
            user("Subagent's task", uuid="s", parentUuid=None, isSidechain=True),
            {"type": "progress", "uuid": "p", "parentUuid": "b"},
            user("Said instead", uuid="d", parentUuid="b"),
            answer(use("Bash", "c1", command="ls"), uuid="e", parentUuid="d", name="m2"),
            answer(use("Bash", "c2", command="pwd"), uuid="f", parentUuid="e", name="m2"),
            user([result("1", call_id="c1")], uuid="g", parentUuid="e"),
            user([result("2", call_id="c2")], uuid="h", parentUuid="f"),
            answer(text("End"), uuid="i", parentUuid="g", name="m3"),
        ]
    )
    shown = [e for e in read if e.kind != "other"]
    off = [(e.text, e.is_subagent) for e in shown if not e.on_active_branch]
    assert off == [("Went back from", False), ("Subagent's task", True)]


@pytest.mark.parametrize(
    "words",
    [
        "<bash-input>git status</bash-input>",
        "<bash-stdout>clean</bash-stdout><bash-stderr></bash-stderr>",
        "<user-memory-input>always use uv</user-memory-input>",
        "# always use uv",
    ],
)
def test_a_line_with_an_early_parent_abandons_nothing(words: str) -> None:
    read = claude_code.read(
        [
            user("Ask", uuid="a", parentUuid=None),
            answer(text("Started"), uuid="b", parentUuid="a", name="m1"),
            user("Go on with the tests", uuid="c", parentUuid="b"),
            answer(text("Done"), uuid="d", parentUuid="c", name="m2"),
            user(words, uuid="e", parentUuid="a"),
        ]
    )
    assert all(event.on_active_branch for event in read)


CAVEAT = "Caveat: The messages below were generated by the user while running local commands."
CLEAR = "<command-name>/clear</command-name>\n<command-args></command-args>"


def test_only_a_prompt_that_was_edited_is_abandoned() -> None:
    read = claude_code.read(
        [
            user(CAVEAT, uuid="0", parentUuid=None, isMeta=True),
            user(CLEAR, uuid="1", parentUuid="0"),
            user("Analyse the first project", uuid="2", parentUuid="1"),
            answer(use("Bash", command="make"), uuid="3", parentUuid="2", name="m1"),
            user([result("ok")], uuid="4", parentUuid="3"),
            answer(text("Done"), uuid="5", parentUuid="4", name="m2"),
            # A shell's line below the caveat, a hook's below the call, a late result of a call.
            user("<bash-input> ll</bash-input>", uuid="6", parentUuid="0"),
            user("Analyse the second", uuid="7", parentUuid="6"),
            answer(text("Second is done"), uuid="8", parentUuid="7", name="m3"),
            {"type": "progress", "uuid": "9", "parentUuid": "3"},
            user("Analyse the thrid", uuid="a", parentUuid="9"),
            answer(text("No such project"), uuid="b", parentUuid="a", name="m4"),
            user("Analyse the third", uuid="c", parentUuid="9"),
            answer(text("Third is done"), uuid="d", parentUuid="c", name="m5"),
            user([result("stream closed", error=True)], uuid="e", parentUuid="3"),
        ]
    )
    off = [event.text for event in read if not event.on_active_branch]
    assert off == ["Analyse the thrid", "No such project"]


def test_the_text_below_a_first_command_is_the_request() -> None:
    plan = [text("# Implement the following plan\n\nspecs/dark-mode.md")]
    command = "<command-name>/implement</command-name>\n<command-args>specs/a.md</command-args>"
    lines = [
        user(CAVEAT, uuid="0", parentUuid=None, isMeta=True),
        user(CLEAR, uuid="1", parentUuid="0"),
        user(command, uuid="2", parentUuid="1"),
        user(plan, uuid="3", parentUuid="2", isMeta=True),
        answer(text("I read the plan."), uuid="4", parentUuid="3"),
        user("Go on", uuid="5", parentUuid="4"),
        user(command, uuid="6", parentUuid="5"),
        user(plan, uuid="7", parentUuid="6", isMeta=True),
    ]
    assert texts(claude_code.read(lines), "user") == [plan[0]["text"], "Go on"]


def test_a_compaction_and_a_lost_parent_do_not_hide_the_beginning() -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b", "parentUuid": None}
    read = claude_code.read(
        [
            user("Ask", uuid="a", parentUuid=None),
            {**boundary, "logicalParentUuid": "a"},
            user("So far", uuid="c", parentUuid="b", isCompactSummary=True),
            answer(text("Goes on"), uuid="d", parentUuid="lost"),
            {"type": "summary", "summary": "Title", "leafUuid": "d"},
        ]
    )
    assert kinds(read) == "user compaction assistant branch_summary".split()
    assert all(event.on_active_branch for event in read)
    assert read[2].kept_from == 2


def test_the_first_versions_did_not_mark_a_compaction() -> None:
    summary = "This session is being continued from a previous conversation that ran out of context."
    read = claude_code.read(
        [
            user("Ask", uuid="a", parentUuid=None),
            user(summary, uuid="b", parentUuid=None),
            answer(text("Goes on"), uuid="c", parentUuid="b"),
        ]
    )
    assert all(event.on_active_branch for event in read)


def test_a_file_with_only_a_subagent_is_a_session() -> None:
    own: dict[str, Any] = {"isSidechain": True, "agentId": "a1"}
    lines = [user("Look for the parser", **own), answer(text("so"), **own)]
    alone = claude_code.read(lines)
    assert [(event.kind, event.is_subagent) for event in alone][:1] == [("user", False)]
    within = claude_code.read([user("Fix it"), *lines])
    assert [event.kind for event in within if event.is_subagent] != ["user", "assistant"]


def test_an_id_that_a_proxy_gives_to_all_answers_moves_none_of_them() -> None:
    proxy = "msg_proxy"
    read = claude_code.read(
        [
            user("Round the totals"),
            answer(text("I round each total."), name=proxy),
            answer(use("Edit", "call_0", file_path="a.py"), name=proxy),
            user([result("ok", call_id="call_0")]),
            user("No, round each line"),
            answer(text("I round each line."), name=proxy),
            # A proxy counts its calls anew in each answer, too.
            answer(use("Edit", "call_0", file_path="b.py"), name=proxy),
            user([result("String to replace not found", True, call_id="call_0")]),
        ]
    )
    assert [(step.kind, step.text or step.arguments) for step in read if step.kind != "other"] == [
        ("user", "Round the totals"),
        ("assistant", "I round each total."),
        ("tool_call", '{"file_path": "a.py"}'),
        ("tool_result", "ok"),
        ("user", "No, round each line"),
        ("assistant", "I round each line."),
        ("tool_call", '{"file_path": "b.py"}'),
        ("tool_result", "String to replace not found"),
    ]


def test_the_correction_behind_an_answer_of_a_proxy_does_not_show_the_next_answer() -> None:
    lines = [
        user("Round the totals in cart.py and run the tests of the cart.", uuid="1", sessionId="s"),
        answer(text("I round each total now."), use("Edit", file_path="cart.py"), name="m", uuid="2", parentUuid="1"),
        user([result("ok")], uuid="3", parentUuid="2"),
        user("No, that is wrong. Round each line of the cart instead.", uuid="4", parentUuid="3"),
        answer(text("SECRET: I round each line now."), name="m", uuid="5", parentUuid="4"),
    ]
    session = "\n".join(map(json.dumps, lines)).encode()
    rows = gather_evidence({"session_id": "s", "source": "s", "trace": session, "bytes_not_utf8": 0}, "episode", 9000)
    (correction,) = [item for row in rows for item in row["findings"]]
    assert correction["kind"] == "correction"
    assert "SECRET" not in json.dumps(
        [(row["history"], row["prompt"], item["target"]) for row in rows for item in row["findings"]]
    )


def test_a_repeated_id_in_one_answer_is_one_call() -> None:
    twice = answer(use("Bash", command="make"), use("Bash", command="make"), name="m")
    read = claude_code.read([user("Fix it"), twice, user([result("Exit code 2\nstop", True)])])
    assert kinds(read) == "user assistant tool_call tool_result".split()


QUESTION = {"question": "How?", "options": [{"label": "Half up"}, {"label": "Half even"}]}
OTHER = {"question": "Where?", "options": [{"label": "In a.py"}]}
GO_ON = "You can now continue with these answers in mind."


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        ('"How?"="Half up", "Where?"="In a.py"', None),
        ('"How?"="Half up, Half even"', None),
        ('"How?"="No, round each line"', "No, round each line"),
        ('"How?"="Half up", "Where?"="No, never in a.py"', "No, never in a.py"),
        ('"How?"="No, neither." user notes: see issue 12', "No, neither.\nsee issue 12"),
        ('"How?"="Half up" user notes: but not for refunds', "but not for refunds"),
    ],
)
def test_what_was_typed_in_answer_to_a_question_is_the_users(answered: str, said: str | None) -> None:
    asked = answer(use("AskUserQuestion", questions=[QUESTION, OTHER]))
    for words in (
        f"User has answered your questions: {answered}. {GO_ON}",
        f"Your questions have been answered: {answered}. {GO_ON}",
    ):
        read = claude_code.read([user("Round"), asked, user([result(words)])])
        assert texts(read, "user")[1:] == ([said] if said else [])


def test_a_branch_that_repeats_its_messages_counts_each_once() -> None:
    lines = [
        user("Fix it", uuid="1", parentUuid=None),
        answer(text("Done."), name="m1", uuid="2", parentUuid="1"),
        user("Fix it", uuid="1", parentUuid=None),
        answer(text("Done."), name="m1", uuid="2", parentUuid=None),
        user("Now the other", uuid="3", parentUuid="2"),
    ]
    read = [step for step in claude_code.read(lines) if step.on_active_branch]
    assert (texts(read, "user"), texts(read, "assistant")) == (["Fix it", "Now the other"], ["Done."])


def test_the_version_is_that_of_the_last_lines() -> None:
    assert (
        claude_code.read_version([user("a", version="1.0.9"), user("b", version="2.1.3"), {"type": "mode"}]) == "2.1.3"
    )
    assert claude_code.read_version([{"type": "system", "claude_code_version": "2.1.4"}]) == "2.1.4"
