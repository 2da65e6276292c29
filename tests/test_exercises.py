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
    bad = guess("src/nothing.py", bash)
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
    found = bash("find /home/ann -name x.py", "/home/ann/lib/x.py", call_id="z")
    plan = assistant("Now I look at x.py.", "toolUse")
    (row,), report = make(tmp_path, trace(HEADER, user(REQUEST), *shown, plan, *bad, *found))
    assert secret not in json.dumps(row)
    assert "/home/ann" not in json.dumps(row)
    assert json.loads(row["verifier_spec"])["goal"]["path"] == "$WORKSPACE/x.py"
    assert report["secrets_redacted"]["github_token"] >= 3


def test_what_cannot_be_an_exercise_is_rejected_with_its_reason(tmp_path: Path) -> None:
    red = bash("npm test", "1 failed, 3 passed\n\nCommand exited with code 1", True, "x")
    stopped = bash("rm -rf build", "HARD BLOCK: rm -rf is not allowed here", True, "y")
    unsaid = guess("a/page.py", bash, plan="Let me see.")
    unresolved = guess("a/form.py", bash)[:3]
    rows, report = make(tmp_path, trace(HEADER, user(REQUEST), *red, *stopped, *unsaid, *guess("a/b.py"), *unresolved))
    assert len(rows) == 1
    assert report["drop_reasons"] == {"not_decidable": 2, "not_in_prompt": 1, "refused": 1}


MISSING = "ENOENT: no such file or directory, access '{}'"
OPENCLAW = '{{"status": "error", "tool": "read", "error": "{}"}}'
FAILED_EDIT = "Could not find the exact text in a.py."
UNREAD = "File has not been read yet. Read it first before writing to it."


def guess(path: str, tool: Any = None, plan: str = "", found: str = "old") -> list[Row]:
    """A plan, a look at a path that does not exist, and a search that finds the file in another folder."""
    name = path.rpartition("/")[2]
    look = tool and tool(f"cat {path}", f"cat: {path}: No such file or directory", True, f"c{path}")
    read = [call("read", f"r{path}", path=path), result("read", MISSING.format(path), True, f"r{path}")]
    search = bash(f"find . -name {name}", f"./{found}/{name}", call_id=f"s{path}")
    return [assistant(plan or f"Now I look at {name}.", "toolUse"), *(look or read), *search]


def edit_twice(
    old: str, *before: Row, plan: str = "Now I set total to number 2.", error: str = FAILED_EDIT
) -> list[Row]:
    """An edit that fails and one of `old` that works."""
    return [
        *before,
        assistant(plan, "toolUse"),
        call("edit", "e1", path="a.py", edits=[{"oldText": f"{old} # x", "newText": "total = number(2)"}]),
        result("edit", error, True, "e1"),
        call("edit", "e2", path="a.py", edits=[{"oldText": old, "newText": "total = number(2)"}]),
        result("edit", "Successfully replaced 1 block(s) in a.py.", call_id="e2"),
    ]


def edit_unread(
    *before: Row, old: str = "def settings_of(path):", plan: str = "Now I change conf.py.", why: str = UNREAD
) -> list[Row]:
    """An edit of a file that the harness wants to be read first, and reading it."""
    return [
        *before,
        assistant(plan, "toolUse"),
        call("edit", "u1", path="conf.py", edits=[{"oldText": old, "newText": "def settings():"}]),
        result("edit", why, True, "u1"),
        call("read", "u2", path="conf.py"),
        result("read", "def settings_of(path):\n    return 1\n", call_id="u2"),
    ]


