"""Test how other harnesses show and edit files, and what makes files stale."""

import json
from typing import Any

import msgspec
import pytest

from pimono_sdpo.replay.calls import parse_read, read_edits
from pimono_sdpo.replay.commands import find_changes
from pimono_sdpo.replay.files import Edit, File
from pimono_sdpo.replay.workspace import is_read_only
from pimono_sdpo.traces.events import Event, Kind
from pimono_sdpo.traces.harness import find_harness
from tests.predictions import Predicted, predictions

TEXT = "import a\n\nlet x = 1\nlet y = x\n"
NUMBERED = "     1→import a\n     2→\n     3→let x = 1\n     4→let y = x\n     5→"
UNANSWERED = "unanswered"
MODIFIED = " was modified, either by the user or by a linter."
Step = tuple[str, dict[str, Any], str, bool]


def read(text: str = NUMBERED, **given: Any) -> Step:
    return ("read", {"file_path": "/w/a.ts", **given}, text, False)


def edit(old: str, new: str = "new", failed: str = "", **given: Any) -> Step:
    output = failed or "The file has been updated."
    call = {"file_path": "/w/a.ts", "old_string": old, "new_string": new, **given}
    return ("edit", call, output, bool(failed))


def bash(command: str, output: str = "") -> Step:
    return ("bash", {"command": command}, output, False)


def tool(name: str, **given: Any) -> Step:
    return (name, given, "done", False)


