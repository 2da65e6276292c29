"""The next call at a failing step: which calls pass, get partial credit, or must fail."""

import json
import time
from functools import cache
from typing import Any

import pytest
from datasets import Dataset

from pimono_sdpo import run_pipeline
from pimono_sdpo.replay.calls import hash_call
from pimono_sdpo.schema import SESSION as COLUMNS
from pimono_sdpo.training.rewards import scoring_of
from processors import pipeline
from rewards.rescore import build_rubric, rescore
from rewards.verifiers.next_call import verify
from rewards.verifiers.rubric import VerifierResult
from tests.failing_steps import APP, NEW, OLD, SAVE, SESSION

Call = tuple[str, dict[str, Any]]


@cache
def specs() -> dict[str, dict[str, Any]]:
    """Return the specs of the session's steps by kind; `schema` is the edit without its path."""
    session = {
        "harness": "", "session_id": "s", "source": "s.jsonl", "trace": SESSION.encode(),
        "bytes_not_utf8": 0,
    }  # fmt: skip
    rows = run_pipeline(Dataset.from_list([session], features=COLUMNS), pipeline("step", corrections=True))
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        spec = json.loads(row["verifier_spec"])
        name = spec["goal"]["kind"]
        found["schema" if name in found else name] = spec
    return found


def write(call: Call) -> str:
    return json.dumps({"type": "tool_call", "name": call[0], "args": call[1]})


def judge(kind: str, call: Call) -> VerifierResult:
    return verify(write(call), specs()[kind])


def edit(old: str, new: str, path: str = "src/app.py") -> Call:
    return "edit", {"path": path, "edits": [{"oldText": old, "newText": new}]}


def bash(command: str) -> Call:
    return "bash", {"command": command}


def read(path: str) -> Call:
    return "read", {"path": path}


WINS: list[tuple[str, Call]] = [
    ("change", edit(OLD, NEW)),
    ("change", edit("open(path) as", 'open(path, encoding="utf-8") as', "/home/ann/app/src/app.py")),
    ("change", edit(OLD, NEW, "$WORKSPACE/src/app.py")),
    ("change", edit(OLD, NEW.replace('"', "'").replace(", ", ",  "))),
    ("change", edit(OLD, f"    # Settings are text.\n{NEW}")),
    ("schema", edit('open(path, "w")', SAVE)),
    ("path", read("tests/unit/settings_test.py")),
    ("path", bash("cat tests/unit/settings_test.py")),
    ("path", bash("find . -name 'settings_test*'")),
    ("path", bash("ls tests")),
    ("path", bash("find . -name settings_test.py -exec grep -n load {} ;")),
    ("path", bash("cat tests/unit/settings_test.py 2>/dev/null | sed -n '/raw data/p;1,9p'")),
    ("path", bash("cd $(pwd) && git ls-files '*settings_test*' 2> /dev/null; ls tests")),
    ("folder", bash("ls src")),
    ("folder", read("src/app.py")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "call"), WINS)
def test_calls_that_reach_the_goal_pass(kind: str, call: Call) -> None:
    # The second path is that of the recorder, which no row shows.
    call = (call[0], json.loads(json.dumps(call[1]).replace("/home/ann/app", "$WORKSPACE")))
    result = judge(kind, call)
    assert (result.status, result.score) == ("passed", 1.0), result.feedback


HALF: list[tuple[str, Call]] = [("change", bash("cat src/app.py")), ("change", bash("sed -n '1,20p' src/app.py"))]


@pytest.mark.parametrize(("kind", "call"), HALF)
def test_looking_at_the_target_gets_half_credit(kind: str, call: Call) -> None:
    assert judge(kind, call).score == 0.5


def test_a_call_that_the_prompt_shows_makes_no_progress() -> None:
    assert judge("change", read("src/app.py")).score is None
    # The file has changed since it was read.
    assert judge("folder", read("src/app.py")).score == 1.0
    spec = {**UNREAD, "earlier": {"failed": [hash_call("bash", {"command": "cat  src/one.py"})], "shown": []}}
    assert verify(write(bash("cat 'src/one.py'")), spec).score == 0.0
    assert verify(write(bash("head -9 src/one.py")), spec).score == 1.0


@pytest.mark.parametrize(("goal", "scores"), [({}, [0.1, 0.1]), ({"guessed": True}, [None, 0.1])])
def test_an_edit_of_an_unread_file_is_wrong_unless_the_harness_would_try_it(
    goal: dict[str, bool], scores: list[float | None]
) -> None:
    calls = [edit("c", "d", "src/one.py"), ("write", {"path": "src/one.py", "content": "x = 1"})]
    spec = {**UNREAD, "goal": {**UNREAD["goal"], **goal}}
    assert [verify(write(call), spec).score for call in calls] == scores


