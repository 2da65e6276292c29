from hypothesis import given
from hypothesis import strategies as st

from pimono_sdpo.traces.parse import find_branches, match_results, read_trace
from processors.evidence import gather_evidence
from tests.traces import HEADER, Entry, assistant, bash, call, result, trace, user


def chain(*entries: Entry) -> list[Entry]:
    """Number entries from 1; each is the child of the entry before unless it names a parent."""
    out: list[Entry] = []
    for number, entry in enumerate(entries, start=1):
        parent = str(number - 1) if number > 1 else None
        out.append({"id": str(number), "parentId": parent, **entry})
    return out


WENT_BACK = chain(
    user("Fix the parser, it drops the last line"),
    assistant("I rewrite the lexer"),
    user("show me"),
    assistant("here it is"),
    {**user("keep the lexer, only change src/parser.ts"), "parentId": "2"},
    assistant("done"),
)


def test_a_branch_has_a_fork_and_a_continuation() -> None:
    events = read_trace(trace(HEADER, *WENT_BACK)).events
    (branch,) = find_branches(events)
    assert events[branch.fork].text == "I rewrite the lexer"
    assert [events[i].text for i in branch.abandoned] == ["show me", "here it is"]
    assert branch.kept is not None
    assert [e.text for e in events[branch.kept :] if e.on_active_branch] == [
        "keep the lexer, only change src/parser.ts",
        "done",
    ]


def test_going_back_corrects_only_with_words_that_say_so() -> None:
    """Going back alone is not a correction; the user's words decide."""
    objects = {**user("No, that is wrong. Only change src/parser.ts"), "parentId": "2"}
    found = []
    for last in (WENT_BACK[4], objects):
        session = trace(HEADER, *WENT_BACK[:4], {"id": "5", **last}, WENT_BACK[5])
        row = {"session_id": "", "source": "", "trace": session, "bytes_not_utf8": 0}
        (result,) = gather_evidence(row, unit="session", history_chars=0)
        assert result["counts"]["abandoned_branches"] == 1
        found.append([item["text"] for item in result["findings"]])
    assert found == [[], ["No, that is wrong. Only change src/parser.ts"]]


def test_a_branch_without_its_beginning_is_ignored() -> None:
    entries = [*WENT_BACK[:2], {**WENT_BACK[3], "parentId": "lost"}, *WENT_BACK[4:]]
    assert find_branches(read_trace(trace(HEADER, *entries)).events) == []


@given(st.lists(st.one_of(st.none(), st.integers(min_value=0, max_value=14).map(str)), min_size=1, max_size=14))
def test_any_tree_is_read_and_every_event_is_active_or_abandoned(parents: list[str | None]) -> None:
    entries = [
        {**user(f"message {number}"), "id": str(number), "parentId": parent} for number, parent in enumerate(parents)
    ]
    events = read_trace(trace(*entries)).events
    active = {event.index for event in events if event.on_active_branch}
    branches = find_branches(events)
    left = [index for branch in branches for index in branch.abandoned]
    assert events[-1].index in active
    assert len(left) == len(set(left))
    assert not active & set(left)
    for branch in branches:
        assert branch.fork == -1 or branch.fork in active
        assert branch.kept is None or branch.kept in active


def test_calls_are_matched_to_results() -> None:
    events = read_trace(
        trace(
            *bash("ls", "a.ts"),
            call("read", "c2", path="a.ts"),
            result("read", "late", call_id="lost"),
            *bash("ls again", "b.ts"),
        )
    ).events
    matched = match_results(events)
    calls = {event.index: event.arguments for event in events if event.kind == "tool_call"}
    assert {calls[i]: events[j].text for i, j in matched.items()} == {
        '{"command":"ls"}': "a.ts",
        '{"command":"ls again"}': "b.ts",
    }


def test_repeated_lines_of_a_file_are_read_once() -> None:
    entries = chain(
        *(
            entry
            for n in range(3)
            for entry in (user(f"Fix number {n} of the parser"), assistant(f"fixed {n} at once"))
        )
    )
    once = read_trace(trace(HEADER, *entries)).events
    twice = read_trace(trace(HEADER, *entries, *entries)).events
    assert find_branches(twice) == []
    assert [e.text for e in twice if e.kind == "user"] == [e.text for e in once if e.kind == "user"]


def test_calls_of_an_aborted_turn_do_not_count() -> None:
    aborted = call("write", path="a.ts")
    aborted["message"]["stopReason"] = "aborted"
    failed = bash("npm test", "1 failed\n\nCommand exited with code 1", error=True)
    session = trace(HEADER, user("Fix the parser, it drops lines"), *failed, aborted)
    row = {"session_id": "", "source": "", "trace": session, "bytes_not_utf8": 0}
    (found,) = gather_evidence(row, unit="session", history_chars=0)
    assert found["continued"] is False