def last(steps: list[Step], harness: str) -> Predicted | None:
    events = []
    for number, (name, given, text, failed) in enumerate(steps):
        at, call_id, asked = 2 * number, f"c{number}", json.dumps(given)
        if name in {"user", "other"}:
            kind: Kind = "user" if name == "user" else "other"
            events += [Event(at, kind, text), Event(at + 1, "other")]
            continue
        if name == UNANSWERED:
            asked = json.dumps({"file_path": "/w/a.ts"})
            events += [
                Event(at, "tool_call", call_id=call_id, tool_name=given["of"], arguments=asked),
                Event(at + 1, "other"),
            ]
            continue
        events += [
            Event(at, "tool_call", call_id=call_id, tool_name=name, arguments=asked),
            Event(at + 1, "tool_result", text, call_id=call_id, tool_name=name, is_error=failed),
        ]
    return [one.expected for one in predictions(events, "/w", find_harness(harness).files)][-1]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([read(), edit("let y = x")], "ok"),
        ([read(), edit("let z = x")], "not_found"),
        ([read(), edit("let")], "multiple"),
        ([read(), edit("let", replace_all=True)], "ok"),
        ([read(), edit("let y", "let y")], "no_change"),
        ([read(offset=3), edit("let y = x")], None),
        ([read("   3→let x = 100\n   4→let y = x", offset=3, limit=2), edit("let x = 100\nlet y = x")], "ok"),
        ([read("   3→let x = 1\n   4→let y = x", offset=3, limit=2), edit("let z")], None),
        ([read("import a\n\nlet x = 1"), edit("let z")], None),
        ([read("File unchanged since last read."), edit("let z")], None),
        # The user may have restored an older text.
        ([read(), ("user", {}, "Please go on", False), edit("let z = x")], None),
        # It has to be read before it is edited.
        ([bash("cat /w/a.ts", TEXT), edit("let y = x")], None),
        ([edit("let y = x")], "unread"),
        ([("edit", {"file_path": "/w/CLAUDE.md", "old_string": "a", "new_string": "b"}, "ok", False)], None),
        ([("user", {}, "Look at @src/a.ts", False), edit("let y = x")], None),
        # After "No response requested." the session continues without the files that it had read.
        ([read(), ("other", {}, "No response requested.", False), edit("let y = x")], None),
        ([("other", {}, "No response requested.", False), edit("let y = x")], None),
        # A file that a command has shown may count as read, even after a refusal.
        ([bash("rg -l let", "src/a.ts\nsrc/b.ts"), edit("let y = x")], None),
        ([read(), edit("let", failed="File has been modified since read."), bash("grep let a.ts", "let y = x"), edit("let y = x")], None),
        # The harness says that somebody has changed the file, or that the user has it open.
        ([read(), ("other", {}, f"Note: /w/a.ts{MODIFIED}", False), edit("let y = x")], None),
        ([read(), ("other", {}, f"Note: /w/b.ts{MODIFIED}", False), edit("let y = x")], "ok"),
        ([read(), ("other", {}, f"Note: /w/b.ts{MODIFIED}", False), ("user", {}, "Go on", False), edit("let y = x")], None),
        ([("other", {}, "<ide_opened_file>The user opened it", False), read(), edit("let y = x")], "ok"),
        ([("other", {}, "<ide_opened_file>The user opened it", False), read(), ("user", {}, "Go on", False), edit("let y = x")], None),
        # The file after the edit differs from what was known.
        ([read(), ("edit", {"file_path": "/w/a.ts", "old_string": "let x = 1", "new_string": "q"}, "     3→q\n     4→let y = z", False), edit("let y = x")], None),
        ([read(), edit("let", failed="File has been modified since read."), edit("let y = x")], "unread"),
        # A file that somebody else has changed may be changed again.
        ([read(), edit("let", failed="File has been modified since read."), read(), edit("let y = x")], None),
        ([edit("let", failed="File has not been read yet."), read(), edit("let y = x")], "ok"),
        ([edit("let", failed="File has not been read yet."), edit("let y = x", "a longer new text"), edit("a longer new text")], "ok"),
        ([tool("write", file_path="/w/a.ts", content=TEXT), edit("let y = x")], "ok"),
        # A copy was not read.
        ([tool("write", file_path="/w/b.ts", content=TEXT), bash("mv b.ts a.ts"), edit("let z")], None),
        ([tool("write", file_path="/w/b.ts", content=TEXT), bash("mv b.ts a.ts"), read(), edit("let z")], "not_found"),
        # Something may have changed the file.
        ([read(), tool("Agent", prompt="fix it"), edit("let y = x")], None),
        ([read(), tool("Agent", prompt="fix it"), edit("let x = 1\nlet y = x")], None),
        ([read(), tool("Agent", prompt="fix it"), edit("let z = 1\nlet y = x")], None),
        ([read(), tool("TodoWrite", todos=[]), edit("let y = x")], "ok"),
        ([read(), tool("edit", input="*** Begin Patch\n*** Update File: a.ts\n@@\n-x\n+y"), edit("let y = x")], None),
        ([read(), tool("edit", input="*** Begin Patch\n*** Update File: b.ts\n@@\n-x\n+y"), edit("let y = x")], "ok"),
        # Each edit sees the result of the edits before it.
        ([read(), ("edit", {"file_path": "/w/a.ts", "edits": [
            {"old_string": "let x = 1", "new_string": "let q = 1"},
            {"old_string": "let q", "new_string": "let r"}]}, "ok", False)], "ok"),
        ([read(), ("edit", {"file_path": "/w/a.ts", "edits": [
            {"old_string": "let x = 1", "new_string": "let q = 1"},
            {"old_string": "let x", "new_string": "let r"}]}, "no", True)], "not_found"),
    ],
)  # fmt: skip
def test_claude_codes_files(steps: list[Step], expected: Predicted | None) -> None:
    assert last(steps, "claude_code") == expected


def test_refused_calls_have_no_effect() -> None:
    output = "The user doesn't want to proceed with this tool use. The tool use was rejected."
    refused: Step = ("edit", {"file_path": "/w/a.ts", "old_string": "let x", "new_string": "q"}, output, False)  # fmt: skip
    assert last([read(), refused, edit("let x = 1")], "claude_code") == "ok"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Error: File not found: a.ts",
        "Read image file [image/png]",
        "[Old tool result content cleared]",
        "1#ab:let x\n2#cd:let y\n3#ef:let z",
        "  1|let x\n  2|let y",
    ],
)
def test_results_without_file_content_are_ignored(text: str) -> None:
    assert parse_read({}, text, find_harness("pi").files) is None