@pytest.mark.parametrize(
    ("command", "score"),
    [
        ("cat src/*", 1.0),
        ("cat src/*.py", 1.0),
        ("cat src/zz*", None),
        ("cmd /c dir src", 1.0),
        ("cmd /c del src", 0.1),
    ],
)
def test_all_files_of_a_folder_are_a_look_into_it(command: str, score: float | None) -> None:
    assert judge("folder", bash(command)).score == score


KINDS = ["change", "schema", "path", "folder"]
NOTHING: list[Call] = [
    bash("pwd"), bash("true"), bash(":"), bash("echo ok"), bash("sleep 1"), bash(""), read("."), ("finish", {}),
    ("read", {}), ("edit", {}), edit(OLD, OLD), edit("", ""),
    ("write", {"path": "notes.md", "content": "ok"}),
]  # fmt: skip
CHEATS: list[tuple[str, Call]] = [
    *((kind, call) for kind in KINDS for call in NOTHING),
    *((kind, bash(command)) for kind in KINDS if kind != "path" for command in ("ls", "ls -la .", "find .", "ls -R /")),
    # The failed call, with other white space, words around it or a harmless addition.
    ("change", edit(f"{OLD}  # text", NEW)),
    ("change", edit(f"{OLD}   #  text ", NEW)),
    ("change", edit(f"{OLD}  # text\n", f"{NEW}\n")),
    ("schema", ("edit", {"edits": [{"oldText": 'open(path, "w")', "newText": SAVE}]})),
    ("schema", ("edit", {"path": "src/app.py", "edits": [{"oldText": 'open(path, "w")'}]})),
    ("path", read("tests/settings_test.py")),
    ("path", read("./tests/settings_test.py")),
    ("path", read("tests//settings_test.py ")),
    ("path", ("read", {"path": "tests/settings_test.py", "limit": 5})),
    ("path", bash("cat tests/settings_test.py")),
    ("path", bash("cat tests/settings_test.py || true")),
    ("path", bash("mkdir -p tests/settings_test.py; ls tests/settings_test.py")),
    ("path", ("write", {"path": "tests/settings_test.py", "content": "x = 1"})),
    ("path", bash("cd tests && cat settings_test.py")),
    ("path", bash("cat 'tests/settings_test.py'; ls tests")),
    ("path", bash("cat $WORKSPACE/tests/settings_test.py")),
    ("path", bash("touch tests/settings_test.py && ls tests")),
    ("path", bash("mv tests/unit/settings_test.py tests/settings_test.py")),
    ("path", bash("echo tests/unit/settings_test.py")),
    ("path", bash("true # tests/unit/settings_test.py")),
    ("folder", read("src")),
    ("folder", read("src/")),
    ("folder", ("write", {"path": "src/app.py", "content": ""})),
    ("folder", bash("cat src")),
    ("folder", bash("cat -n ./src | head -5")),
    # Looks, and does more.
    *(("path", bash(command)) for command in (
        "find . -name 'settings_test*' -delete", "find . -name 'settings_test*' -exec rm {} \\;",
        "find . -name settings_test.py -fprint src/app.py", "git rm -r --cached settings_test.py",
        "git clean -fdx settings_test.py", "rg --pre rm settings_test .", "ls $(rm -rf src) tests", "ls `rm -rf src` tests",
        "awk 'BEGIN{system(\"rm -rf .\")}' x && ls tests", "sed -i s/a/b/ tests/unit/settings_test.py",
        "awk '{print > \"a\"}' tests/unit/settings_test.py", "git checkout tests/unit/settings_test.py",
        "cat tests/unit/settings_test.py > tests/unit/settings_test.py",
    )),
    *(("folder", bash(command)) for command in (
        "rm -r src", "ls src; rm -rf src", "git clean -fdx src", "find src -delete", "tree src -o src/app.py",
    )),
    ("change", edit(OLD, f"    #{NEW[3:]}\n{OLD}")),
    ("change", edit("import json", f"import json\n{NEW}")),
    ("change", edit(OLD, f"{OLD}  ")),
    ("change", edit(OLD, "")),
    ("change", edit(OLD, "    with open(path, encoding='utf-8' as file:")),
    ("change", ("write", {"path": "src/app.py", "content": ""})),
    ("change", ("write", {"path": "src/app.py", "content": NEW})),
    ("change", ("write", {"path": "src/app.py", "content": APP})),
    ("change", bash(f"echo '{NEW}'")),
    ("change", bash("rm src/app.py")),
]  # fmt: skip
# Nothing in the session says that these are wrong.
UNDECIDED: list[tuple[str, Call]] = [
    *((kind, call) for kind in KINDS for call in (
        read("README.md"), bash("git status"), bash("cat"), bash("cat *"), bash("npm test"), bash("cat README.md a.md"),
    )),
    *(("path", bash(command)) for command in ("ls", "ls .", "find .", "ls -R /", "find . -name '*.py'", "rg .")),
    ("path", read("tests/other_test.py")),
    ("path", read("src/app.py")),
    ("path", bash("cat " + " ".join(f"{folder}/unit/settings_test.py" for folder in "tests abcdefghijklm"))),
    ("path", bash("rg 'settings_test|" + "|".join(f"name{n}" for n in range(20)) + "'")),
    ("path", bash("head tests/settings_test.py || find . -name settings_test.py")),
    ("folder", bash("ls tests")),
    ("change", edit("import json", "import json\nimport os")),
    ("change", edit(OLD, NEW, "src/other.py")),
    ("change", edit(OLD, f"{NEW}\n" + "\n".join(f"    # {n} encoding utf 8" for n in range(40)))),
    ("change", bash("sed -i 's/a/b/' src/app.py")),
    # In other words, with another value, or with a name that is nowhere else.
    ("change", edit(OLD, NEW.replace("path", "paths"))),
    ("change", edit(OLD, NEW.replace("encoding", "encodings"))),
    ("change", edit(OLD, '    with codecs.open(path, "r", "utf-8") as file:')),
    ("change", edit(OLD, OLD.replace("path", 'path, encoding="latin-1"'))),
    # In another order, without its quotes; its words where they do nothing; and more of it.
    ("change", edit(OLD, NEW.replace('path, encoding="utf-8"', '"utf-8", encoding=path'))),
    ("change", edit(OLD, NEW.replace('"', ""))),
    ("change", edit(OLD, f"{OLD}  # {NEW}")),
    ("change", edit(OLD, f"{OLD}\n        _ = [{NEW!r}]")),
    ("change", edit(f"{OLD}\n", f"    if False:\n        open(path, encoding='utf-8')\n{OLD}\n")),
    ("change", edit(f"{OLD}\n        return json.load(file)", f"{NEW}\n        return file")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "call"), CHEATS)
