"""A call that failed, or that the user overruled, and the later one that worked become a row."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from typer.testing import CliRunner

from pimono_sdpo.actions import adds_silencer, is_risky, normalise_action
from pimono_sdpo.cli import app
from pimono_sdpo.errors import OutputError
from pimono_sdpo.filter_options import FilterOptions
from processors.recovery_rows import write_recoveries
from tests.traces import HEADER, Entry, assistant, bash, call, result, trace, user

Json = dict[str, Any]
ASK = user("Please list the open issues of the tracker and close the finished ones")
FLAG = "Exit code 1\nError: unknown flag: --wisp\nUsage:\n  bd list [flags]"
FAILED = bash("bd list --wisp cr-7", FLAG, error=True, call_id="c1")
WORKED = bash("bd list --parent cr-7", "cr-7 open", call_id="c9")


def edit(path: str, old: str, new: str, text: str = "Edited", error: bool = False, call_id: str = "e1") -> list[Entry]:
    return [call("edit", call_id, path=path, oldText=old, newText=new), result("edit", text, error, call_id)]


def rows(*entries: Entry, at: Any = "after", tokens: int = 4096) -> list[Json]:
    row = {"session_id": "", "source": "a.jsonl", "trace": trace(HEADER, *entries).encode()}
    return write_recoveries(row, at, tokens, 0.0, ())


def command_of(turns: list[Json]) -> Any:
    (turn,) = turns
    (made,) = turn["tool_calls"]
    return made["function"]["arguments"].get("command")


def test_a_call_that_worked_wins_over_the_one_that_failed() -> None:
    (row,) = rows(ASK, *FAILED, assistant("The flag is --parent."), *WORKED)
    assert (row["kind"], row["at"], row["problem"]) == ("call", "after", None)
    assert command_of(row["chosen"]) == "bd list --parent cr-7"
    assert command_of(row["rejected"]) == "bd list --wisp cr-7"
    assert [turn["role"] for turn in row["prompt"]] == ["user", "assistant", "tool"]
    assert row["prompt"][-1]["content"] == FLAG
    assert row["lesson_key"] == "call bd list: Error: unknown flag: --wisp"
    spec = json.loads(row["verifier_spec"])["recovery"]
    assert spec["worked"] == {"name": "bash", "arguments": {"command": "bd list --parent cr-7"}}
    assert spec["failed"]["arguments"] == {"command": "bd list --wisp cr-7"}


def test_the_context_describes_the_mistake_before_the_answer_and_does_not_quote_the_call() -> None:
    (row,) = rows(ASK, *FAILED, *WORKED)
    context = row["privileged_context"]
    assert "bd list --wisp cr-7" not in context
    assert context.index("failed because of how it was made") < context.index(
        "Resolved by: bash bd list --parent cr-7"
    )


@pytest.mark.parametrize(
    ("between", "worked"),
    [
        ([], bash("bd list --wisp cr-7", "cr-7 open", call_id="c9")),
        ([], bash("bd  list   --wisp 'cr-7' 2>&1", "cr-7 open", call_id="c9")),
        ([], bash("bd list --wisp cr-7 2>/dev/null || true", "", call_id="c9")),
        ([], bash("bd list --help", "Usage", call_id="c9")),
        ([], bash("bd close cr-7", "closed", call_id="c9")),
        ([], bash("bd list --parent cr-7", "Error: no such issue", error=True, call_id="c9")),
        (bash("bd init", "done", call_id="c5"), WORKED),
        ([user("Look into the parent issue instead")], WORKED),
        ([entry for n in range(7) for entry in bash(f"cat {n}.md", "text", call_id=f"l{n}")], WORKED),
    ],
    ids="unchanged requoted silenced help other_command failed_again state_changed user_spoke too_far".split(),
)
def test_other_calls_are_no_recoveries(between: list[Entry], worked: list[Entry]) -> None:
    assert not [row for row in rows(ASK, *FAILED, *between, *worked) if row["kind"] == "call"]


def test_only_the_nearest_failure_is_recovered_from() -> None:
    second = bash("bd list --child cr-7", FLAG.replace("wisp", "child"), error=True, call_id="c2")
    (row,) = rows(ASK, *FAILED, *second, *WORKED)
    assert command_of(row["rejected"]) == "bd list --child cr-7"


def test_looks_are_shown_only_if_the_answer_needs_them() -> None:
    look = bash("cat docs/flags.md", "issues are at tools/tracker-2.json", call_id="c5")
    (row,) = rows(ASK, *FAILED, *look, *WORKED)
    assert row["prompt"][-1]["content"] == FLAG
    with_path = bash("bd list --parent cr-7 --file tools/tracker-2.json", "open", call_id="c9")
    (row,) = rows(ASK, *FAILED, *look, *with_path)
    assert row["prompt"][-1]["content"] == "issues are at tools/tracker-2.json"
    (row,) = rows(ASK, *FAILED, *with_path)
    assert (row["problem"], row["chosen"]) == ("not_knowable", None)


def test_a_failed_check_is_recovered_from_by_the_edit_that_mattered() -> None:
    check = "FAIL tests/test_add.py\nE   assert add(1, 1) == 2\nsrc/add.py:2: AssertionError\n1 failed"
    entries = [
        *bash("pytest tests", check, error=True, call_id="c1"),
        *bash("cat src/add.py", "def add(a, b):\n    return a - b", call_id="c2"),
        *edit("README.md", "adds", "sums", call_id="e1"),
        *edit("src/add.py", "    return a - b", "    return a + b", call_id="e2"),
        *bash("pytest tests -q", "1 passed", call_id="c4"),
    ]
    shown = user("The command adds wrongly; README.md says that it adds, so repair it please")
    (row,) = rows(shown, *entries)
    assert (row["kind"], row["problem"]) == ("fix", None)
    assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"]["path"] == "src/add.py"
    assert command_of(row["rejected"]) == "pytest tests"
    assert "-    return a - b\n+    return a + b" in row["privileged_context"]
    assert not rows(shown, *entries[:-2], *bash("pytest tests", check, error=True, call_id="c4"))


def test_what_the_user_overruled_is_replaced() -> None:
    entries = [
        user("Give the code blocks of the dark theme the accent colour in theme.json"),
        *edit("theme.json", '"code": "cyan",\n"block": ""', '"code": "accent",\n"block": "accent"', call_id="e1"),
        assistant("Now both use the accent colour."),
        user("No, that is wrong, the block should stay as it was, revert that"),
        *edit("theme.json", '"block": "accent"', '"block": ""', call_id="e2"),
    ]
    (row,) = rows(*entries)
    assert (row["kind"], row["prompt"][-1]["role"]) == ("correction", "user")
    assert row["rejected"][0]["tool_calls"][0]["id"] == "e1"
    assert row["chosen"][0]["tool_calls"][0]["id"] == "e2"


def test_before_the_failure_all_words_must_be_known() -> None:
    (row,) = rows(ASK, *FAILED, *WORKED, at="before")
    assert row["problem"] == "not_knowable"
    (row,) = rows(user("Please list the issues of bd with --parent cr-7"), *FAILED, *WORKED, at="before")
    assert (row["problem"], row["prompt"][-1]["role"]) == (None, "user")
    forced = bash("bd list --parent cr-7 --force", "open", call_id="c9")
    failed = bash("bd list --force --wisp cr-7", FLAG, error=True, call_id="c1")
    (row,) = rows(user("Please list the issues of bd with --parent cr-7 --force"), *failed, *forced, at="before")
    assert row["problem"] == "risky_before"


def test_the_prompt_fits_its_budget_and_keeps_the_request_and_the_failure() -> None:
    work = [entry for n in range(20) for entry in bash(f"cat {n}.md", "text " * 400, call_id=f"l{n}")]
    (row,) = rows(ASK, *work, *FAILED, *WORKED, tokens=500)
    assert len(json.dumps(row["prompt"])) < 500 * 4
    assert row["prompt"][0]["content"].startswith("Please list")
    assert row["prompt"][-1]["content"] == FLAG
    (whole,) = rows(ASK, *work, *FAILED, *WORKED, tokens=100_000)
    assert len(whole["prompt"]) == 43


def test_the_command_writes_rows_without_repeats(tmp_path: Path) -> None:
    source = tmp_path / "traces"
    source.mkdir()
    for name in "ab":
        (source / f"{name}.jsonl").write_text(trace({**HEADER, "id": name}, ASK, *FAILED, *WORKED))
    command = ["filter", str(source), "--unit", "recovery", "--out", str(tmp_path / "rows")]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "1 recoveries" in done.output
    assert "repeat 1" in done.output
    (row,) = load_dataset(str(tmp_path / "rows"), split="train", cache_dir=str(tmp_path / "cache"))
    assert (row["session_id"], row["source"], row["worth"]) == ("a", "a.jsonl", 1.0)
    assert "prompt` and `chosen` for SFT" in (tmp_path / "rows" / "README.md").read_text()
    with pytest.raises(OutputError, match="does not use --min-score, --judge; leave them out"):
        FilterOptions(unit="recovery", min_score=2.0, judge="m")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"command": "git  status"}, {"command": "git status 2>&1", "description": "x"}, True),
        ({"command": "git status"}, {"command": "git status -s"}, False),
        ({"path": "./a.py", "oldText": "x ", "newText": "y"}, {"path": "a.py", "oldText": "x", "newText": "y"}, True),
        ({"path": "a.py", "oldText": "x", "newText": "y"}, {"path": "a.py", "oldText": "x", "newText": "z"}, False),
        ({"url": "a", "tabId": 1}, {"tabId": 2, "url": "a"}, True),
    ],
)
def test_actions_are_compared_by_what_they_do(one: Json, other: Json, same: bool) -> None:
    assert (normalise_action("t", one) == normalise_action("t", other)) is same
    assert normalise_action("t", one) != normalise_action("u", one)


def test_silencers_and_risks_are_found() -> None:
    for silenced in ("npm test || true", "npm test 2>/dev/null", "npm test | head -5", "git commit --no-verify"):
        assert adds_silencer(silenced.split(" |")[0].split(" 2>")[0].removesuffix(" --no-verify"), silenced)
    assert not adds_silencer("npm test | head -5", "npm test -- a | head -5")
    assert is_risky("git push --force")
    assert is_risky("rm -f .git/index.lock")
    assert not is_risky("git push origin main")