MODIFIED = "File has been modified since read, either by the user or by a linter. Read it again."
EDITED = [
    call("edit", "v", path="conf.py", edits=[{"oldText": "import os", "newText": "import re"}]),
    result("edit", "Successfully replaced 1 block(s) in conf.py.", call_id="v"),
]
WRITTEN = [
    call("mcp__fs__write_file", "w", path="conf.py", content="x"),
    result("mcp__fs__write_file", "ok", call_id="w"),
]
READ_A = [call("read", "r", path="a.py"), result("read", "total = 1\nother = 3\n", call_id="r")]
LONG_A = [call("read", "r", path="a.py"), result("read", "x\n" * 4000 + "total = 1\n" + "y\n" * 4000, call_id="r")]
READ_CONF = [call("read", "c", path="conf.py"), result("read", "def settings_of(path):\n    return 1\n", call_id="c")]
LISTED = bash("find . -name '*.md'", "./old/plan.md\n./old/read.md", call_id="l")
GUESS = guess("docs/plan.md")
MANY_FILES = "conf.py\n" + "\n".join(f"part{number}.py" for number in range(6))
LONG = "\n\n".join(f"{number}. It should work as before." for number in range(2000))


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
        # Nobody said that this file is next; its path was shown.
        (REQUEST, guess("docs/plan.md", plan="Let me see what else there is."), []),
        (REQUEST, [*bash("ls docs", "plan.md", call_id="l"), *GUESS], []),
        # Only the spelling of the drive is wrong.
        (
            REQUEST,
            [
                *guess("/c/app/docs/plan.md")[:3],
                call("read", "h", path="C:\\app\\docs\\plan.md"),
                result("read", "# Plan", call_id="h"),
            ],
            [],
        ),
        # It was looked whether something is there.
        (REQUEST, guess("docs/plan.md", bash), ["path"]),
        (REQUEST, guess("docs/plan.md || true", bash), []),
        (REQUEST, bash("ls docs/a.md", "ls: docs/a.md: No such file or directory", True, "b"), []),
        # The harness, which no session records, may have named it.
        (REQUEST, guess("memory/MEMORY.md", bash), []),
        # A missing program is found out by calling it.
        (REQUEST, bash("jq . a.json", "bash: line 1: jq: command not found", True, "b"), []),
        # The text to edit is in the prompt, was trimmed from it, was never shown; nobody said what to put in.
        (REQUEST, edit_twice("total = 1", *READ_A), ["change"]),
        (REQUEST, edit_twice("total = 1", *LONG_A), []),
        (REQUEST, edit_twice("total = 1"), []),
        (REQUEST, edit_twice("total = 1", *READ_A, plan="Now I put that right."), []),
        # A change of what the prompt does not show; of what it shows; of a file that nobody named.
        (REQUEST, edit_unread(), ["read"]),
        (REQUEST, edit_unread(*READ_CONF), []),
        (REQUEST, edit_unread(plan="Now I change the other one."), []),
        # An edit whose text was made up, of a file that the prompt does not show; one that shows some of it.
        (REQUEST, edit_unread(why=FAILED_EDIT), ["read"]),
        (
            REQUEST,
            edit_unread(*bash("grep -n def conf.py", "def settings_of(path):", call_id="g"), why=FAILED_EDIT),
            [],
        ),
        # A name among many of a listing, or of a file in another folder.
        (REQUEST, edit_unread(*bash("ls", "conf.py\nother.py", call_id="g"), plan="Go on."), ["read"]),
        (REQUEST, edit_unread(*bash("ls", MANY_FILES, call_id="g"), plan="Go on."), []),
        (REQUEST, edit_unread(*bash("npm test", "in src/conf.py:1", call_id="g"), plan="Go on."), []),
        # A text that is there twice, once as far as the prompt shows.
        (REQUEST, edit_twice("total = 1", *READ_A, error="Found 2 matches of the string to replace"), []),
        # The request names it, or did before it was cut.
        (f"{REQUEST}\n\nconf.py too.", edit_unread(plan="Now I change the other one."), ["read"]),
        (f"{LONG}\n\nconf.py too.\n\n{LONG}", edit_unread(plan="Now I change the other one."), []),
        # Somebody else changed the file after the agent had, or had read it for another request, or whenever.
        (REQUEST, edit_unread(*EDITED, why=MODIFIED), []),
        (REQUEST, edit_unread(*READ_CONF, user(REQUEST), why=MODIFIED), []),
        (REQUEST, edit_unread(*READ_CONF, *bash("npm test", "ok", call_id="n"), user(REQUEST), why=MODIFIED), []),
        (REQUEST, edit_unread(why=MODIFIED), []),
        # The agent changed it itself, by a command or a tool that leaves it unread.
        (REQUEST, edit_unread(*EDITED, *bash("sed -i s/1/2/ conf.py", "", call_id="i"), why=MODIFIED), ["read"]),
        (REQUEST, edit_unread(*WRITTEN, user(REQUEST), why=MODIFIED), ["read"]),
        # The plan orders the path that is missing; a tree showed that it is there.
        (REQUEST, guess("docs/plan.md", plan="Now I look at docs/plan.md."), []),
        (REQUEST, [*bash("cat a.txt", "docs\n  plan.md", call_id="a"), *GUESS], []),
    ],
)
def test_a_step_is_an_exercise_where_another_call_was_right(
    tmp_path: Path, ask: str, events: list[Row], kinds: list[str]
) -> None:
    # Never empty: the last step always is a row.
    is_folder = result("read", "EISDIR: illegal operation on a directory, read", True, "z")
    last = [assistant("Next is src/.", "toolUse"), call("read", "z", path="src"), is_folder]
    rows, _ = make(tmp_path, trace(HEADER, user(ask), *events, *last, *bash("ls src", "app.py", call_id="y")))
    assert [json.loads(row["verifier_spec"])["goal"]["kind"] for row in rows] == [*kinds, "folder"]


