"""Test predictions with random sessions on a file that really changes."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pimono_sdpo.replay.calls import decode_arguments, read_edits
from pimono_sdpo.replay.files import File, Outcome
from pimono_sdpo.replay.initial_state import InitialState
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import pi
from pimono_sdpo.traces.parse import match_results
from tests.predictions import Predicted, predictions

# Few and similar lines, so that texts repeat, touch, and extend beyond what was read.
LINES = ["a", "b", "  a", "ab", "", "x = 1", "x = 1;", "}", "let a = b", "end "]
PATH = "/w/a.ts"
texts = st.lists(st.sampled_from(LINES), max_size=12).map("\n".join)
old_texts = st.lists(st.sampled_from(LINES), min_size=1, max_size=3).map("\n".join)
steps = st.one_of(
    st.tuples(st.just("read"), st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.just("read all"), st.just(0), st.just(0)),
    st.tuples(st.just("edit"), old_texts, old_texts),
    st.tuples(st.just("own edit"), st.integers(0, 60), st.tuples(st.integers(1, 9), old_texts)),
    st.tuples(st.just("two edits"), old_texts, old_texts),
    st.tuples(st.just("write"), texts, st.just(0)),
    st.tuples(st.just("sed"), st.sampled_from("abx"), st.sampled_from("abx")),
    st.tuples(st.just("script"), texts, st.just(0)),
    st.tuples(st.just("grep"), st.integers(0, 11), st.just(0)),
)


def outcome(text: str, edits: list[tuple[str, str]]) -> tuple[Outcome, str]:
    """Apply edits as Pi does, searching for each in the original text."""
    spans = []
    for old, new in edits:
        if text.count(old) != 1:
            return ("multiple" if old in text else "not_found"), text
        spans.append((text.index(old), text.index(old) + len(old), new))
    spans.sort()
    after, end = "", 0
    for start, stop, new in spans:
        if start < end:
            return "multiple", text
        after, end = after + text[end:start] + new, stop
    after += text[end:]
    return ("ok", after) if after != text else ("no_change", text)


def agrees(expected: Predicted | None, truth: Outcome, is_whole: bool = False) -> bool:
    """A short text may also occur in an unknown part of a file."""
    is_open = expected is None or (expected == "ok" and truth == "multiple" and not is_whole)
    return is_open or (expected == "ok") == (truth == "ok")


class Session:
    """A file and the session that records it; `truth` has the real outcome of each edit."""

    def __init__(self, text: str) -> None:
        self.text, self.events = text, [Event(0, "user", "go")]
        self.truth: dict[int, Outcome] = {}

    def add(self, name: str, given: dict[str, Any], result: str, failed: bool = False) -> None:
        at, call_id, asked = len(self.events), f"c{len(self.events)}", json.dumps(given)
        self.events += [
            Event(at, "tool_call", call_id=call_id, tool_name=name, arguments=asked),
            Event(at + 1, "tool_result", result, call_id=call_id, tool_name=name, is_error=failed),
        ]

    def do(self, kind: str, one: Any, two: Any) -> None:
        lines = self.text.split("\n")
        if kind == "read all":
            self.add("read", {"path": PATH}, self.text)
        elif kind == "read":
            shown = "\n".join(lines[one - 1 : one - 1 + two])
            left = len(lines) - (one - 1 + two)
            shown += f"\n\n[{left} more lines in file. Use offset=9 to continue.]" * (left > 0)
            if one <= len(lines):
                self.add("read", {"path": PATH, "offset": one, "limit": two}, shown)
        elif kind == "own edit":
            length, new = two
            old = self.text[one : one + length * 3]
            self.edit([(old, new)])
        elif kind == "edit":
            self.edit([(one, two)])
        elif kind == "two edits":
            self.edit([(one, "new"), (two, "other")])
        elif kind == "write":
            self.text = one
            self.add("write", {"path": PATH, "content": one}, "ok")
        elif kind == "sed":
            self.text = self.text.replace(one, two)
            self.add("bash", {"command": f"sed -i s/{one}/{two}/g a.ts"}, "(no output)")
        elif kind == "script":
            self.text = one
            self.add("bash", {"command": "./make-it.sh"}, "done")
        elif kind == "grep" and one < len(lines) and lines[one]:
            self.add("bash", {"command": "grep -n x a.ts"}, f"{one + 1}:{lines[one]}")

    def edit(self, edits: list[tuple[str, str]]) -> None:
        if not all(old for old, _ in edits):
            return
        self.truth[len(self.events)], self.text = outcome(self.text, edits)
        made = [{"oldText": old, "newText": new} for old, new in edits]
        ended = self.truth[len(self.events)]
        self.add("edit", {"path": PATH, "edits": made}, ended, failed=ended != "ok")


@settings(max_examples=400, deadline=None)
@given(texts, st.lists(steps, max_size=14))
def test_no_prediction_is_wrong(text: str, done: list[tuple[str, Any, Any]]) -> None:
    session = Session(text)
    for step in done:
        session.do(*step)
    for one in predictions(session.events, "/w"):
        assert agrees(one.expected, session.truth[one.event_index])


@settings(max_examples=400, deadline=None)
@given(texts, st.lists(steps, max_size=14), st.lists(old_texts, min_size=4, max_size=4))
def test_files_at_the_request_are_correct(text: str, done: list[tuple[str, Any, Any]], asked: list[str]) -> None:
    session = Session(text)
    for step in done:
        session.do(*step)
    matched = match_results(tuple(session.events))
    known = InitialState(session.events, matched, "/w", pi.HARNESS.files).files_at(0, 0)
    file = File()
    for one in known:
        assert one.path == PATH
        assert all(piece in text for piece in one.texts)
        file = File(one.texts[0]) if one.whole else File(pieces=one.texts)
        assert file.whole in {None, text}
    edits = [[(old, "new")] for old in asked]
    edits += [[(e.old, "new") for e in read_edits(decode_arguments(v))] for v in session.events if v.kind == "tool_call" and v.tool_name == "edit"]  # fmt: skip
    for several in edits:
        call = {"edits": [{"oldText": old, "newText": new} for old, new in several]}
        expected = file.predict(read_edits(call))
        assert agrees(expected, outcome(text, several)[0], file.whole is not None)
