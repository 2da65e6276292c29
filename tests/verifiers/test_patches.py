"""A diff is applied as intended, or not at all."""

import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.verifiers.candidate import Failure, Refusal, refused_path
from rewards.verifiers.patches import apply_patch, verify
from tests.verifiers.diff_cases import MUTATIONS, Edit, cut, real_edits, unified

CODE = """import os


def first(items):
\treturn items[0]


def second(items):
\tif len(items) < 2:
\t\treturn None
\treturn items[1]


def last(items):
\treturn items[-1]


NONE = None
"""
EDIT = Edit("src/items.py", CODE, CODE.replace("import os", "import sys").replace("[-1]", "[len(items) - 1]"))
CHANGE = """--- a/src/items.py
+++ b/src/items.py
@@ -9,3 +9,3 @@ def second(items):
 \tif len(items) < 2:
-\t\treturn None
+\t\treturn 0
 \treturn items[1]
"""


def files_after(diff: str, files: dict[str, str] | None = None, **spec: Any) -> dict[str, str]:
    return apply_patch(diff, {"files": files or {"src/items.py": CODE}, **spec}).files


def refusal(diff: str, files: dict[str, str] | None = None, **spec: Any) -> Refusal:
    with pytest.raises(Refusal) as refused:
        files_after(diff, files, **spec)
    return refused.value


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_diffs_as_models_write_them_apply(mutation: str) -> None:
    diff = MUTATIONS[mutation](unified(EDIT), random.Random(0))
    assert files_after(diff) == {"src/items.py": EDIT.after}


@pytest.mark.parametrize(
    ("failure", "says", "diff"),
    [
        ("no_patch", "no unified diff", "I would change `return None` to `return 0`."),
        ("no_patch", "no unified diff", ""),
        ("no_patch", "no unified diff", "```python\nreturn 0\n```"),
        ("truncated", "close the fence", f"```diff\n{CHANGE}"),
        ("truncated", "ends before its last hunk", CHANGE[:-20]),
        ("malformed", "does not begin with", f"```diff\n{CHANGE}}} // end\n```"),
        ("malformed", "where the diff ends", f"{CHANGE.replace(',3', ',9')}\n+ I hope it helps.\n{CHANGE}"),
        ("malformed", "outside", f"```diff\n{CHANGE}```\n{CHANGE}"),
        ("malformed", "a symlink",
         "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+src/items.py\n"),
        ("path_not_allowed", "leaves the workspace", CHANGE.replace("src/", "../")),
        ("path_not_allowed", "not a relative path", CHANGE.replace("a/src", "/src").replace("b/src", "/src")),
        ("path_not_allowed", "leave it alone", CHANGE.replace("src/items.py", ".git/hooks/pre-commit")),
        ("file_unknown", "did you mean `src/items.py`", CHANGE.replace("src/items", "src/item")),
        ("context_not_found", "nearest is line 9: `if len(items) < 2:`", CHANGE.replace("< 2", "< 3")),
        ("context_not_found", "not next to each other", CHANGE.replace(" \tif len(items) < 2:", " def last(items):")),
        ("context_not_found", "no lines of the file", "--- a/src/items.py\n+++ b/src/items.py\n@@ -1,0 +2,1 @@\n+x\n"),
        ("context_not_found", "indented differently", CHANGE.replace("\t", "    ")),
        ("context_not_found", "no lines of the file", "--- a/src/items.py\n+++ b/src/items.py\n@@ @@\n \n-\n \n"),
        ("ambiguous", "at lines 12 and 13", "--- a/src/items.py\n+++ b/src/items.py\n@@ @@\n-\tpass\n+\treturn\n"),
        ("ambiguous", "same lines", f"```diff\n{CHANGE}```\n```diff\n{CHANGE}```"),
        ("nothing_changed", "leaves every file", CHANGE.replace("return 0", "return None")),
    ],
)  # fmt: skip
def test_a_refused_diff_has_a_reason(failure: Failure, says: str, diff: str) -> None:
    doubled = CODE.replace("items[1]\n", "items[1]\n\tpass\n\tpass\n")
    refused = refusal(diff, {"src/items.py": doubled})
    assert refused.failure == failure
    assert says in refused.why