def test_calls_of_one_turn_are_one_exercise_that_has_seen_none_of_their_results(tmp_path: Path) -> None:
    names = ["docs/one.md", "docs/two.md"]
    calls = [{"type": "toolCall", "id": name, "name": "read", "arguments": {"path": name}} for name in names]
    turn = assistant("I read one.md and two.md.", "toolUse")
    turn["message"]["content"] += calls
    results = [result("read", MISSING.format(name), True, name) for name in names]
    found = bash("find . -name '*.md'", "./old/one.md\n./old/two.md", call_id="f")
    shown = bash("cat old/one.md old/two.md", "# One", call_id="s")
    (row,), _ = make(tmp_path, trace(HEADER, user(REQUEST), turn, *results, *found, *shown))
    assert json.loads(row["verifier_spec"])["failed_call"]["args"] == {"path": "docs/one.md"}
    assert "ENOENT" not in json.dumps(row["prompt"])


def test_a_call_that_failed_resolves_nothing_and_shows_no_file(tmp_path: Path) -> None:
    again = [call("read", "h", path="lib/plan.md"), result("read", OPENCLAW.format("ENOENT"), call_id="h")]
    found = [call("read", "i", path="old/plan.md"), result("read", "# Plan", call_id="i")]
    rows, _ = make(tmp_path, trace(HEADER, user(REQUEST), *GUESS[:3], *again, *found))
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


def test_a_path_that_the_prompt_shows_is_to_be_used_and_another_one_to_be_searched(tmp_path: Path) -> None:
    used = [call("read", "o", path="old/plan.md"), result("read", "# Plan", call_id="o")]
    for name, before, shown in (("a", LISTED, True), ("b", [], False)):
        (tmp_path / name).mkdir()
        (row,), _ = make(tmp_path / name, trace(HEADER, user(REQUEST), *before, *GUESS[:3], *used))
        spec = json.loads(row["verifier_spec"])
        assert (spec["goal"]["shown"], spec["resolved_call"]["args"]) == (shown, {"path": "old/plan.md"})


def test_a_session_has_two_rows_of_one_kind(tmp_path: Path) -> None:
    guesses = [event for name in ("one", "two", "three") for event in guess(f"docs/{name}.md")]
    rows, report = make(tmp_path, trace(HEADER, user(REQUEST), *guesses))
    assert len(rows) == 2
    assert report["drop_reasons"] == {"repeated": 1}