@pytest.mark.parametrize("wrong", [[1], {}, "1", 1.5])
def test_a_read_from_what_is_not_a_line_is_ignored(wrong: object) -> None:
    assert parse_read({"offset": wrong}, "let x", find_harness("pi").files) is None
    assert parse_read({"limit": wrong}, "let x", find_harness("pi").files) is None


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("a = 1\nkey = [REDACTED]\nb = 1", ["a = 1", "b = 1"]),
        ("a = 1\n" + "x" * 3000 + "\nb = 1", ["a = 1", "b = 1"]),
        ("a = 1\n... [123 characters truncated] ...\nb = 1", ["a = 1", "b = 1"]),
        ("a = 1\n\n[12 more lines in file. Use offset=3 to continue.]", ["a = 1"]),
        ("a = 1\n\n... (2 more lines not shown)", ["a = 1"]),
    ],
)
def test_omitted_lines_split_a_read_into_runs(text: str, runs: list[str]) -> None:
    shown = parse_read({}, text, find_harness("pi").files)
    assert shown is not None
    assert (shown.runs, shown.is_end) == (runs, False)


def test_adjacent_reads_are_joined() -> None:
    file = File()
    file.see_lines("a\nb", 1, is_end=False)
    file.see_lines("b\nc\nd", 2, is_end=True)
    assert file.whole == "a\nb\nc\nd"


def test_two_reads_of_two_versions_are_not_joined() -> None:
    file = File()
    file.see_lines("a\nb", 1, is_end=False)
    file.see_lines("q\nc", 2, is_end=False)
    assert file.pieces == ["q\nc"]


@pytest.mark.parametrize(
    ("whole", "old", "expected"),
    [
        ("say “hi”\n", 'say "hi"', None),
        ("a  \nb\n", "a\nb", None),
        ("a\u00a0b\n", "a b", None),
        ("a\r\nb\r\n", "a\nb", "ok"),
        ("a\n", "a\n\n", None),
        ("a\nb\n", "  a", "not_found"),
        ("a\n“a”\n", "a", "multiple"),
    ],
)
def test_edits_that_some_versions_accept_are_undecided(whole: str, old: str, expected: Predicted | None) -> None:
    assert File(whole.replace("\r\n", "\n")).predict([Edit(old, "q")]) == expected


def test_overlapping_edits_are_undecided() -> None:
    file = File("one two three\n")
    assert file.predict([Edit("one two", "1"), Edit("two three", "2")]) is None
    assert file.predict([Edit("one", "1"), Edit("three", "2")]) == "ok"


def test_an_edit_changes_the_pieces_that_it_touches() -> None:
    file = File(pieces=["a1\nb2\nc3", "x7\ny8"])
    file.apply([Edit("b2\nc3\nd4", "q")])
    assert file.pieces == ["a1", "x7\ny8", "q"]


def test_a_malformed_edit_invalidates_the_call() -> None:
    good = {"oldText": "a", "newText": "b"}
    assert read_edits({"edits": [good, {"oldText": "a"}]}) == []
    assert len(read_edits({"edits": [good, good]})) == 2


