"""Test what a session knows of its files by predicting its edits."""

import json
from typing import Any

import pytest

from pimono_sdpo.replay.commands import find_changes, find_shown_lines
from pimono_sdpo.traces.parse import read_trace
from tests.predictions import predictions
from tests.traces import HEADER, Entry, bash, call, result, trace, user

TEXT = "import a\n\nlet x = 1\nlet y = x\nlet x2 = 1\n"
LONG = "let y = x\nlet x2 = 1"
MORE = "\n\n[90 more lines in file. Use offset=6 to continue]"


def read(path: str, text: str, **given: Any) -> list[Entry]:
    return [call("read", path=path, **given), result("read", text)]


def write(path: str, text: str) -> list[Entry]:
    return [call("write", path=path, content=text), result("write", f"wrote {path}")]


def edit(path: str, old: str, new: str = "new", failed: bool = False) -> list[Entry]:
    output = "Could not find the exact text" if failed else f"Successfully replaced text in {path}"
    return [call("edit", path=path, oldText=old, newText=new), result("edit", output, error=failed)]


def expected(*steps: list[Entry], header: Entry = HEADER) -> list[str | None]:
    entries: list[Entry] = [header, user("Fix the parser")]
    for number, step in enumerate(steps):
        entries += [json.loads(json.dumps(entry).replace('"c1"', f'"c{number}"')) for entry in step]
    read_back = read_trace(trace(*entries))
    return [p.expected for p in predictions(read_back.events, read_back.cwd)]


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        ([read("a.ts", TEXT), edit("a.ts", "let y = x")], "ok"),
        ([read("/home/ann/app/a.ts", TEXT), edit("a.ts", "let y = x")], "ok"),
        ([read("a.ts", TEXT), edit("a.ts", "let z")], "not_found"),
        ([read("a.ts", TEXT), edit("a.ts", " = 1")], "multiple"),
        ([read("a.ts", TEXT), edit("a.ts", "let y = x", "let y = x")], "no_change"),
        ([read("a.ts", TEXT.replace("\n", "\r\n")), edit("a.ts", "let y = x\nlet")], "ok"),
        ([write("a.ts", TEXT), edit("a.ts", "let z")], "not_found"),
        ([read("a.ts", TEXT), edit("a.ts", "let y = x", "let q"), edit("a.ts", "let y = x")], "not_found"),
        ([read("a.ts", TEXT), edit("a.ts", "let y = x", "let q"), edit("a.ts", "let q")], "ok"),
        ([bash("cat a.ts", TEXT), edit("a.ts", "let z")], "not_found"),
        ([bash("cd src && cat a.ts", TEXT), edit("src/a.ts", "let z")], "not_found"),
        # Only parts of the file were seen.
        ([read("a.ts", TEXT + MORE), edit("a.ts", "let z")], None),
        ([read("a.ts", TEXT + MORE), edit("a.ts", LONG)], "ok"),
        # A short text may also occur elsewhere.
        ([read("a.ts", TEXT + MORE), edit("a.ts", "let y = x")], None),
        ([read("a.ts", TEXT, offset=40), edit("a.ts", "let z")], None),
        ([read("a.ts", TEXT, limit=6), edit("a.ts", "let z")], None),
        ([bash("sed -n '1,5p' a.ts", TEXT), edit("a.ts", "let z")], None),
        ([edit("a.ts", "let z")], None),
        ([edit("a.ts", "let z", LONG), edit("a.ts", LONG)], "ok"),
        # Somebody else may have changed it.
        ([read("a.ts", TEXT), bash("sed -i s/y/z/ a.ts", ""), edit("a.ts", "let y = x")], None),
        ([read("a.ts", TEXT), bash("sed -i s/y/z/ b.ts", ""), edit("a.ts", "let y = x")], "ok"),
        ([read("a.ts", TEXT), bash("git checkout .", ""), edit("a.ts", "let y = x")], None),
        ([read("a.ts", TEXT), bash("./run.sh", ""), edit("a.ts", "let y = x")], None),
        ([read("a.ts", TEXT), bash("npm test && git diff", "ok"), edit("a.ts", "let z")], "not_found"),
        ([read("a.ts", TEXT), bash("./run.sh", ""), read("a.ts", TEXT), edit("a.ts", "let z")], "not_found"),
        # A formatter may have changed it.
        ([write("a.ts", TEXT), bash("npm run check", "Fixed 1 file."), edit("a.ts", "let y = x")], None),
        ([read("a.ts", TEXT), edit("a.ts", "let x2 = 1", "let w"), bash("npm run check", "Fixed 1 file."), edit("a.ts", "import a\n\nlet x = 1")], None),
        ([read("a.ts", TEXT), edit("a.ts", "let x2 = 1", "let w"), bash("npm run check", "Fixed 1 file."), edit("a.ts", "let w")], None),
    ],
)  # fmt: skip
def test_an_edit_is_predicted_or_undecided(steps: list[list[Entry]], last: str | None) -> None:
    assert expected(*steps)[-1] == last