def test_cheap_calls_fail(kind: str, call: Call) -> None:
    result = judge(kind, call)
    assert result.status == "failed"
    assert (result.score or 0.0) <= 0.4


@pytest.mark.parametrize(("kind", "call"), UNDECIDED)
def test_calls_with_an_unknown_result_are_skipped(kind: str, call: Call) -> None:
    assert judge(kind, call).score is None


def test_a_search_gets_half_credit_if_the_name_was_shown() -> None:
    spec = json.loads(json.dumps(specs()["path"]))
    spec["goal"]["shown"] = True
    assert verify(write(bash("find . -name 'settings_test*'")), spec).score == 0.5
    assert verify(write(read("tests/unit/settings_test.py")), spec).score == 1.0


@pytest.mark.parametrize("text", ["", "I would read the file.", "{", '{"type": "final"}', "[]"])
def test_a_message_without_a_call_gets_nothing(text: str) -> None:
    assert all(verify(text, specs()[kind]).score == 0.0 for kind in KINDS)


def test_recorded_calls_pass_and_fail_as_in_the_session() -> None:
    for kind, spec in specs().items():
        failed = spec["failed_call"]
        if failed:
            result = judge(kind, (failed["name"], failed["args"]))
            assert result.status == "failed"
            assert (result.score or 0.0) < 0.1
        worked = spec["resolved_call"]
        if worked and kind != "correction":
            assert judge(kind, (worked["name"], worked["args"])).status == "passed"


def test_a_result_unknown_from_the_session_is_skipped() -> None:
    rubric = build_rubric((), ("next_call",))
    undecided = [("correction", edit(SAVE, 'open(path, "w")')), ("path", read("lib/settings_test.py"))]
    for kind, call in undecided:
        row = {"completion": write(call), "verifier_spec": json.dumps(specs()[kind])}
        scored = rescore(row, rubric)
        assert (scored["reward"], scored["rejected"]) == (
            None,
            "The result of this call is not known from the session.",
        )


def test_a_spec_of_another_kind_of_row_is_an_error() -> None:
    assert verify("x", {"tools": ["read"]}).status == "skipped"
    scored = rescore(
        {"completion": "x", "verifier_spec": '{"goal": {"kind": "path"}}'}, build_rubric((), ("next_call",))
    )
    assert "filter --unit step" in scored["rejected"]


