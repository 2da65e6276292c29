"""Exercises from failing steps: what the rows hold, and that they share the filter's pipeline."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pimono_sdpo.filtering import FilterOptions, run_filter
from tests.failing_steps import NEW, OLD, REQUEST, SESSION
from tests.traces import HEADER, assistant, bash, call, result, trace, user

Row = dict[str, Any]


def make(folder: Path, session: str = SESSION, **options: Any) -> tuple[list[Row], Row]:
    source = folder / "traces"
    source.mkdir(exist_ok=True)
    (source / "one.jsonl").write_text(session)
    report = run_filter(str(source), folder / "out", FilterOptions(unit="step", **options))
    files = sorted((folder / "out" / "data").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()], report


def test_each_failure_and_each_correction_is_a_row(tmp_path: Path) -> None:
    rows, report = make(tmp_path, corrections=True)
    kinds = [json.loads(row["verifier_spec"])["goal"]["kind"] for row in rows]
    assert sorted(kinds) == ["change", "change", "correction", "folder", "path"]
    assert report["exercises"] == {
        "change": 2, "correction": 1, "folder": 1, "path": 1,
    }  # fmt: skip
    # All events are counted once.
    assert sum(row["counts"]["lines_parsed"] for row in rows) == SESSION.count("\n") + 1


def test_the_prompt_ends_where_the_model_acts_and_hides_what_followed(tmp_path: Path) -> None:
    rows, _ = make(tmp_path)
    row = next(row for row in rows if "Could not find" in row["privileged_context"])
    roles = [turn["role"] for turn in row["prompt"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert '"name": "edit"' in row["prompt"][0]["content"]
    assert row["prompt"][1]["content"] == REQUEST
    assert json.loads(row["prompt"][2]["content"])["args"] == {"path": "src/app.py"}
    assert row["prompt"][3]["content"].endswith("[your plan]\nNow I open the file as UTF-8 in load.")
    assert "# text" not in json.dumps(row["prompt"])
    assert NEW not in row["privileged_context"]
    spec = json.loads(row["verifier_spec"])
    assert OLD in spec["workspace"]["files"]["$WORKSPACE/src/app.py"]["whole"]
    assert spec["resolved_call"]["args"]["edits"] == [{"oldText": OLD, "newText": NEW}]


def test_the_teacher_sees_the_call_that_worked_on_request(tmp_path: Path) -> None:
    rows, _ = make(tmp_path, resolving_call=True)
    row = next(row for row in rows if "Could not find" in row["privileged_context"])
    assert json.dumps(NEW)[1:-1] in row["privileged_context"]


def test_the_conversation_stays_within_its_budget(tmp_path: Path) -> None:
    looks = [
        event for number in range(40) for event in bash(f"sed -n '{number}p' log", "word " * 400, call_id=f"x{number}")
    ]
    bad = bash("cat src/nothing.py", "cat: src/nothing.py: No such file or directory", True, "y")
    (row,), _ = make(tmp_path, trace(HEADER, user(REQUEST), *looks, *bad), prompt_tokens=1000)
    assert row["prompt"][1]["content"] == REQUEST
    assert 2000 < sum(len(turn["content"]) for turn in row["prompt"][1:]) < 4500


def test_secrets_and_homes_reach_no_column(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    shown = bash("env", f"HOME=/home/ann\nGITHUB_TOKEN={secret}", call_id="x")
    bad = bash(
        f"cat /home/ann/app/x.py # {secret}", "cat: /home/ann/app/x.py: No such file or directory",
        True, "y",
    )  # fmt: skip
    (row,), report = make(tmp_path, trace(HEADER, user(REQUEST), *shown, *bad))
    assert secret not in json.dumps(row)
    assert "/home/ann" not in json.dumps(row)
    assert json.loads(row["verifier_spec"])["goal"]["path"] == "$WORKSPACE/x.py"
    assert report["secrets_redacted"]["github_token"] >= 3


def test_what_cannot_be_an_exercise_is_rejected_with_its_reason(tmp_path: Path) -> None:
    red = bash("npm test", "1 failed, 3 passed\n\nCommand exited with code 1", True, "x")
    stopped = bash("rm -rf build", "HARD BLOCK: rm -rf is not allowed here", True, "y")
    missing = bash("cat a/b.py", "cat: a/b.py: No such file or directory", True, "z")
    rows, report = make(tmp_path, trace(HEADER, user(REQUEST), *red, *stopped, *missing))
    assert len(rows) == 1
    assert report["drop_reasons"] == {"not_decidable": 1, "refused": 1}


MISSING = "ENOENT: no such file or directory, access '{}'"
OPENCLAW = '{{"status": "error", "tool": "read", "error": "{}"}}'
FAILED_EDIT = "Could not find the exact text in a.py."


def edit_twice(old: str, *before: Row) -> list[Row]:
    """An edit that fails and one of `old` that works."""
    return [
        *before,
        call("edit", "e1", path="a.py", edits=[{"oldText": f"{old} # x", "newText": "total = 2"}]),
        result("edit", FAILED_EDIT, True, "e1"),
        call("edit", "e2", path="a.py", edits=[{"oldText": old, "newText": "total = 2"}]),
        result("edit", "Successfully replaced 1 block(s) in a.py.", call_id="e2"),
    ]


READ_A = [call("read", "r", path="a.py"), result("read", "total = 1\nother = 3\n", call_id="r")]
LONG_A = [call("read", "r", path="a.py"), result("read", "x\n" * 4000 + "total = 1\n" + "y\n" * 4000, call_id="r")]
GUESS = [call("read", "g", path="docs/plan.md"), result("read", MISSING.format("docs/plan.md"), True, "g")]


@pytest.mark.parametrize(
    ("ask", "events", "kinds"),
    [
        # A guess; the same where the request names the path or the file, or where the work makes it.
        (REQUEST, GUESS, ["path"]),
        ("Read docs/plan.md before you do anything else in here.", GUESS, []),
        ("Read the file plan.md before you do anything else.", GUESS, []),
        (
            REQUEST,
            [*GUESS, call("write", "w", path="docs/plan.md", content="x"), result("write", "ok", call_id="w")],
            [],
        ),
        # It was looked whether something is there.
        (REQUEST, bash("cat docs/a.md", "cat: docs/a.md: No such file or directory", True, "b"), ["path"]),
        (REQUEST, bash("cat docs/a.md || true", "cat: docs/a.md: No such file or directory", True, "b"), []),
        (REQUEST, bash("ls docs/a.md", "ls: docs/a.md: No such file or directory", True, "b"), []),
        # A missing program is found out by calling it.
        (REQUEST, bash("jq . a.json", "bash: line 1: jq: command not found", True, "b"), []),
        # The text to edit is in the prompt, was trimmed from it, was never shown.
        (REQUEST, edit_twice("total = 1", *READ_A), ["change"]),
        (REQUEST, edit_twice("total = 1", *LONG_A), []),
        (REQUEST, edit_twice("total = 1"), []),
    ],
)
def test_a_step_is_an_exercise_where_another_call_was_right(
    tmp_path: Path, ask: str, events: list[Row], kinds: list[str]
) -> None:
    # Never empty: the last step always is a row.
    last = [call("read", "z", path="src"), result("read", "EISDIR: illegal operation on a directory, read", True, "z")]
    rows, _ = make(tmp_path, trace(HEADER, user(ask), *events, *last))
    assert [json.loads(row["verifier_spec"])["goal"]["kind"] for row in rows] == [*kinds, "folder"]


def test_calls_of_one_turn_are_one_exercise_that_has_seen_none_of_their_results(tmp_path: Path) -> None:
    names = ["docs/one.md", "docs/two.md"]
    calls = [{"type": "toolCall", "id": name, "name": "read", "arguments": {"path": name}} for name in names]
    turn = assistant("I read both.", "toolUse")
    turn["message"]["content"] += calls
    results = [result("read", MISSING.format(name), True, name) for name in names]
    (row,), _ = make(tmp_path, trace(HEADER, user(REQUEST), turn, *results))
    assert json.loads(row["verifier_spec"])["failed_call"]["args"] == {"path": "docs/one.md"}
    assert "ENOENT" not in json.dumps(row["prompt"])


def test_a_call_that_failed_resolves_nothing_and_shows_no_file(tmp_path: Path) -> None:
    again = [call("read", "h", path="lib/plan.md"), result("read", OPENCLAW.format("ENOENT"), call_id="h")]
    found = [call("read", "i", path="old/plan.md"), result("read", "# Plan", call_id="i")]
    rows, _ = make(tmp_path, trace(HEADER, user(REQUEST), *GUESS, *again, *found))
    spec = json.loads(rows[0]["verifier_spec"])
    assert spec["resolved_call"]["args"] == {"path": "old/plan.md"}
    assert not any("lib/plan.md" in path for path in (*spec["paths"], *spec["workspace"]["files"]))
    assert "old/plan.md" not in rows[0]["privileged_context"]
    assert rows[0]["privileged_context"].endswith("Resolved by: another call of read")


def test_only_a_schema_makes_an_argument_required(tmp_path: Path) -> None:
    own = [
        event
        for n in range(6)
        for event in (call("look_up", f"o{n}", word="a", limit=n), result("look_up", "x", call_id=f"o{n}"))
    ]
    (row,), _ = make(tmp_path, trace(HEADER, user(REQUEST), *own, *GUESS))
    tools = [one for one in json.loads(row["verifier_spec"])["tools"] if isinstance(one, dict)]
    (tool,) = [one["function"] for one in tools if one["function"]["name"] == "look_up"]
    assert tool["parameters"]["required"] == []
