import pytest

from pimono_sdpo.traces.parse import read_trace
from processors.diagnostics import find_failures
from tests.traces import HEADER, Entry, assistant, bash, result, trace, user


def test_a_linear_v1_session_becomes_events_in_order() -> None:
    header = {"type": "session", "id": "v1", "cwd": "/w", "provider": "anthropic"}
    read = read_trace(trace(header, user("Fix it"), *bash("ls", "a.ts\n\nCommand exited with code 2", True)))
    assert (read.harness, read.session_id, read.cwd, read.problem) == ("pi", "v1", "/w", None)
    assert [e.kind for e in read.events] == ["other", "user", "assistant", "tool_call", "tool_result"]
    assert [e.index for e in read.events] == list(range(5))
    assert all(e.on_active_branch for e in read.events)
    assert read.events[4].is_error
    assert read.events[4].exit_code == 2
    assert read.events[3].arguments == '{"command":"ls"}'
    assert read.events[3].call_id == read.events[4].call_id == "c1"


def test_the_active_path_excludes_abandoned_branches() -> None:
    read = read_trace(
        trace(
            HEADER,
            user("ask", id="a", parentId=None),
            assistant("abandoned answer", id="b", parentId="a"),
            user("abandoned reply", id="c", parentId="b"),
            assistant("second answer", id="d", parentId="a"),
        )
    )
    texts = {event.text: event.on_active_branch for event in read.events if event.text}
    assert texts == {"ask": True, "abandoned answer": False, "abandoned reply": False, "second answer": True}


def test_a_lost_parent_does_not_hide_the_beginning() -> None:
    read = read_trace(trace(HEADER, user("ask", id="a", parentId=None), assistant("orphan", id="b", parentId="lost")))
    assert [e.on_active_branch for e in read.events if e.text] == [True, True]


def test_a_parent_loop_ends() -> None:
    read = read_trace(trace(user("one", id="a", parentId="b"), user("two", id="b", parentId="a")))
    assert [e.text for e in read.events] == ["one", "two"]


def test_bash_executions_and_cleaned_text() -> None:
    run: Entry = {
        "type": "message",
        "message": {
            "role": "bashExecution",
            "command": "npm test",
            "output": "\x1b[31mFAIL\x1b[0m \ud800",
            "exitCode": 1,
            "cancelled": False,
        },
    }
    (event,) = read_trace(trace(run)).events
    assert (event.kind, event.text, event.arguments) == ("bash", "FAIL \ufffd", "npm test")
    assert (event.is_error, event.exit_code) == (True, 1)


@pytest.mark.parametrize(
    ("lines", "harness", "problem"),
    [
        (trace(HEADER), "pi", "no_messages"),
        ("", "unknown", "no_messages"),
        ("not json at all", "unknown", "no_messages"),
        (trace({"type": "strange", "data": {"content": "hi"}}), "unknown", "unknown_harness"),
        (trace({"type": "mode", "mode": "normal", "sessionId": "s"}), "claude_code", "no_messages"),
        (trace({"type": "session_meta", "payload": {"id": "s"}}), "codex", "no_messages"),
        (trace({"type": "message", "message": {"role": "other"}}), "unknown", "unknown_harness"),
        (trace({"type": "custom_message", "customType": "x"}), "pi", "no_messages"),
    ],
)
def test_unusable_traces_have_a_problem(lines: str, harness: str, problem: str) -> None:
    read = read_trace(lines)
    assert (read.harness, read.problem, read.events and read.problem) == (
        harness,
        problem,
        read.events and "no_messages",
    )


def test_odd_shapes_do_not_raise() -> None:
    odd: list[Entry] = [
        {"type": "message", "message": {"role": "user", "content": None}},
        {"type": "message", "message": {"role": "user", "content": [None, {"type": "image"}, 3]}},
        {"type": "message", "message": {"role": "assistant", "content": [{"type": "toolCall"}]}},
        {"type": "message", "message": 3},
        {"type": 3, "id": 4, "parentId": []},
        {"type": ["x"], "message": {"role": {}}},
        {"type": "message", "message": {"role": ["user"], "content": "x"}},
        result("edit", "x", details={"exitCode": "1"}),
    ]
    read = read_trace(trace(*odd))
    assert read.problem is None
    assert len(read.events) == 9


@pytest.mark.parametrize("depth", [900, 985, 990, 5000])
def test_deep_nesting_loses_at_most_its_line(depth: int) -> None:
    deep = '{"type":"message","message":{"role":"assistant","content":[{"type":"toolCall",'
    deep += '"name":"bash","arguments":' + "[" * depth + "]" * depth + "}]}}"
    read = read_trace(trace(user("Fix the parser")) + "\n" + deep)
    assert read.events[0].text == "Fix the parser"
    assert find_failures(read.events) == []
    assert read.lines.parsed + read.lines.repaired + read.lines.skipped == 2


@pytest.mark.parametrize(
    ("agent", "lines"),
    [
        ("kimi_cli", [{"message": {"type": "TurnBegin", "payload": {"user_input": "hi"}}}]),
        ("grok", [{"type": "user", "content": "hi"}, {"type": "reasoning", "summary": []}]),
    ],
)
def test_a_session_of_an_agent_that_is_not_read_has_its_name(agent: str, lines: list[Entry]) -> None:
    read = read_trace(trace(*lines))
    assert (read.harness, read.problem, read.events) == (agent, "unknown_harness", ())