ROW = {
    "tools": "pi",
    "format": "json",
    "failed_call": {"tool": "bash", "command": "npm test -- a"},
    "workspace": {"cwd": "/w", "files": {"/w/a.json": {"whole": '{"a": 1}', "pieces": [], "stale": False}}},
}


@pytest.mark.parametrize(
    ("call", "score"),
    [
        (edit("1", "2", "a.json"), 1.0),
        (read("a.json"), 1.0),
        (bash("cat a.json"), 1.0),
        (edit("1}", "2", "a.json"), 0.18),  # no longer parses
        (edit("3", "2", "a.json"), 0.06),  # is not there
        (bash("npm test  -- a; true"), 0.0),
        (bash("echo done"), 0.0),
        (("edit", {"path": "a.json"}), 0.04),
        (bash("cat other.json"), None),
    ],
)
def test_a_row_without_a_goal_is_checked_against_the_session(call: Call, score: float | None) -> None:
    verdict = verify(write(call), ROW)
    assert verdict.score is None if score is None else verdict.score == pytest.approx(score)


def test_an_unverified_answer_gets_the_fallback_and_is_not_a_success() -> None:
    reward = scoring_of("outcome", [], [], None).reward
    answer = "The build stops because src/cli.ts is missing, so I restore that file with git."
    calls = [write(edit("1", "2", "a.json")), write(bash("npm test -- a")), answer, ""]
    columns = {"verifier_spec": [json.dumps(ROW)] * 4, "reward_terms": [["src/cli.ts"]] * 4}
    right, repeated, prose, nothing = reward(prompts=["fix it"] * 4, completions=calls, **columns)
    assert (right, repeated, nothing) == (1.0, 0.0, 0.0)
    assert prose is not None
    assert 0 < prose < 1
    # Neither verified nor with terms: it moves nothing.
    assert reward(prompts=["a"], completions=[answer], reward_terms=[None]) == [0.5]


BASE = {"tools": "pi", "format": "json", "workspace": {"cwd": "/w", "files": {}}}
ELSEWHERE = {
    **BASE,
    "goal": {"kind": "path", "path": "/w/lib/server/index.js", "shown": True},
    "failed_call": {"name": "bash", "args": {"command": "sed -n 1,9p /w/lib/server/index.js"}},
    "resolved_call": {"name": "bash", "args": {"command": "sed -n 1,9p /w/dist/server/index.js"}},
    "targets": ["tool/build/index.js"],
    "paths": ["/w/other/index.js", "/w/lib/client.js"],
}


@pytest.mark.parametrize(
    ("command", "score"),
    [
        ("sed -n 1,9p dist/server/index.js", 1.0),
        ("cat tool/build/index.js", 1.0),
        ("cd dist && cd server && cat index.js", 1.0),
        ("Get-ChildItem lib/server", 0.5),
        ("ls lib", 0.5),
        ("ls tool/build", 0.5),
        ("node tool/build/index.js", None),
        # Has the same name, but nobody used it.
        ("cat other/index.js", None),
    ],
)
def test_a_missing_path_may_be_looked_at_but_not_run(command: str, score: float | None) -> None:
    assert verify(write(bash(command)), ELSEWHERE).score == score


def test_listing_the_folder_above_a_missing_one_is_a_search() -> None:
    goal = {"kind": "path", "path": "/opt/app/skills/search/SKILL.md", "shown": False}
    spec = {
        **BASE,
        "goal": goal,
        "paths": [],
        "failed_call": {"name": "read", "args": {"path": goal["path"]}},
        "resolved_call": None,
    }
    assert verify(write(bash("ls /opt/app/skills/")), spec).score == 1.0
    assert verify(write(bash("find /opt/app/skills/**/*.md")), spec).score == 1.0
    assert verify(write(bash("ls /opt")), spec).score is None
    assert verify(write(bash("ls")), spec).score is None


@pytest.mark.parametrize(
    "command", ["rm -rf lib", "find . -name index.js -exec rm {} +", "git clean -fdx", "find . -name 'index*' -delete"]
)
def test_deleting_fails_even_if_the_failed_call_ran_a_program(command: str) -> None:
    run = {"name": "bash", "args": {"command": "node lib/server/index.js > log.txt"}}
    spec = {**ELSEWHERE, "failed_call": run, "resolved_call": None}
    assert verify(write(bash(command)), spec).score == 0.1
    assert verify(write(bash("find . -name index.js -exec sh {} +")), spec).score is None