def test_other_files_serve_a_step_where_the_turn_uses_them_or_the_prompt_names_them(tmp_path: Path) -> None:
    turn = assistant("I read plan.md, and what else is there.", "toolUse")
    calls = [("p", "docs/plan.md"), ("q", "src/same.py")]
    turn["message"]["content"] += [
        {"type": "toolCall", "id": name, "name": "read", "arguments": {"path": path}} for name, path in calls
    ]
    answers = [result("read", MISSING.format("docs/plan.md"), True, "p"), result("read", "x = 1", call_id="q")]
    later = [
        event
        for path in ("old/plan.md", "src/named.py", "src/other.py")
        for event in (call("read", path, path=path), result("read", "x = 2", call_id=path))
    ]
    ask = "Bring src/named.py into line with what the others here say."
    (row,), _ = make(tmp_path, trace(HEADER, user(ask), turn, *answers, assistant("It is not there."), *later))
    assert json.loads(row["verifier_spec"])["targets"] == ["src/same.py", "old/plan.md", "src/named.py"]


def test_paths_with_blanks_and_from_the_root_are_whole(tmp_path: Path) -> None:
    found = ["/opt/My Files/old/plan.md", "/opt/new/plan.md"]
    search = bash("find / -name plan.md", "\n".join(found), call_id="f")
    (row,), _ = make(tmp_path, trace(HEADER, user(REQUEST), *GUESS[:3], *search))
    spec = json.loads(row["verifier_spec"])
    assert spec["targets"] == found
    assert spec["places"] == {"~": "$HOME", "$HOME": "$HOME", "$WORKSPACE/..": "$HOME"}


def test_a_tool_of_the_harness_is_offered_though_no_call_of_it_worked(tmp_path: Path) -> None:
    (row,), _ = make(tmp_path, trace(HEADER, user(REQUEST), *GUESS))
    assert [one for one in json.loads(row["verifier_spec"])["tools"] if one == "read"] == ["read"]


def test_a_tool_that_is_missing_is_not_offered(tmp_path: Path) -> None:
    gone = [call("ls", "g", path="docs"), result("ls", "Tool ls not found", True, "g")]
    (row,), _ = make(tmp_path, trace(HEADER, user(REQUEST), *gone, *GUESS))
    assert "ls" not in json.loads(row["verifier_spec"])["tools"]


NOWHERE = bash("find . -name '*.md'", "./README.md", call_id="n")
THERE = [call("ls", "t", path="docs/plan.md"), result("ls", "part.md", call_id="t")]
CANCELLED = [call("read", "k", path="lib/plan.md"), result("read", "Sibling tool call errored", call_id="k")]
MADE = bash("echo x > old/plan.md && cat old/plan.md", "x", call_id="m")
INDEX = [call("read", "j", path="docs/plan/index.md"), result("read", "# Plan", call_id="j")]


@pytest.mark.parametrize(
    ("events", "worked"),
    [
        # What a command makes was not there.
        (MADE, None),
        # A search that finds nothing of the name, a path that is there after all, a call that was cancelled.
        (NOWHERE, None),
        ([*THERE, *GUESS[3:]], None),
        (CANCELLED, None),
        ([*CANCELLED, *GUESS[3:]], {"command": "find . -name plan.md"}),
        (INDEX, {"path": "docs/plan/index.md"}),
    ],
)
def test_what_is_missing_must_turn_up_somewhere(tmp_path: Path, events: list[Row], worked: Row | None) -> None:
    last = guess("docs/last.md", found="new")
    rows, report = make(tmp_path, trace(HEADER, user(REQUEST), *GUESS[:3], *events, user(REQUEST), *last))
    specs = [json.loads(row["verifier_spec"]) for row in rows]
    calls = [spec["resolved_call"]["args"] for spec in specs if spec["goal"]["path"].endswith("plan.md")]
    assert calls == ([worked] if worked else [])
    assert report.get("drop_reasons", {}) == ({} if worked else {"not_decidable": 1})
