"""Test the files at the time of a request, and how they reach a row's spec."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset

from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.replay.initial_state import MAX_CHARS, InitialState, Known
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.parse import match_results, read_trace
from rewards.verifiers.replay import verify
from tests.traces import HEADER, Entry, bash, call, result, trace, user

TEXT = "import a\n\nlet x = 1\nlet y = x\n"


def read(path: str, text: str = TEXT, **given: Any) -> list[Entry]:
    return [call("read", path=path, **given), result("read", text)]


def edit(path: str, old: str, new: str = "new", failed: bool = False) -> list[Entry]:
    output = "Could not find the exact text" if failed else "Successfully replaced text"
    return [call("edit", path=path, oldText=old, newText=new), result("edit", output, error=failed)]


BROKEN = "a.ts(3,1): error TS2322: Type 'string' is not assignable.\n\nCommand exited with code 2"


def session(*steps: list[Entry]) -> str:
    entries: list[Entry] = [HEADER, user("Fix the failing parser test")]
    for number, step in enumerate(steps):
        entries += [json.loads(json.dumps(entry).replace('"c1"', f'"c{number}"')) for entry in step]
    return trace(*entries)


def known(*steps: list[Entry], failure: int = 0) -> list[Known]:
    back = read_trace(session(*steps))
    request = next(event.index for event in back.events if event.kind == "user")
    matched = match_results(back.events)
    return InitialState(back.events, matched, back.cwd, find_harness(back.harness).files).files_at(request, failure)


A = Known("/home/ann/app/a.ts", True, [TEXT])


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([read("a.ts")], [A]),
        ([bash("cat a.ts", TEXT)], [A]),
        # Later changes do not matter.
        ([read("a.ts"), edit("a.ts", "let x = 1")], [A]),
        ([read("a.ts"), bash("./make-it.sh", "")], [A]),
        # Text seen after a possible change does not count.
        ([edit("a.ts", "x", "y"), read("a.ts")], []),
        ([edit("a.ts", "gone", failed=True), read("a.ts")], []),
        ([bash("sed -i s/x/q/ a.ts", ""), read("a.ts")], []),
        ([bash("./make-it.sh", ""), read("a.ts")], []),
        ([[user("I have changed it")], read("a.ts")], []),
        ([[call("write", path="a.ts", content=TEXT), result("write", "wrote")], read("a.ts")], []),
        # The old text of an edit was there once.
        ([edit("a.ts", "let y = x + 100")], [Known(A.path, False, ["let y = x + 100"])]),
        ([read("a.ts", "", offset=9)], []),
    ],
)
def test_only_the_content_at_the_request_is_known(steps: list[list[Entry]], expected: list[Known]) -> None:
    assert known(*steps) == expected


@pytest.mark.parametrize("most_before", [2, 4, 9, 20])
def test_a_skipped_request_gives_the_same_files_as_a_visited_one(most_before: int) -> None:
    steps = [[*read(f"{n}.ts", f"{TEXT}let z = {n}\n"), *edit("0.ts", f"z = {n}"), user(f"Now {n}")] for n in range(6)]
    back = read_trace(session(*steps))
    requests = [event.index for event in back.events if event.kind == "user"]
    matched, tools = match_results(back.events), find_harness(back.harness).files
    for asked in range(1, 1 << len(requests)):
        visits = InitialState(back.events, matched, back.cwd, tools, most_before)
        passes = InitialState(back.events, matched, back.cwd, tools, most_before)
        for number, request in enumerate(requests):
            expected = visits.files_at(request, request)
            if asked >> number & 1:
                assert passes.files_at(request, request) == expected
            else:
                passes.skip(request)


def test_the_files_nearest_to_the_failure_come_first_up_to_the_limit() -> None:
    long = "\n".join(f"let name{number} = {number}" for number in range(MAX_CHARS // 25))
    steps = [read(f"{name}.ts", long) for name in "abc"]
    kept = known(*steps, failure=99)
    assert [one.path[-4:] for one in kept] == ["c.ts", "b.ts"]
    assert [one.whole for one in kept] == [True, False]
    assert long.startswith(kept[1].texts[0])
    assert sum(len(one.path) + sum(map(len, one.texts)) for one in kept) <= MAX_CHARS


def test_a_row_carries_the_redacted_files_that_replay_judges_by(tmp_path: Path) -> None:
    source = f"{TEXT}const home = '/home/ann/app/lib'\n"
    # A text that was not found is no evidence alone; the failing build after it is.
    failed = [call("bash", command="npm run build"), result("bash", BROKEN, error=True)]
    content = session(read("/home/ann/app/a.ts"), read("b.ts", source), edit("a.ts", "gone", failed=True), failed)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "s.jsonl").write_text(content)
    run_filter(str(tmp_path / "in"), tmp_path / "out", FilterOptions(min_worth=0))
    (row,) = load_dataset("parquet", data_files=str(tmp_path / "out/data/*.parquet"), split="train")
    spec = json.loads(row["verifier_spec"])
    assert "/home/ann" not in row["verifier_spec"]
    assert spec["workspace"]["cwd"] == "$WORKSPACE"

    def judged(path: str, old: str) -> str:
        given = {"name": "edit", "arguments": {"path": path, "oldText": old, "newText": "q"}}
        completion = f"<tool_call>\n{json.dumps(given)}\n</tool_call><|im_end|>"
        return verify(completion, {**spec, "tools": "pi", "format": "qwen3"}).status

    for path in ("a.ts", "$WORKSPACE/a.ts", "$HOME/../a.ts"):
        assert judged(path, "let y = x") == ("skipped" if ".." in path else "passed")
    assert judged("a.ts", "let z") == "failed"
    # Files that redaction has changed are not fully known.
    assert judged("b.ts", "const home = '$WORKSPACE/lib'") == "passed"
    assert judged("b.ts", "const home = '/elsewhere'") == "skipped"