def test_a_known_file_may_be_rewritten_with_the_change() -> None:
    spec, wanted = {**specs()["change"], "tools": "pi"}, APP.replace(OLD, NEW)
    for content, score in (
        (wanted, 1.0),
        (wanted.replace("import json\n", "import json\nimport os\n"), None),
        (f"import json\n\n\n{NEW[4:]}\n    pass\n", 0.1),
    ):
        assert verify(write(("write", {"path": "src/app.py", "content": content})), spec).score == score


def test_a_line_out_of_its_block_is_another_change() -> None:
    blocks = "if one:\n    return_number(1)\n    go()\n"
    spec = change_of("return_number(1)", "return_number(2)", known=blocks)
    for new, score in (("return_number(2)\n    go()", 1.0), ("return_number(2)\ngo()", None)):
        args = {"path": "a.py", "old_string": "return_number(1)\n    go()", "new_string": new}
        assert verify(write(("edit", args)), spec).score == score


@pytest.mark.parametrize(
    ("command", "score"),
    [
        ("rm src/two.py", None), ("cd src && rm -f two.py", None), ("rm $WORKSPACE/src/two.py", None),
        ("rm src/one.py", 0.1), ("rm -rf src", 0.1), ("rm ../two.py", 0.1), ("rm src/*", 0.1), ("rm $(ls src)", 0.1),
        ("git checkout src/two.py", 0.1), ("rm src/two.py; find . -name one.py -delete", 0.1),
        ("sed -i 1,2d src/one.py", None),
    ],
)  # fmt: skip
def test_deleting_another_file_of_the_workspace_is_skipped(command: str, score: float | None) -> None:
    assert verify(write(bash(command)), KNOWN).score == score


def test_part_of_the_change_is_skipped_even_if_it_only_removes_words() -> None:
    edits = [{"old_string": "load(x)", "new_string": "x"}, {"old_string": "raw", "new_string": "plain"}]
    spec = change_of("", "", known="load(x)\nraw\nraw\n", edits=[edits[0], {**edits[1], "replace_all": True}])
    spec["failed_call"] = {"name": "edit", "args": {"path": "a.py", "edits": edits}}
    for old, new, score in (("load(x)", "x", None), ("load(x)", "", 0.1)):
        assert verify(write(("edit", {"path": "a.py", "old_string": old, "new_string": new})), spec).score == score


def test_a_command_may_change_punctuation() -> None:
    args = {"path": "src/one.py", "oldText": "from server import x", "newText": "from .server import x"}
    looked = {"name": "read", "args": {"path": "$WORKSPACE/src/one.py"}}
    spec = {**KNOWN, "failed_call": {"name": "edit", "args": args}, "resolved_call": looked}
    assert verify(write(bash("sed -i 's/from server/from .server/' src/one.py")), spec).score is None


def test_appending_to_the_target_is_skipped() -> None:
    assert judge("change", bash("echo x >> src/app.py")).status == "skipped"


WINDOWS = "D:\\app\\docs\\memory-search.md"


@pytest.mark.parametrize(
    ("kind", "path", "command", "score"),
    [
        # Looking at the file to change, however it is done.
        ("read", "/w/src/app.py", "sed -n '1,20p' src/app.py", 1.0),
        ("read", "/w/src/app.py", "cd src && cat app.py", 1.0),
        ("read", "/w/src/app.py", "cat src/other.py", None),
        ("read", WINDOWS, f"type {WINDOWS}", 1.0),
        ("read", WINDOWS, f"get-content {WINDOWS} -TotalCount 9", 1.0),
        # The folder, with and without quotes, and what is in it.
        ("folder", "D:\\app\\docs", "dir D:\\app\\docs", 1.0),
        ("folder", "D:\\app\\docs", "Get-ChildItem 'D:\\app\\docs' -Recurse", 1.0),
        ("folder", "/w/src", "cd src && ls", 1.0),
        ("folder", "/w/src", "ls -lA src", 1.0),
        ("folder", "/w/src", "cd lib && ls", None),
        # A search by the name, by a part of it, and in the folder above.
        ("path", WINDOWS, "dir D:\\app\\docs", 1.0),
        ("path", WINDOWS, "Get-ChildItem D:\\ -Recurse -Filter *search*", 1.0),
        ("path", WINDOWS, "findstr /s memory-search D:\\*.md", 1.0),
        ("path", WINDOWS, "Get-ChildItem D:\\other", None),
        ("path", "/w/a/use_index.py", "ls -la /w/a | head", 1.0),
        ("path", "/w/a/use_index.py", "rg --files | rg use_index", 1.0),
        ("path", "/w/a/use_index.py", "rg --files | rg other", None),
    ],
)
def test_a_correct_call_passes_with_any_spelling_of_its_path(
    kind: str, path: str, command: str, score: float | None
) -> None:
    failed = {"name": "edit" if kind == "read" else "read", "args": {"path": path}}
    goal = {"kind": kind, "path": path, "shown": False}
    spec = {**BASE, "goal": goal, "failed_call": failed, "resolved_call": None, "paths": ["/w/lib/x.py"]}
    assert verify(write(bash(command)), spec).score == score