@pytest.mark.parametrize(
    ("command", "output", "shown"),
    [
        ("grep -n 'let y' a.ts", "4:let y = x", {"a.ts": "let y = x"}),
        ("nl -ba a.ts | sed -n '4,5p' && ls", "     4\tlet y = x\n     5\tlet x2 = 1", {"a.ts": LONG}),
        (
            "rg -n -A1 'let y' src",
            "src/b.ts-3-let q\nsrc/a.ts:4:let y = x\nsrc/a.ts-5-let x2 = 1",
            {"src/a.ts": LONG, "src/b.ts": "let q"},
        ),
        # The file has lines between them that were not shown.
        ("grep -n 'let' src/a.ts", "4:let y = x\n9:let x2 = 1", {"src/a.ts": "let y = x\n\ufffd\nlet x2 = 1"}),
    ],
)
def test_lines_that_a_command_has_shown(command: str, output: str, shown: dict[str, str]) -> None:
    assert find_shown_lines(command, output) == shown


def test_the_edits_of_one_call_succeed_or_fail_together() -> None:
    good, bad = {"oldText": "let y", "newText": "q"}, {"oldText": "gone", "newText": "q"}
    calls = [
        [call("edit", path="a.ts", edits=edits), result("edit", "no", error=True)]
        for edits in ([good, bad], json.dumps([good]), [], "no json")
    ]
    # Some versions refuse edits that are given as JSON.
    assert expected(read("a.ts", TEXT), *calls) == ["not_found", None, "invalid", "invalid"]


@pytest.mark.parametrize(
    "text",
    [
        "🔴 BLOCKED — Edit without read\n\nRead the file first.",
        "HARD BLOCK: use the other tool",
        "Skipped due to queued user message.",
        "Sibling tool call errored",
        "EACCES: permission denied, open '/w/a.ts'",
        "PreToolUse hook blocked this",
        "PreToolUse:Edit hook error: [python3 check.py]: this is a workflow",
        "User cancelled the edit",
        "Claude requested permissions to write to /w/a.ts, but you haven't granted it yet.",
        "[Fact-Forcing Gate]\n\nBefore editing a.ts, present these facts:",
        '{\n  "status": "error",\n  "tool": "edit",\n  "error": "EACCES: permission denied"\n}',
    ],
)
def test_calls_that_an_extension_or_a_queue_stopped_are_not_predicted(text: str) -> None:
    stopped = [call("edit", path="a.ts", oldText="let y = x", newText="q"), result("edit", text, error=True)]
    again = edit("a.ts", "let y = x")
    assert expected(read("a.ts", TEXT), stopped, again) == ["ok"]


def test_a_call_without_what_it_needs_is_refused_before_the_file_is_read() -> None:
    call_without = [call("edit", path="new.ts", oldText="x"), result("edit", "no", error=True)]
    assert expected(call_without) == ["invalid"]
    mixed = [call("edit", path="a.ts", old_string="let y = x", newText="q"), result("edit", "ok")]
    assert expected(read("a.ts", TEXT), mixed) == ["ok"]
    empty = [call("edit", path="/w/.openclaw/a.ts", oldText="let x = 1", newText=""), result("edit", "no", error=True)]  # fmt: skip
    # Some versions of OpenClaw refuse an empty text, others accept it.
    assert expected(read("/w/.openclaw/a.ts", TEXT), empty) == [None]
    other = [call("edit", path="new.ts", find="x", replace="y"), result("edit", "no", error=True)]
    assert expected(other) == ["invalid"]
    # Only some versions of OpenClaw accept these names.
    named = [call("edit", path="a.ts", old_text="let y = x", new_text="q"), result("edit", "ok")]
    assert expected(read("a.ts", TEXT), named) == [None]
    of_lines = [call("edit", path="new.ts", edits=[{"op": "delete", "line": 3}]), result("edit", "ok")]  # fmt: skip
    assert expected(of_lines) == [None]


