"""Test the versions of Pi, the forks that write its entries, and its JSON mode."""

import json
from typing import Any

import pytest
from hypothesis import given

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import pi
from pimono_sdpo.traces.lines import read_lines
from pimono_sdpo.traces.parse import read_trace
from tests.harness.odd_entries import ENTRIES
from tests.traces import HEADER, Entry, assistant, bash, call, result, trace, user


def events(*entries: Entry) -> tuple[Event, ...]:
    return read_trace(trace(*entries)).events


@pytest.mark.parametrize("kept", [{"firstKeptEntryIndex": 3}, {"firstKeptEntryId": "b"}], ids=["v1", "v3"])
def test_a_compaction_says_what_it_kept(kept: dict[str, Any]) -> None:
    ids = "v3" if "firstKeptEntryId" in kept else ""
    messages = [user("one"), user("two"), user("three")]
    if ids:
        parents = [None, "x", "a"]
        messages = [{**e, "id": i, "parentId": p} for e, i, p in zip(messages, "xab", parents, strict=True)]
    compaction = {"type": "compaction", "summary": "what was", **kept}
    if ids:
        compaction |= {"id": "c", "parentId": "b"}
    found = events(HEADER, *messages, compaction)
    summary = found[-1]
    assert (summary.kind, summary.text) == ("compaction", "what was")
    assert summary.kept_from is not None
    assert found[summary.kept_from].text == "three"
    assert all(event.on_active_branch for event in found)


@pytest.mark.parametrize("kept", [{"firstKeptEntryIndex": 99}, {"firstKeptEntryId": "lost"}, {}])
def test_a_compaction_that_names_nothing_kept_nothing(kept: dict[str, Any]) -> None:
    found = events(user("one"), {"type": "compaction", "summary": "s", **kept}, user("two"))
    assert found[1].kept_from == 1


def test_a_message_of_an_extension_is_the_request_without_a_user_message() -> None:
    asked = {"type": "custom_message", "customType": "gsd-auto", "content": "Build the parser"}
    nudge = {"type": "custom_message", "customType": "gsd-auto", "content": "Go on"}
    found = events(asked, assistant("so"), nudge)
    assert [event.kind for event in found] == ["user", "assistant", "custom_message"]
    spoken = events(asked, user("No, fix the lexer"))
    assert [event.kind for event in spoken] == ["custom_message", "user"]


def test_a_nudge_during_an_extensions_run_does_not_begin_a_request() -> None:
    asked = {"type": "custom_message", "customType": "gsd-auto", "content": "Build the parser"}
    found = events(asked, *bash("make", "ok"), user("Use the other lexer"), assistant("so"))
    nudge = next(event for event in found if event.text == "Use the other lexer")
    assert found[0].kind == nudge.kind == "user"
    assert nudge.is_nudge
    after = events(asked, *bash("make", "ok"), assistant("done"), user("Now write the docs"))
    assert [event.is_nudge for event in after if event.kind == "user"] == [False, False]


def test_results_stored_with_calls_are_read() -> None:
    made = {"type": "toolCall", "id": "c", "name": "Bash", "arguments": {"command": "make"}}
    wrong = {"content": [{"type": "text", "text": "make: *** No rule"}], "isError": True}
    blocks = [{**made, "externalResult": wrong}, {**made, "id": "d"}]
    found = events({"type": "message", "message": {"role": "assistant", "content": blocks}})
    assert [event.kind for event in found] == ["assistant", "tool_call", "tool_call", "tool_result"]
    assert (found[3].call_id, found[3].text, found[3].is_error) == ("c", "make: *** No rule", True)


def test_version_2_hooks_and_anthropic_blocks() -> None:
    hook = {"type": "message", "message": {"role": "hookMessage", "content": "a hook says"}}
    blocks = [{"type": "text", "text": "I look"}, {"type": "tool_use", "id": "t", "name": "read"}]
    output = [{"type": "tool_result", "tool_use_id": "t", "content": "gone", "is_error": True}]
    found = events(
        user("Fix it"),
        hook,
        {"type": "message", "message": {"role": "assistant", "content": blocks}},
        user(output),  # type: ignore[arg-type]
    )
    assert [event.kind for event in found] == ["user", "custom_message", "assistant", "tool_call", "tool_result"]
    assert (found[4].text, found[4].is_error, found[4].call_id) == ("gone", True, "t")


def stream(*messages: dict[str, Any]) -> list[Entry]:
    """Return the output of Pi's JSON mode: each message at its start and end, and all again at the end."""
    steps: list[Entry] = [{"type": "agent_start"}, {"type": "turn_start"}]
    for message in messages:
        begun = {**message, "content": []} if message["role"] == "assistant" else message
        steps += [
            {"type": "message_start", "message": begun},
            {"type": "message_update", "assistantMessageEvent": {"type": "text_delta"}},
        ]
        if message["role"] == "toolResult":
            same = {"toolCallId": message["toolCallId"], "toolName": message["toolName"]}
            steps.append({"type": "tool_execution_end", **same, "result": message, "isError": True})
        steps.append({"type": "message_end", "message": message})
    return [*steps, {"type": "agent_end", "messages": list(messages)}]


def test_a_stream_gives_the_events_of_its_messages_once() -> None:
    asked = user("Fix the parser")["message"]
    called = call("bash", command="npm test")["message"]
    failed = result("bash", "1 failed\n\nCommand exited with code 1", error=True)["message"]
    done = assistant("Fixed")["message"]
    read = read_trace(trace(HEADER, *stream(asked, called, failed, done)))
    assert (read.harness, read.session_id, read.problem) == ("pi", "s-1", None)
    plain = events(*({"type": "message", "message": m} for m in (asked, called, failed, done)))
    assert read.events == plain


def test_a_stream_that_was_cut_keeps_the_messages_that_ended() -> None:
    asked = user("Fix the parser")["message"]
    half = assistant("half")["message"]
    steps = [
        {"type": "message_start", "message": asked},
        {"type": "message_end", "message": asked},
        {"type": "message_start", "message": half},
        {"type": "message_update", "assistantMessageEvent": {"type": "text_delta"}, "message": half},
    ]
    assert [(e.kind, e.text) for e in events(*steps)] == [("user", "Fix the parser")]


@pytest.mark.parametrize(("details", "code"), [({"exitCode": 2}, 2), ({"exitCode": "2"}, None), (["diff"], None)])
def test_what_a_tool_adds_to_its_result_may_be_anything(details: object, code: int | None) -> None:
    (read,) = events(
        {"type": "message", "message": {**result("bash", "no", error=True)["message"], "details": details}}
    )
    assert (read.text, read.is_error, read.exit_code) == ("no", True, code)


@given(ENTRIES)
def test_typed_entries_are_those_built_from_dicts(entries: list[Entry]) -> None:
    """Entries with unexpected types are empty in both cases."""
    lines = [json.dumps(entry).encode() for entry in entries]
    built = [pi.build_entry(json.loads(line)) for line in lines]
    read = read_lines(b"\n".join(lines), pi.DECODER, pi.build_entry).objects
    assert plain_events(pi.read(read)) == plain_events(pi.read(built))
    messages = [pi.build_entry({"type": "message", "message": e}) for e in entries]
    found = pi.read(messages)
    assert [event.index for event in found] == list(range(len(found)))


def plain_events(found: list[Event]) -> list[Event]:
    """Normalise the whitespace of arguments, which are kept as recorded."""
    for event in found:
        if event.kind == "tool_call":
            event.arguments = json.dumps(json.loads(event.arguments))
    return found