GLOB = {"name": "glob", "parameters": {"type": "object", "properties": {"pattern": {"type": "string"}}}}


def test_a_glob_looks_into_the_folder_before_its_pattern() -> None:
    goal = {"kind": "folder", "path": "/w/src"}
    failed = {"name": "read", "args": {"file_path": "/w/src"}}
    spec: dict[str, Any] = {**BASE, "tools": [{"function": GLOB}], "goal": goal, "paths": []}
    spec |= {"failed_call": failed, "resolved_call": None}
    for arguments, score in (({"pattern": "/w/src/**/*.py"}, 1.0), ({"pattern": "*", "path": "src"}, 1.0)):
        assert verify(write(("glob", arguments)), spec).score == score
    assert verify(write(("glob", {"pattern": "lib/*"})), spec).score is None


UNREAD: dict[str, Any] = {
    **BASE,
    "tools": [{"function": {"name": name}} for name in ("read", "edit", "grep", "find", "bash", "write")],
    "goal": {"kind": "read", "path": "/w/src/one.py", "shown": False},
    "failed_call": {"name": "edit", "args": {"path": "/w/src/one.py", "oldText": "a", "newText": "b"}},
    "resolved_call": {"name": "read", "args": {"path": "/w/src/one.py"}},
    "targets": ["/w/src/two.py"],
    "paths": [],
}


@pytest.mark.parametrize(
    ("call", "score"),
    [
        # What the prompt names beside the file, and what the session used next, is as right.
        (read("src/two.py"), 1.0),
        (("grep", {"pattern": "a", "path": "src/two.py"}), 1.0),
        (bash("cat src/*.py"), 1.0),
        # The text that the edit would have inserted is not in the file yet.
        (("grep", {"pattern": "b", "path": "src/two.py"}), None),
        (bash("cat *"), None),
        (bash("cat */*"), None),
        (bash("sed -n 1,9p src/two.py"), 1.0),
        # So is looking for a file whose folder is not in the prompt, with any tool.
        (bash("find . -name one.py -not -path '*/build/*'"), 1.0),
        (("find", {"pattern": "**/one.py"}), 1.0),
        (bash("ls -R | grep one.py"), 1.0),
        (bash("grep -rn two src/one.py"), 1.0),
        (bash("find . -name '*.py'"), None),
        (edit("a", "c", "src/two.py"), None),
        (bash("sed -i s/a/b/ src/one.py"), None),
        (edit("a", "c", "src/one.py"), 0.1),
        (bash("rm -r src"), 0.1),
        (bash("ls"), 0.1),
    ],
)
def test_all_ways_to_read_a_file_are_equal(call: Call, score: float | None) -> None:
    assert verify(write(call), UNREAD).score == score


ONE = "def settings_of(path):\n    return load(path)\n"
KNOWN: dict[str, Any] = {
    **UNREAD,
    "goal": {"kind": "read", "path": "$WORKSPACE/src/one.py", "shown": True},
    "failed_call": {"name": "edit", "args": {"path": "src/one.py", "oldText": "load(path)", "newText": "parse(path)"}},
    "resolved_call": {"name": "read", "args": {"path": "src/one.py"}},
    "targets": [],
    "places": {"~": "$WORKSPACE", "$WORKSPACE/..": "/home"},
    "workspace": {
        "cwd": "$WORKSPACE",
        "files": {"$WORKSPACE/src/one.py": {"whole": ONE, "pieces": [], "stale": False}},
    },
}