def test_the_caller_may_set_truncated() -> None:
    bare = CHANGE.replace("-9,3 +9,3 ", "")
    assert refusal(CHANGE, truncated=True).failure == "truncated"
    assert files_after(bare, truncated=False) == files_after(CHANGE)
    assert refusal(bare.removesuffix("\n")).failure == "truncated"
    assert files_after(bare.removesuffix("\n"), truncated=False) == files_after(CHANGE)


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_items.py", "src/test_items.py", "conftest.py", "src/conftest.py", "pytest.ini",
        "src/cli.test.ts", "src/__tests__/cli.ts", ".git/config", "src/.GIT/config", "/etc/passwd",
        "../up.py", "src/../../up.py", "~/.bashrc", "C:/x.py", "src\\x.py", "src//x.py", "", "a\0b",
        "lib/x.py",
    ],
)  # fmt: skip
def test_paths_that_may_not_be_written(path: str) -> None:
    spec = {"files": {path: "x\n"}, "allowed": ["src/*", "tests/*", "*.ini", "conftest.py", ".git/*"]}
    refused = refused_path(path, spec)
    assert refused is not None
    assert refused.failure == "path_not_allowed"


def test_paths_that_may_be_written() -> None:
    assert refused_path("src/deep/x.py", {"files": {}, "allowed": ["src/*"]}) is None
    assert refused_path("src/contest.py", {"files": {"src/contest.py": ""}}) is None
    assert refused_path("tests/x.py", {"files": {"tests/x.py": ""}, "locked": []}) is None