def patch(text: str, failed: bool = False) -> list[Entry]:
    output = "Failed to find expected lines" if failed else "Success. Updated the following files"
    given = f"*** Begin Patch\n{text}\n*** End Patch"
    return [call("edit", input=given), result("edit", output, error=failed)]


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        ([patch("*** Update File: a.ts\n@@\n let x = 1\n-let y = x\n+let y = 2")], "ok"),
        ([patch("*** Update File: a.ts\n@@\n-let z\n+let y")], "not_found"),
        ([bash("./run.sh", ""), patch("*** Update File: a.ts\n@@\n-let y = x\n@@\n-import a\n+q", failed=True)], None),
        # Each hunk is searched for after the one before it.
        ([patch("*** Update File: a.ts\n@@\n-let y = x\n@@\n-import a\n+q")], "not_found"),
        ([patch("*** Update File: a.ts\n@@\n-let y = x\n+let q = x"), patch("*** Update File: a.ts\n@@\n-let y = x")], "not_found"),
        ([patch("*** Update File: a.ts\n@@\n-let y = x\n+let q = x"), patch("*** Update File: a.ts\n@@\n-  let q = x  ")], "ok"),
        ([patch("*** Add File: b.ts\n+one\n+two"), patch("*** Update File: b.ts\n@@\n one\n-three")], "not_found"),
        ([patch("*** Update File: unseen.ts\n@@\n-let z\n+let y")], None),
        # The line after @@ comes first; hunks that only add lines go to the end.
        ([patch("*** Update File: a.ts\n@@ let y = x\n-import a\n+q")], "not_found"),
        ([patch("*** Update File: a.ts\n@@ import a\n-let x = 1\n+q")], "ok"),
        ([patch("*** Update File: a.ts\n@@\n+end"), patch("*** Update File: a.ts\n@@\n let x2 = 1\n-end")], "ok"),
        ([patch("*** Update File: a.ts\n*** Move to: b.ts\n@@\n-let y = x\n+q"), patch("*** Update File: b.ts\n@@\n-q")], "ok"),
        ([bash("apply_patch <<'E'\n*** Begin Patch\n*** Update File: a.ts\n@@\n-let y = x\n+q\n*** End Patch\nE", "Success"), patch("*** Update File: a.ts\n@@\n-q")], "ok"),
        # No harness can read these.
        ([patch("*** Update File: a.ts\nlet y = x\n+q", failed=True)], "invalid"),
        ([patch("*** Update File: a.ts", failed=True)], "invalid"),
        ([patch("*** Update File: a.ts\n@@\n-let z\n+q\n*** Update File: unseen.ts\n@@\n-x", failed=True)], "not_found"),
    ],
)  # fmt: skip
def test_patches_are_judged_by_their_lines(steps: list[list[Entry]], last: str | None) -> None:
    assert expected(read("a.ts", TEXT), *steps)[-1] == last


@pytest.mark.parametrize(
    ("command", "anything", "names"),
    [
        ("rg foo | head", False, set()),
        ("npm test > out.log 2>&1", False, {"out.log"}),
        ("mv a.ts b.ts", False, {"a.ts", "b.ts"}),
        ("git add -A && git status", False, set()),
        ("git stash", True, set()),
        ("cat > a.ts <<'EOF'\nx\nEOF", False, {"a.ts"}),
        ("python3 - <<'EOF'\nopen('a','w')\nEOF", False, {"a"}),
        ("node gen.js", True, set()),
        ("node -e 'console.log(1)'", False, set()),
        ("npx prettier --write .", True, set()),
        ("cargo build --release", False, set()),
        ("cargo fmt", True, set()),
        ("npm run api:generate", True, set()),
        ("rspec spec/models --format documentation", False, set()),
        ("ruff format --check src", False, set()),
        ("gradlew.bat clean 2>nul", False, set()),
    ],
)
def test_files_that_a_command_may_change(command: str, anything: bool, names: set[str]) -> None:
    changes = find_changes(command, "")
    assert (changes.anything, changes.names) == (anything, names)


def test_the_user_may_have_changed_what_codex_patches() -> None:
    change = patch("*** Update File: a.ts\n@@\n-let y = x\n+let q = x")
    again = read("a.ts", TEXT.replace("x2", "x3"))
    assert expected(read("a.ts", TEXT), [user("Go on")], change) == [None]
    assert expected(read("a.ts", TEXT), [user("Go on")], again, change) == ["ok"]


SOURCE = "import a\n\nlet total = count(items)\nlet y = x\n"