@pytest.mark.parametrize(
    ("command", "score"),
    [
        *((command, 1.0) for command in (
            "cat src/one.py", "sed -n 1,2p src/one.py", "sed -n '/load/p' src/one.py", "head -1 src/one.py",
            "grep -n 'return\\|zzz' src/one.py", "grep -A 3 settings_of src/one.py", "rg 'settings_(of|to)|load' src",
            "grep -nC 3 load src/one.py", "grep -rn settings_of src", "cat src/one.py | grep load", "cat ~/src/one.py", "cat ../src/one.py ~/src/one.py",
        )),
        # Nothing of what is in the file.
        *((command, None) for command in (
            "ls -la src/one.py", "stat src/one.py", "wc -l src/one.py", "file src/one.py", "head -0 src/one.py",
            "head -n 0 src/one.py", "tail -n0 src/one.py", "sed -n 7,9p src/one.py", "sed -n '/zzz/p' src/one.py",
            "grep zzz src/one.py", "grep -c load src/one.py", "rg -l load src", "cat src/one.py > /dev/null",
            "cat src/one.py | wc -l", "cat src/one.py | head -0", "cat src/one.py | grep zzz", "git diff src/one.py",
            "grep -rn load .", "cat ../src/one.py", "tail -f src/one.py", "sed d src/one.py", "awk 'END{}' src/one.py",
        )),
        # It is shown, and something else is done, elsewhere, or without an end.
        *((command, None) for command in (
            "cat src/one.py $(curl x|sh)", "cat src/one.py `echo $(curl x|sh)`", "cat src/one.py > /dev/null & sleep 1000",
            "cat src/one.py; sleep 1000", "cat src/one.py; git push --force", "source x.sh; cat src/one.py",
            "ssh host cat src/one.py", "cat src/one.py; git config user.name x",
        )),
        # It is changed or removed without having been looked at.
        *((command, 0.1) for command in (
            "cp /dev/null src/one.py", "mv src/one.py /tmp", "cat > src/one.py <<'EOF'\nx = 1\nEOF", ": > src/one.py",
            "echo x | tee src/one.py", "python3 -c \"open('src/one.py', 'w').write('')\"", "touch src/one.py",
            "cat src/one.py && sed -i s/a/b/ $WORKSPACE/src/one.py", "sed -i s/a/b/ src/one.py",
            "del src/one.py", "find . -name one.py | xargs rm", "cat src/one.py \"$(rm -rf .)\"", "cat src/one.py; rm *",
        )),
        # What was to be changed may be changed so, too.
        ("sed -i 's/load(path)/parse(path)/' src/one.py", None),
        ("echo 'x = 1' >> src/one.py", None),
    ],
)  # fmt: skip
def test_only_printing_lines_of_a_file_reads_it(command: str, score: float | None) -> None:
    assert verify(write(bash(command)), KNOWN).score == score


@pytest.mark.parametrize(
    "command",
    [f"sed -n {'9' * 5000}p src/one.py", f"grep -{'c' * 9000}! x src/one.py", f"grep '{'[a' * 9000}' src/one.py"],
)
def test_no_command_takes_long(command: str) -> None:
    started = time.monotonic()
    assert verify(write(bash(command)), KNOWN).score is None
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("tool", "arguments", "score"),
    [
        ("mcp__files__read_text_file", {}, 1.0),
        ("mcp__files__search_code", {"pattern": "settings_of"}, 1.0),
        ("mcp__files__search_code", {"pattern": "zzz"}, None),
        ("mcp__files__get_file_info", {}, None),
        ("mcp__files__list_directory", {}, None),
        ("mcp__files__lookup", {}, None),
        ("mcp__files__write_file", {"content": "x"}, 0.1),
        ("mcp__files__edit_file", {"edits": [{"oldText": "a", "newText": "b"}]}, 0.1),
        ("mcp__files__create_directory", {}, 0.1),
        ("mcp__files__put", {"content": "x"}, 0.1),
        ("mcp__files__move_file", {"source": "src/one.py", "destination": "x.py"}, 0.1),
        ("read", {"offset": 2, "limit": 5}, 1.0),
        ("read", {"offset": 90}, None),
        ("read", {"limit": 0}, None),
        ("grep", {"pattern": "load", "output_mode": "files_with_matches"}, None),
        ("grep", {"pattern": "load", "output_mode": "content"}, 1.0),
    ],
)
def test_the_action_of_a_tool_follows_from_its_name_and_arguments(
    tool: str, arguments: dict[str, Any], score: float | None
) -> None:
    spec = {**KNOWN, "tools": [{"function": {"name": tool}}]}
    assert verify(write((tool, {"path": "src/one.py", **arguments})), spec).score == score


@pytest.mark.parametrize(
    ("command", "score"),
    [
        ("ls dist/server/index.js", 1.0), ("head -3 dist/server/index.js", 1.0), ("rg --files dist/server", 0.5),
        ("wc -l dist/server/index.js", None), ("stat dist/server/index.js", None),
        ("cat dist/server/index.js > /dev/null", None), ("ls dist/server > /dev/null", None),
    ],
)  # fmt: skip
def test_counting_lines_does_not_find_a_missing_path(command: str, score: float | None) -> None:
    assert verify(write(bash(command)), ELSEWHERE).score == score


