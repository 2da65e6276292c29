import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimono_sdpo.branches import find_branches
from pimono_sdpo.trace import match_results, read_trace
from processors.evidence import evidence
from tests.traces import HEADER, Entry, assistant, bash, call, result, trace, user


def chain(*entries: Entry) -> list[Entry]:
    """Give entries ids from 1 up, each the child of the one before unless it says otherwise."""
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


def test_a_branch_is_what_was_left_and_what_stayed() -> None:
    events = read_trace(trace(HEADER, *WENT_BACK)).events
    (branch,) = find_branches(events)
    assert events[branch.fork].text == "I rewrite the lexer"
    assert [events[i].text for i in branch.abandoned] == ["show me", "here it is"]
    assert [events[i].text for i in branch.kept] == [
        "keep the lexer, only change src/parser.ts",
        "done",
    ]


def test_going_back_corrects_what_was_abandoned() -> None:
    session = trace(HEADER, *WENT_BACK)
    row = {"harness": "", "session_id": "", "source": "", "trace": session, "bytes_not_utf8": 0}
    (found,) = evidence(row, unit="session", history_chars=0)
    (correction,) = found["corrections"]
    assert correction["text"] == "keep the lexer, only change src/parser.ts"
    assert correction["rule"] == "abandoned_branch"
    assert found["counts"]["abandoned_branches"] == 1


@pytest.mark.parametrize(
    "entries",
    [
        # The request itself was worded anew: there was nothing to correct yet.
        chain(user("Fix it"), assistant("so"), {**user("Fix the parser"), "parentId": None}),
        # The same was asked again.
        chain(
            user("Fix the parser"),
            assistant("so"),
            user("and the lexer"),
            {**user("and the lexer"), "parentId": "2"},
        ),
    ],
)
def test_going_back_alone_corrects_nothing(entries: list[Entry]) -> None:
    session = trace(HEADER, *entries)
    row = {"harness": "", "session_id": "", "source": "", "trace": session, "bytes_not_utf8": 0}
    assert len(find_branches(read_trace(session).events)) == 1
    assert evidence(row, unit="session", history_chars=0)[0]["corrections"] == []


def test_a_branch_whose_beginning_is_lost_is_none() -> None:
    entries = [*WENT_BACK[:2], {**WENT_BACK[3], "parentId": "lost"}, *WENT_BACK[4:]]
    assert find_branches(read_trace(trace(HEADER, *entries)).events) == []


@given(
    st.lists(
        st.one_of(st.none(), st.integers(min_value=0, max_value=14).map(str)),
        min_size=1,
        max_size=14,
    )
)
def test_any_tree_is_read_and_every_event_is_on_one_side(parents: list[str | None]) -> None:
    entries = [
        {**user(f"message {number}"), "id": str(number), "parentId": parent}
        for number, parent in enumerate(parents)
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
        assert set(branch.kept) <= active


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
        '{"command": "ls"}': "a.ts",
        '{"command": "ls again"}': "b.ts",
    }
