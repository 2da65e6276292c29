"""Changed files must parse; errors from before the change do not count."""

import importlib.util
import json
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.verifiers.candidate import Candidate
from rewards.verifiers.rubric import VerifierResult
from rewards.verifiers.syntax import Problem, find_problems, verify, verify_candidate

TREE_SITTER = all(
    importlib.util.find_spec(name) for name in ("tree_sitter", "tree_sitter_typescript", "tree_sitter_javascript")
)
needs_tree_sitter = pytest.mark.skipif(not TREE_SITTER, reason="the extra `verify` is not installed")

GOOD = {
    "a.py": "def f(x: int) -> int:\n    return x\n",
    "a.json": '{"a": [1, 2.5, null]}',
    "a.toml": "[a]\nb = 1\n",
    "a.yaml": "a: &x [1, 2]\nb: *x\n---\nc: !custom 1\n",
    "a.yml": "",
}
BAD = {
    "a.py": "x = 1\nreturn x\n",
    "a.json": '{"a": 1,\n}',
    "a.toml": "[a]\nb = \n",
    "a.yaml": "a: [1\nb: 2\n",
    "a.yml": "a: *unknown\n",
}
GOOD_TREES = {
    "a.ts": "export const f = <T,>(x: T): T => x as T;\n",
    "a.tsx": "export const A = () => <div className='x'>{1}</div>;\n",
    "a.js": "class A { #x = 1; get x() { return this.#x ?? 2; } }\n",
    "a.jsx": "const a = <b c={1} />;\n",
    "a.mts": "type A = { readonly [K in keyof B]?: B[K] };\n",
}
BAD_TREES = {
    "a.ts": "export const f = (x: number => x;\n",
    "a.tsx": "export const A = () => <div>{1</div>;\n",
    "a.js": "class A { get x() { return 1; }\n",
    "a.jsx": "const a = <b c={1 />;\n",
    "a.mts": "type A = { a: };\n",
}


def verdict(before: dict[str, str], after: dict[str, str]) -> VerifierResult:
    return verify_candidate(Candidate(after, tuple(sorted({*before, *after})), before))


@pytest.mark.parametrize("path", GOOD)
def test_files_that_parse_and_files_that_do_not(path: str) -> None:
    assert verdict({}, {path: GOOD[path]}).status == "passed"
    assert verdict({path: BAD[path]}, {path: GOOD[path]}).status == "passed"
    assert verdict({path: BAD[path]}, {path: BAD[path] + "\n"}).status == "skipped"
    broken = verdict({path: GOOD[path]}, {path: BAD[path]})
    assert (broken.status, broken.score, broken.category) == ("failed", 0.0, "build_lint_compile")
    assert broken.feedback.startswith(f"{path}:")


@needs_tree_sitter
@pytest.mark.parametrize("path", GOOD_TREES)
def test_typescript_and_javascript(path: str) -> None:
    assert find_problems(path, GOOD_TREES[path]) == []
    assert verdict({path: GOOD_TREES[path]}, {path: BAD_TREES[path]}).status == "failed"
    assert verdict({path: BAD_TREES[path]}, {path: BAD_TREES[path]}).status == "skipped"


@needs_tree_sitter
def test_more_errors_than_before_fail() -> None:
    before = "let a = ;\nlet b = 1;\nlet c = 2;\n"
    assert [line for line, _ in cast(list[Problem], find_problems("a.ts", before))] == [1]
    worse = verdict({"a.ts": before}, {"a.ts": before.replace("= 2", "= = 2")})
    assert (worse.status, worse.metrics) == ("failed", {"files": 1.0})
    assert "a.ts:3: this does not parse: `let c = = 2;`" in worse.feedback


@pytest.mark.skipif(TREE_SITTER, reason="the extra `verify` is installed")
def test_without_tree_sitter_the_file_is_skipped() -> None:
    result = verdict({}, {"a.ts": "const x = ("})
    assert (result.status, result.feedback) == ("skipped", "a.ts needs tree-sitter; install the extra `verify`.")


def test_the_feedback_names_line_and_text() -> None:
    result = verdict({}, {"src/a.py": "x = 1\ny = (2\n", "b.json": "{}"})
    assert result.feedback == "src/a.py:2: '(' was never closed: `y = (2`"
    assert (result.score, result.metrics) == (0.5, {"files": 2.0})


def test_other_and_deleted_files_are_skipped() -> None:
    assert verdict({}, {"README.md": "# ("}).feedback == "There is no parser for README.md."
    assert verdict({"a.py": "x"}, {}).status == "skipped"
    assert verdict({}, {"a.py": "x\n", "README.md": "("}).status == "passed"
    assert verdict({}, {"a.json": "1" * 1_000_001}).status == "skipped"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "(" * 100_000),
        ("a.py", "-" * 100_000 + "1"),
        ("a.py", "x" + ".a" * 100_000),
        ("a.py", "x = 1\0"),
        ("a.py", "x = '\ud800'"),
        ("a.py", "x = " + "9" * 5000),
        ("a.json", "[" * 100_000),
        ("a.json", "9" * 5000),
        ("a.toml", "a = " + "[" * 100_000),
        ("a.toml", "a = " + "9" * 5000),
        ("a.yaml", "[" * 5_000),
        ("a.yaml", "a: \0"),
    ],
)
def test_hostile_files_do_not_parse(path: str, text: str) -> None:
    assert verdict({}, {path: text}).status == "failed"


@settings(deadline=None)
@given(st.sampled_from(sorted({*GOOD, *GOOD_TREES})), st.text())
def test_no_file_raises(path: str, text: str) -> None:
    assert verdict({}, {path: text}).status in ("passed", "failed", "skipped")


def test_a_completion_is_checked_by_its_answer() -> None:
    spec: dict[str, Any] = {"files": {"a.py": "x = 1\n"}}
    diff = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = (1\n"
    assert verify(diff, spec).category == "build_lint_compile"
    assert verify(diff.replace("(", ""), spec).category == "malformed_output", "nothing changes"
    call = json.dumps({"name": "write", "arguments": {"path": "a.py", "content": "x = 2\n"}})
    assert verify(call, spec).status == "passed"
    assert verify("words", spec).feedback.startswith("There is nothing to parse. no_patch")