def test_a_name_is_searched_for_wherever_the_missing_path_was() -> None:
    goal = {"kind": "path", "path": "/w/progress.txt", "shown": False}
    spec: dict[str, Any] = {
        **BASE,
        "goal": goal,
        "failed_call": {"name": "read", "args": {"path": "/w/progress.txt"}},
        "paths": [],
    }
    spec |= {"resolved_call": {"name": "read", "args": {"path": "/w/.agent/progress.txt"}}}
    for command in (
        "find . -name progress.txt",
        "rg --files | grep progress.txt",
        "ls .agent",
        "cat .agent/progress.txt",
    ):
        assert verify(write(bash(command)), spec).score == 1.0
    for command in ("find progress.txt", "ls progress.txt", "cat ./progress.txt"):
        assert verify(write(bash(command)), spec).score == 0.1


def test_a_folder_is_searched_for_by_a_part_of_its_name() -> None:
    failed = {"name": "read", "args": {"path": "/w/src/InvoiceCashbackPoints"}}
    spec: dict[str, Any] = {
        **BASE,
        "goal": {"kind": "folder", "path": "/w/src/InvoiceCashbackPoints"},
        "failed_call": failed,
    }
    spec |= {"resolved_call": None, "paths": []}
    for command in ("find . -name 'InvoiceCashback*'", "rg -l InvoiceCashbackPoints", "ls src/InvoiceCashbackPoints"):
        assert verify(write(bash(command)), spec).score == 1.0


TWICE = "def one():\n    return number(1)\n\n\ndef two():\n    return number(1)\n"


def change_of(old: str, new: str, known: str | None, **more: Any) -> dict[str, Any]:
    """Return the spec of an edit whose text is there twice, and that worked with the line before it."""
    texts: dict[str, Any] = {
        "whole": known,
        "pieces": [] if known else [TWICE[TWICE.index("def two") :]],
        "stale": False,
    }
    args = {"path": "a.py", "old_string": "    return number(1)", "new_string": "    return number(2)"}
    return {
        **BASE,
        "tools": [{"function": {"name": "edit"}}],
        "workspace": {"cwd": "/w", "files": {"/w/a.py": texts}},
        "goal": {"kind": "change", "path": "a.py"},
        "failed_call": {"name": "edit", "args": args},
        "resolved_call": {"name": "edit", "args": {"path": "a.py", "old_string": old, "new_string": new, **more}},
        "paths": [],
    }


def test_an_edit_passes_at_the_intended_position() -> None:
    def judged(spec: dict[str, Any], old: str, new: str, **more: Any) -> float | None:
        return verify(write(("edit", {"path": "a.py", "old_string": old, "new_string": new, **more})), spec).score

    far = TWICE.replace("\n\n\n", "\n" * 80)
    at_two = ("two():\n    return number(1)", "two():\n    return number(2)")
    assert (
        judged(change_of(*at_two, known=far), "def two():\n    return number(1)", "def two():\n    return number(2)")
        == 1.0
    )
    # The other of both places; all of them.
    assert (
        judged(change_of(*at_two, known=far), "one():\n    return number(1)", "one():\n    return number(2)") is None
    )
    assert judged(change_of(*at_two, known=far), "return number(1)", "return number(2)", replace_all=True) is None
    all_of_them = change_of("return number(1)", "return number(2)", known=far, replace_all=True)
    assert judged(all_of_them, "    return number(1)", "    return number(2)", replace_all=True) == 1.0
    # Where only a part of the file is known, only what worked is known to be there once.
    assert (
        judged(change_of(*at_two, known=None), "def two():\n    return number(1)", "def two():\n    return number(2)")
        == 1.0
    )
    assert judged(change_of(*at_two, known=None), "():\n    return number(1)", "():\n    return number(2)") is None


@pytest.mark.parametrize("tool", ["multi_edit", "apply_patch", "write", "edit"])
@pytest.mark.parametrize("known", [TWICE, None])
def test_every_tool_that_changes_files_gets_a_verdict(tool: str, known: str | None) -> None:
    spec = change_of("two():\n    return number(1)", "two():\n    return number(2)", known=known)
    spec |= {"tools": [{"function": {"name": name}} for name in ("multi_edit", "apply_patch", "write", "edit")]}
    for args in (spec["resolved_call"]["args"], {"path": "a.py", "edits": []}, {"path": "a.py", "content": "x"}):
        for worked in (tool, "edit", "other"):
            spec["resolved_call"]["name"] = worked
            assert verify(write((tool, args)), spec).status in {"passed", "failed", "skipped"}


def test_arguments_of_any_type_get_a_verdict() -> None:
    spec = change_of("two():\n    return number(1)", "two():\n    return number(2)", known=TWICE)
    assert verify(write(("edit", {**spec["resolved_call"]["args"], "replace_all": []})), spec).score is not None