def test_files_are_created_moved_and_deleted() -> None:
    files = {"src/a.py": "one\ntwo\n"}
    made = "--- /dev/null\n+++ b/src/b.py\n@@ -0,0 +1,2 @@\n+x\n+y\n"
    assert files_after(made, files, allowed=["src/*"]) == {**files, "src/b.py": "x\ny\n"}
    assert refusal(made, files).failure == "path_not_allowed"
    assert refusal(made, {"src/b.py": "z\n"}).failure == "context_not_found"
    gone = "--- a/src/a.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"
    assert files_after(gone, files) == {}
    assert refusal(gone.replace("-two\n", ""), files, truncated=False).failure == "context_not_found"
    moved = "diff --git a/src/a.py b/src/c.py\nsimilarity index 90%\nrename from src/a.py\nrename to src/c.py\n"
    assert files_after(moved, files, allowed=["src/*"]) == {"src/c.py": "one\ntwo\n"}
    changed = moved + "--- a/src/a.py\n+++ b/src/c.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    assert files_after(changed, files, allowed=["src/*"]) == {"src/c.py": "one\n2\n"}


@pytest.mark.parametrize(
    ("before", "diff", "after"),
    [
        ("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "a\r\nc\r\n"),
        ("a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "a\nc"),
        ("a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n", "a\nc\n"),
        ("a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n", "a\nc"),
        ("a\nb", "@@ -1,2 +1,3 @@\n a\n b\n+c\n", "a\nb\nc"),
        ("", "@@ -0,0 +1 @@\n+a\n", "a\n"),
        ("a\n-- b\nc\n", "@@ -1,3 +1,3 @@\n a\n--- b\n+++ b\n c\n", "a\n++ b\nc\n"),
        ("a\fb\nc\n", "@@ -1,2 +1,2 @@\n a\fb\n-c\n+d\n", "a\fb\nd\n"),
    ],
)  # fmt: skip
def test_line_endings_do_not_change(before: str, diff: str, after: str) -> None:
    assert files_after(f"--- a/x\n+++ b/x\n{diff}", {"x": before}) == {"x": after}


def test_the_verdict() -> None:
    spec = {"files": {"src/items.py": CODE}}
    good = verify(CHANGE, spec)
    assert (good.status, good.score, good.metrics) == ("passed", 1.0, {"files": 1.0})
    half = verify(unified(EDIT).replace("items[-1]", "items[-2]"), spec)
    assert (half.status, half.score, half.category) == ("failed", 0.25, "patch_apply")
    assert half.feedback.startswith("context_not_found: ")
    assert verify("", spec).category == "malformed_output"


LINES = st.lists(st.sampled_from(["a", "b", "\tc", "  d", "", "- e", "+ f", "x = 1", "```"]), max_size=25)


@settings(deadline=None, max_examples=300)
@given(LINES, LINES, st.booleans(), st.booleans(), st.sampled_from(sorted(MUTATIONS)), st.integers(0, 9))
def test_an_applied_diff_is_the_intended_one(
    before: list[str], after: list[str], open_before: bool, open_after: bool, name: str, seed: int
) -> None:
    """Whatever the files are: even those full of lines that are alike."""
    edit = Edit(
        "x.txt",
        "\n".join(before) + "\n" * (bool(before) and not open_before),
        "\n".join([*before[: len(before) // 2], *after]) + "\n" * (not open_after),
    )
    spec = {"files": {"x.txt": edit.before}}
    with suppress(Refusal):
        result = apply_patch(MUTATIONS[name](unified(edit), random.Random(seed)), spec)
        assert result.files == {"x.txt": edit.after}


@settings(deadline=None, max_examples=300)
@given(st.text(st.sampled_from("ab \n+-@`~\\<|>/0123 ,\t\r")), st.sampled_from([True, False, None]))
def test_no_completion_raises(text: str, truncated: bool | None) -> None:
    diff = f"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n{text}"
    for completion in (text, diff, f"```diff\n{diff}\n```"):
        verify(completion, {"files": {"x": "a\nb\n"}, "truncated": truncated})


def test_paths_quoted_by_git() -> None:
    diff = '--- "a/\\303\\251.py"\n+++ "b/\\303\\251.py"\n@@ -1 +1 @@\n-a\n+b\n'
    assert files_after(diff, {"é.py": "a\n"}) == {"é.py": "b\n"}
    up = diff.replace("\\303\\251", "\\056\\056/x")
    assert refusal(up, {"é.py": "a\n"}).failure == "path_not_allowed"


def test_a_line_with_different_indentation_is_named() -> None:
    diff = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n def f():\n-  return 1\n+  return 2\n"
    assert "line 2 of the file" in refusal(diff, {"x": "def f():\n    return 1\n"}).why


TRACES = os.environ.get("PIMONO_TRACES", "")


@pytest.fixture(scope="module")
def recorded() -> list[Edit]:
    if not TRACES:
        pytest.skip("PIMONO_TRACES is not set")
    return list(real_edits(Path(TRACES) / "pi"))


def outcomes(
    edits: list[Edit], change: Callable[[str, random.Random], str], truncated: bool | None = None
) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number, edit in enumerate(edits):
        diff = change(unified(edit), random.Random(number))
        spec: dict[str, Any] = {"files": {edit.path: edit.before}, "locked": []}
        spec["truncated"] = truncated
        try:
            result = apply_patch(diff, spec)
        except Refusal:
            counts["refused"] += 1
        else:
            counts["right" if result.files[edit.path] == edit.after else "wrong"] += 1
    return counts


@pytest.mark.parametrize("truncated", [None, False])
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_recorded_edits_are_recovered(recorded: list[Edit], mutation: str, truncated: bool | None) -> None:
    counts = outcomes(recorded, MUTATIONS[mutation], truncated)
    assert len(recorded) >= 120
    assert counts["wrong"] == 0
    assert counts["right"] >= 0.96 * len(recorded)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9, 0.97])
def test_truncated_recorded_edits_are_never_applied(recorded: list[Edit], share: float) -> None:
    assert outcomes(recorded, lambda diff, _: cut(diff, share))["refused"] == len(recorded)
    fenced = outcomes(recorded, lambda diff, _: cut(f"```diff\n{diff}```\n", share))
    assert fenced["refused"] == len(recorded)


F = "def f(x):\n    if x:\n        return 1\n    return 0\n"
G = F.replace("f(x)", "g(x)")
CLASSES = "class A:\n    def f(self):\n        return 1\n\n\nclass B:\n    def f(self):\n        return 1\n"
ABOVE = {"m.py": f"{F}\n{G}", "c.py": CLASSES}
IN_G = "@@ def g(x):\n     if x:\n-        return 1\n+        return 2\n"
IN_B = "@@ class B:\n@@ def f(self):\n-        return 1\n+        return 2\n"


@pytest.mark.parametrize(
    ("path", "hunk"), [("m.py", IN_G), ("m.py", IN_G.replace("g(x):", "g(x): @@")), ("c.py", IN_B)]
)
def test_a_hunk_may_quote_lines_above_it(path: str, hunk: str) -> None:
    found = apply_patch(f"--- a/{path}\n+++ b/{path}\n{hunk}", {"files": ABOVE})
    assert found.files[path] == "2".join(ABOVE[path].rsplit("1", 1))


@pytest.mark.parametrize("above", ["", " def h(x):"])
def test_lines_above_that_are_missing_leave_it_ambiguous(above: str) -> None:
    diff = f"--- a/m.py\n+++ b/m.py\n@@{above}\n-        return 1\n+        return 2\n"
    assert refusal(diff, ABOVE).failure == "ambiguous"
