"""Test finding duplicates (forks, growing snapshots, repeated prompts), the split and the history."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.text import split_shingles
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.parse import read_trace
from processors.evidence import gather_history
from processors.split import name_repository, split
from tests.traces import HEADER, Entry, assistant, bash, trace, user

SAID = [
    "I read the grammar first, then the lexer, then the tests that fail today",
    "The lexer drops the last line because the buffer is not flushed at the end",
    "I add the flush and run the tests of the lexer again to see what is left",
    "Now the parser test fails, since it expected the missing line to be missing",
]
FAILED = [
    *bash("npm test", "Tests  1 failed\n\nCommand exited with code 1", error=True),
    *bash("npm ci", "added 12 packages"),
    *bash("npm test", "Tests  1 passed"),
]
BROKEN = [
    *bash("npx tsc", "a.ts(1,2): error TS2322: no\n\nCommand exited with code 2", error=True),
    *bash("sed -i s/no/yes/ a.ts", ""),
    *bash("npx tsc", ""),
]


def session(request: str, answers: list[str], *more: Entry, cwd: str = "/home/ann/app") -> str:
    words = [assistant(text) for text in answers]
    return trace({**HEADER, "cwd": cwd}, user(request), *words, *FAILED, *more)


def filtered(folder: Path, sessions: dict[str, str], **options: object) -> tuple[list[str], list[str]]:
    """Return the sources of the rows, and `source reason` of what was dropped."""
    folder.mkdir()
    for name, text in sessions.items():
        (folder / f"{name}.jsonl").write_text(text)
    out = folder.parent / f"{folder.name}_rows"
    run_filter(str(folder), out, FilterOptions(min_worth=0, **options))  # type: ignore[arg-type]
    tables = {
        kind: pa.concat_tables([pq.read_table(f) for f in sorted((out / kind).glob("*.parquet"))])
        for kind in ("data", "rejects")
        if list((out / kind).glob("*.parquet"))
    }
    rejects = tables["rejects"].to_pylist() if "rejects" in tables else []
    dropped = [f"{row['source'].removesuffix('.jsonl')} {row['drop_reason']}" for row in rejects]
    kept = [name.removesuffix(".jsonl") for name in tables["data"].column("source").to_pylist()]
    return kept, dropped


def test_the_last_snapshot_of_a_growing_session_is_kept(tmp_path: Path) -> None:
    request = "Fix the lexer, it drops the last line"
    sessions = {f"snapshot{n}": session(request, SAID[:n]) for n in (1, 2, 3)}
    sessions["whole"] = session(request, SAID, *BROKEN)
    kept, dropped = filtered(tmp_path / "grown", sessions)
    assert kept == ["whole"]
    assert dropped == [f"snapshot{n} duplicate_session" for n in (1, 2, 3)]


def test_a_fork_is_a_duplicate_and_a_new_request_is_not(tmp_path: Path) -> None:
    other = ["This is about the printer and nothing else, it prints every name in capitals"]
    sessions = {
        "fork": session("Fix the lexer, it drops the last line", [*SAID[:3], *other], *BROKEN),
        "origin": session("Fix the lexer, it drops the last line", SAID),
        "other": session("Print all names in lower case, please", other),
    }
    kept, dropped = filtered(tmp_path / "forks", sessions)
    assert kept == ["fork", "other"]
    assert dropped == ["origin duplicate_session"]
    assert filtered(tmp_path / "all", sessions, dedupe=False) == (["fork", "origin", "other"], [])


TEMPLATE = (
    "You are a worker of the build farm. Read CONTRIBUTING.md first, never push to main, run the "
    "whole suite before you open a pull request, keep the changelog in step, and leave a note in "
    "the ticket when you are done or when you are stuck for longer than an hour. Take {} now."
)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("ticket #101", "ticket #102", False),
        ("specs/lexer.md", "specs/parser.md", False),
        ("the slow login page", "an export into spreadsheets", False),
        ("ticket #101 (2026-01-02 10:15)", "ticket #101 (2026-01-03 11:20)", True),
        ("ticket #101 at once", "ticket #101", True),
    ],
)
def test_other_tickets_on_one_template_are_no_duplicates(tmp_path: Path, one: str, other: str, is_same: bool) -> None:
    sessions = {
        "one": session(TEMPLATE.format(one), SAID[:2], *BROKEN),
        "other": session(TEMPLATE.format(other), SAID[2:]),
    }
    kept, dropped = filtered(tmp_path / "tickets", sessions)
    assert kept == (["one"] if is_same else ["one", "other"])
    assert dropped == (["other near_duplicate_prompt"] if is_same else [])


def test_nearly_the_same_prompt_keeps_the_row_with_more_evidence(tmp_path: Path) -> None:
    request = (
        "Go through all files of the lexer and of the parser and add a test for each of the "
        "functions that has none yet, then run them all and write down {} fail"
    )
    sessions = {
        "first": session(request.format("which ones"), SAID[:2]),
        "second": session(request.format("which"), SAID[2:], *BROKEN),
    }
    kept, dropped = filtered(tmp_path / "near", sessions)
    assert (kept, dropped) == (["second"], ["first near_duplicate_prompt"])
    report = json.loads((tmp_path / "near_rows" / "report.json").read_text())
    assert report["stages"][-1] == {
        "stage": "dedupe",
        "rows_in": 2,
        "rows_out": 1,
        "dropped": {"near_duplicate_prompt": 1},
    }


def test_a_repository_is_on_one_side_of_the_split(tmp_path: Path) -> None:
    sessions = {
        f"{repo}-{n}": session(f"Fix number {n} of {repo}, it fails again", [], cwd=f"/w/{repo}")
        for repo in ("lexer", "parser", "printer", "linter", "loader", "linker")
        for n in range(3)
    }
    filtered(tmp_path / "many", sessions, test_fraction=0.5, dedupe=False)
    sides: dict[str, set[str]] = {}
    for file in (tmp_path / "many_rows" / "data").glob("*.parquet"):
        for row in pq.read_table(file).to_pylist():
            sides.setdefault(row["source"].partition("-")[0], set()).add(row["split"])
            assert file.name.startswith(row["split"])
    assert sorted(sides) == ["lexer", "linker", "linter", "loader", "parser", "printer"]
    assert all(len(side) == 1 for side in sides.values())
    assert {side for (side,) in map(tuple, sides.values())} == {"train", "test"}


@pytest.mark.parametrize(
    ("cwd", "name"),
    [
        ("/w/app", "app"),
        ("/w/app/packages/ai", "app"),
        ("/w/app/.claude/worktrees/f", "app"),
        ("/home/bob/work/App/.", "app"),
        (r"C:\Users\ann\src\app", "app"),
        ("c:/users/Ann/app", "app"),
        ("/workspace", "workspace"),
        ("", "x"),
    ],
)
def test_clones_folders_and_worktrees_are_one_repository(cwd: str, name: str) -> None:
    assert name_repository({"cwd": cwd, "source": "x/y.jsonl"}) == name


def test_sessions_of_one_repository_can_be_split_by_session() -> None:
    sessions = [{"cwd": "/home/ann/app", "source": "x", "session_id": f"s{n}"} for n in range(40)]
    assert len({split(row, 0.5)["split"] for row in sessions}) == 1
    sides = [split(row, 0.5, "session")["split"] for row in sessions]
    assert 10 < sides.count("test") < 30
    again = [split({**row, "cwd": "/srv/other"}, 0.5, "session")["split"] for row in sessions]
    assert again == sides


@given(st.text(max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_test_share_only_adds(cwd: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    row = {"cwd": cwd, "source": "x/y.jsonl"}
    assert not (split(row, small)["split"] == "test" and split(row, large)["split"] == "train")


@pytest.mark.parametrize(
    ("text", "groups"), [("", [""]), ("Fix IT", ["fix it"]), ("修复解析器", ["修 复 解", "复 解 析", "解 析 器"])]
)
def test_shingles(text: str, groups: list[str]) -> None:
    assert split_shingles(text) == groups


def test_history_alternates_and_fits() -> None:
    messages = [
        ("assistant", "hello"),
        ("user", "one"),
        ("assistant", "a"),
        ("assistant", "b"),
        ("user", "two"),
        ("user", "more"),
        ("assistant", "c"),
        ("user", "unanswered"),
    ]
    events = [Event(i, kind, text) for i, (kind, text) in enumerate(messages)]  # type: ignore[arg-type]
    assert [(turn["role"], turn["content"]) for turn in gather_history(events, len(events), 100)] == [
        ("user", "one"),
        ("assistant", "a\n\nb"),
        ("user", "two\n\nmore"),
        ("assistant", "c"),
    ]
    assert [turn["content"] for turn in gather_history(events, len(events), 12)] == ["two\n\nmore", "c"]
    assert gather_history(events, len(events), 0) == []


LONG = assistant("step " * 300)
TASK = "Write a parser for the old log files"
NOTICES = [
    "A new session was started via /new or /reset. Greet the user and ask what they want to do.",
    "Pre-compaction memory flush. Store durable memories now.",
    "[Wed 2026-06-17 13:06 UTC] <<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nA task of a subagent has ended.",
]


@pytest.mark.parametrize(
    ("said", "contents"),
    [
        # Many answers in a row leave room for the request before them.
        ([user(TASK), *[LONG] * 8], [TASK, ""]),
        # Work without a word is shown by its last call.
        (
            [user("Name it"), assistant("a"), user(TASK), *bash("ls", "a.py"), *bash("cat a.py", "1", call_id="c2")],
            ["Name it", "a", TASK, "[bash cat a.py]"],
        ),
        # A notice of the harness takes no room.
        (
            [user(NOTICES[0]), assistant("NO_REPLY"), user(TASK), assistant("It parses.")]
            + [entry for notice in NOTICES[1:] for entry in (user(notice), assistant("NO_REPLY"))],
            [TASK, ""],
        ),
    ],
)
def test_the_history_is_what_the_request_needs(said: list[Entry], contents: list[str]) -> None:
    events = read_trace(trace(HEADER, *said, user("and now?"))).events
    turns = gather_history(events, len(events) - 1, 4000)
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(contents) // 2)
    assert [turn["content"] if content else "" for turn, content in zip(turns, contents, strict=True)] == contents


def test_earlier_turns_stand_in_front_of_an_episodes_request(tmp_path: Path) -> None:
    later = [assistant("The lexer is fixed now"), user("Now make the printer print capitals"), *BROKEN]
    (tmp_path / "a.jsonl").write_text(session("Fix the lexer, it drops lines", SAID[:1], *later))
    run_filter(str(tmp_path / "a.jsonl"), tmp_path / "rows", FilterOptions(history_chars=400, min_worth=0))
    first, second = pq.read_table(tmp_path / "rows" / "data").to_pylist()
    assert [turn["role"] for turn in first["prompt"]] == ["user"]
    assert [turn["role"] for turn in second["prompt"]] == ["user", "assistant", "user"]
    assert second["prompt"][1]["content"].endswith("The lexer is fixed now")
    assert second["prompt"][2]["content"] == "Now make the printer print capitals"