def test_a_command_that_may_have_changed_a_file_leaves_it_undecided_until_it_is_seen_again() -> None:
    begin, one = read("a.ts", SOURCE), edit("a.ts", "let total = count(items)", "let sum = 0")
    assert expected(begin, bash("python -m pytest -q", "1 passed"), one) == ["ok"]
    assert expected(begin, bash("./run.sh", ""), one) == [None]
    # If a long part is shown again unchanged, or can be edited, the whole file is unchanged.
    again, long = edit("a.ts", "let y = x", "let y = z"), "// and so on\n" * 9
    most = edit("a.ts", long + "import a", "import b")
    assert expected(begin, bash("./run.sh", ""), bash("cat a.ts", SOURCE), one) == ["ok"]
    assert expected(begin, bash("./run.sh", ""), one, again) == [None, None]
    begin = read("a.ts", long + SOURCE)
    assert expected(begin, bash("./run.sh", ""), most, again) == [None, "ok"]
    assert expected(begin, bash("npm run check", "> biome check --write .\nerror"), one) == [None]


def test_a_text_that_was_not_found_is_missing_until_the_file_changes() -> None:
    begin, again = read("a.ts", TEXT + MORE), edit("a.ts", "let z", failed=True)
    assert expected(begin, again, again) == [None, "not_found"]
    assert expected(begin, again, bash("./run.sh", ""), again) == [None, None]
    assert expected(begin, again, [user("Go on")], again) == [None, None]
    several = [{"oldText": old, "newText": "q"} for old in ("let y = x", "let z")]
    output = "Could not find edits[1] in a.ts."
    both = [call("edit", path="a.ts", edits=several), result("edit", output, error=True)]
    assert expected(begin, both, again)[-1] == "not_found"


def test_a_line_that_the_user_quotes_differently_was_changed_by_hand() -> None:
    text = TEXT + 'DONE: "color-mix(in oklab, 25%)",\n'
    line = 'DONE: "color-mix(in oklab, 25%)",'
    changed = [user('DONE: "color-mix(in oklab, 100%)", shall be grey')]
    same = [user('Why is it "color-mix(in oklab, 25%)"?')]
    for event, outcome in ((changed, None), (same, "ok")):
        steps = read("a.ts", text), event, edit("a.ts", line)
        assert expected(*steps)[-1] == outcome


def test_other_lines_at_the_position_of_a_text_do_not_show_that_it_is_missing() -> None:
    shown = ["const first = readFile(name)", "const second = parse(first)", "return second"]
    seen = read("a.ts", "\n".join(shown) + MORE)
    # The same lines may occur elsewhere and continue differently.
    assert expected(seen, edit("a.ts", "\n".join([*shown[:2], "return one"])))[-1] is None


def test_a_script_that_the_session_wrote_shows_which_files_it_changes() -> None:
    begin, one = read("a.ts", SOURCE), edit("a.ts", "let total = count(items)", "let sum = 0")
    for code, outcome in (("open('b.ts', 'w').write(x)", "ok"), ("open('a.ts', 'w').write(x)", None)):
        assert expected(begin, write("go.py", code), bash("python3 go.py", ""), one) == [outcome]


def test_wrapped_output_of_an_mcp_tool_is_not_file_content() -> None:
    shown = '{"stdout": "let total = 1\\nlet y = x"}'
    ran = [call("serena__execute_shell_command", command="cat a.ts"), result("serena__execute_shell_command", shown)]
    assert expected(ran, edit("a.ts", "let total = 1"))[-1] is None


def test_text_garbled_by_windows_is_unknown() -> None:
    console = HEADER | {"cwd": "C:\\app"}
    text = "const name = 'first value'\nconst other = '\u00e9t\u00e9 and more'\n"
    known = edit("a.ts", "const name = 'first value'"), edit("a.ts", "const other = '\u00e9t\u00e9 and more'")
    shown = bash("Get-Content -Raw a.ts", text)
    assert [expected(shown, one, header=console)[0] for one in known] == ["ok", None]


def test_openclaw_memories_may_be_changed_by_other_sessions() -> None:
    change = "let total = count(items)"
    for path, outcome in (("/w/.openclaw/agent/memory/a.md", None), ("/w/.openclaw/agent/a.md", "ok")):
        begin, one = read(path, SOURCE), edit(path, change)
        assert expected(begin, one) == ["ok"]
        assert expected(begin, [user("Go on")], one) == [outcome]


def test_edits_of_files_changed_by_hand_are_undecided() -> None:
    begin, one = read("a.ts", SOURCE), edit("a.ts", "let total = count(items)", "let sum = 0")
    for text, outcome in (("I have just renamed total", None), ("Please rename it", "ok")):
        assert expected(begin, [user(text)], one) == [outcome]