@pytest.mark.parametrize(
    ("command", "output", "anything", "names"),
    [
        ("perl -pi -e 's/a/b/' a.ts", "", False, {"a.ts"}),
        ("sed -Ei s/a/b/ a.ts", "", False, {"a.ts"}),
        ("sed -i '' '/x,$/d' a.ts", "", False, {"a.ts"}),
        ("sed -i -e s/a/b/ -e s/c/d/ a.ts b.ts", "", False, {"a.ts", "b.ts"}),
        ("sed -n 3p a.ts", "", False, set()),
        ("grep -rl x . | xargs sed -i s/a/b/", "", True, set()),
        ("grep -rl x . | xargs grep y", "", False, set()),
        ("find . -name '*.ts' -exec sed -i s/a/b/ {} +", "", True, set()),
        ("find . -delete", "", True, set()),
        ("cp a.ts b.ts", "", False, {"b.ts"}),
        ("git pull", "Updating 1..2\n", True, set()),
        ("git checkout -- a.ts", "", False, {"a.ts"}),
        ("git reset a.ts", "", False, set()),
        ("git reset --hard", "", True, set()),
        ("gh pr checkout 3", "", True, set()),
        ("node --version", "", False, set()),
        ("npx eslint --fix .", "", True, set()),
        ("tar xf a.tgz", "", True, set()),
        ("npx some-generator", "", True, set()),
        ("npx tsx src/gen.ts", "", True, set()),
        ("npx tsx -e 'console.log(1)'", "", False, set()),
        ("python3 -c \"open('a.ts', 'w').write(open('b.ts').read())\"", "", False, {"a.ts", "b.ts"}),
        ("python3 -c \"open(f'{x}.ts', 'w').write('')\"", "", True, set()),
        ("python3 -c \"open('a' + x, 'w').write('')\"", "", True, set()),
        ("python3 -c \"open('a'); Path('b').write_text('')\"", "", False, {"a", "b"}),
        ("python3 -c \"for p in Path('b').glob('*'): p.write_text('')\"", "", True, set()),
        ("pnpm --filter @a/web test", "", False, set()),
        ("pg_isready -h localhost", "", False, set()),
        ("./gradlew assembleDebug", "", False, set()),
        ("odoo -d shop -u sales --stop-after-init", "", False, set()),
        ("codex exec 'fix it'", "", True, set()),
        ("python3 -c \"p = 'a.ts'; Path(p).write_text('x')\"", "", False, {"a.ts", "x"}),
    ],
)
def test_more_commands_that_may_change_files(command: str, output: str, anything: bool, names: set[str]) -> None:
    changes = find_changes(command, output)
    assert (changes.anything, changes.names) == (anything, names)


def test_installing_packages_changes_manifests() -> None:
    assert "package.json" in find_changes("npm install left-pad", "").names


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("npm run lint", "> eslint . --fix\n"),
        ("npm run prettify", "> prettier --write .\na.py 12ms\n"),
        ("make lint", "Found 1 error (1 fixed, 0 remaining).\n"),
        ("gradle spotlessApply", ""),
        ("mvn spotless:apply", ""),
        ("fd -x sed -i s/a/b/", ""),
        ("echo `sed -i s/a/b/ a.py`", ""),
        ("echo $(sed -i s/a/b/ a.py)", ""),
        ("make test 2>a.py", ""),
        ("exec 3>a.py", ""),
        ("yarn style", ""),
        ("docker compose run web black .", ""),
    ],
)
def test_scripts_and_hidden_commands_may_change_any_file(command: str, output: str) -> None:
    changes = find_changes(command, output)
    assert changes.anything


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("npm run build", "> tsgo -p tsconfig.json\n"),
        ("npm test 2>/dev/null", "ok"),
        ("npm test 2>&1 | tail -3", "ok"),
        ("source .venv/bin/activate", ""),
        ("sed -n 3p a.ts", ""),
    ],
)
def test_commands_that_only_read_or_build_do_not_change_sources(command: str, output: str) -> None:
    assert not find_changes(command, output).anything


@pytest.mark.parametrize(
    "name",
    [
        *("set_target", "update_widget", "forget_file", "write_checklist", "get_rid_of"),
        *("mcp__fs__get_and_patch", "getAndApply", "budget", "checklist"),
    ],
)
def test_a_tool_whose_name_only_contains_a_harmless_word_may_change_files(name: str) -> None:
    assert not is_read_only(name)
    assert is_read_only("get_status")
    assert is_read_only("mcp__fs__listFiles")
    steps = [read(), tool(name), edit("let y = x")]
    assert last(steps, "claude_code") is None


def test_a_session_that_goes_on_below_another_may_have_read_the_file() -> None:
    def first(parent: str) -> Predicted | None:
        given = json.dumps({"file_path": "/w/a.ts", "old_string": "let y", "new_string": "q"})
        events = [
            Event(0, "user", "Go on", parent_id=parent),
            Event(1, "tool_call", call_id="c", tool_name="edit", arguments=given),
            Event(2, "tool_result", "done", call_id="c", tool_name="edit"),
        ]
        return next(predictions(events, "/w", find_harness("claude_code").files)).expected

    assert (first(""), first("an event of another session")) == ("unread", None)


def test_a_copied_history_makes_all_files_stale() -> None:
    def second(answered: str) -> Predicted | None:
        given = json.dumps({"file_path": "/w/a.ts", "old_string": "let y", "new_string": "q"})
        read, change = (Event(0, "tool_call", call_id=c, timestamp="2026-01-02T03:04:05.678Z") for c in "ab")
        events = [
            msgspec.structs.replace(read, tool_name="read", arguments='{"file_path": "/w/a.ts"}'),
            Event(1, "tool_result", NUMBERED, call_id="a", tool_name="read", timestamp=answered),
            Event(2, "user", "Go on"),
            msgspec.structs.replace(change, index=3, tool_name="edit", arguments=given),
            Event(4, "tool_result", "done", call_id="b", tool_name="edit"),
        ]
        return next(predictions(events, "/w", find_harness("claude_code").files)).expected

    assert (second("2026-01-02T03:04:06.012Z"), second("2026-01-02T03:04:05.678Z")) == ("ok", None)


def test_a_command_runs_in_the_folder_that_its_call_names() -> None:
    shown: Step = ("bash", {"cmd": "cat a.ts", "workdir": "/w/src"}, TEXT, False)
    for path, expected in (("src/a.ts", "ok"), ("a.ts", None)):
        change = tool("edit", input=f"*** Begin Patch\n*** Update File: {path}\n@@\n-let y = x\n+let y = 2")
        assert last([shown, change], "codex") == expected


def test_runs_of_lines_are_in_file_order() -> None:
    file = File()
    file.see_lines("let y = 1\nlet z = 1", 40, is_end=False)
    file.see_lines("import a\nimport b", 1, is_end=False)
    first, second = Edit("import a", "q"), Edit("let z = 1", "q")
    assert file.predict_lines([first, second]) == "ok"
    assert file.predict_lines([second, first]) is None


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # A call without a result may have read or changed the file.
        ([edit("let", failed="File has not been read yet."), tool(UNANSWERED, of="read"), edit("let y = x")], None),
        ([tool(UNANSWERED, of="write"), edit("let y = x")], None),
        ([read(), tool(UNANSWERED, of="edit"), edit("let x = 1", "let q"), edit("let z")], None),
        ([tool("Batch", calls=["/w/a.ts"]), edit("let y = x")], None),
        ([tool("Agent", prompt="Look at /w/a.ts"), edit("let y = x")], "unread"),
        # If edits are refused after a change, a successful one shows that there was none.
        ([read(), bash("git checkout ."), edit("let x = 1"), edit("let y = x")], "ok"),
        ([read(), bash("git checkout ."), read("     3→let x = 1", offset=3, limit=1), edit("let z = 1")], None),
        ([read(), edit("let", failed="File has been modified since read."), read(), edit("let x = 1"), edit("let y = x")], "ok"),
        ([read(), edit("let", failed="File has been modified since read."), read(), edit("let x = 1"), ("user", {}, "Go on", False), edit("let y = x")], None),
    ],
)  # fmt: skip
def test_what_an_edit_of_claude_code_depends_on(steps: list[Step], expected: Predicted | None) -> None:
    assert last(steps, "claude_code") == expected


@pytest.mark.parametrize("path", ["REDACTED.md", "/home/ann/.claude/settings.json", "/w/.claude/settings.local.json"])
def test_redacted_names_and_checked_settings_are_undecided(path: str) -> None:
    given = {"file_path": path, "old_string": "let y = x", "new_string": "q"}
    assert last([("read", {"file_path": path}, NUMBERED, False), tool("edit", **given)], "claude_code") is None
