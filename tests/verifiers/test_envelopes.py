"""Patches between `*** Begin Patch` and `*** End Patch`, and hunks that name what stands above."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.verifiers.answer import candidate_of
from rewards.verifiers.candidate import Candidate, Failure, Refusal
from rewards.verifiers.patches import verify

F = "def f(x):\n    if x:\n        return 1\n    return 0\n"
G = F.replace("f(x)", "g(x)")
CLASSES = "class A:\n    def f(self):\n        return 1\n\n\nclass B:\n    def f(self):\n        return 1\n"
FILES = {"m.py": f"import re\n\n\n{F}\n\n{G}", "src/c.py": CLASSES, "old.py": "x = 1\ny = 2\n"}
IN_G = "@@ def g(x):\n     if x:\n-        return 1\n+        return 2\n"
AFTER_G = FILES["m.py"].replace(G, G.replace("return 1", "return 2"))


def patch(body: str) -> str:
    return f"*** Begin Patch\n{body}*** End Patch\n"


UPDATE = patch(f"*** Update File: m.py\n{IN_G}")
FORMS = {
    "bare": UPDATE,
    "prose": f"The second one is wrong:\n\n{UPDATE}\nDone.",
    "fenced": f"```\n{UPDATE}```\n",
    "hinted": f"```diff\n{UPDATE}```\n",
    "crlf": UPDATE.replace("\n", "\r\n"),
    "in_a_list": "1. This:\n\n" + "".join(f"   {line}\n" for line in f"```\n{UPDATE}```".split("\n")),
    "shell": f"apply_patch <<'EOF'\n{UPDATE}EOF\n",
    "call": json.dumps({"name": "apply_patch", "arguments": {"input": UPDATE}}),
    "argv": json.dumps({"name": "apply_patch", "arguments": {"command": ["apply_patch", UPDATE]}}),
    "blank_lost_its_space": patch(f"*** Update File: m.py\n{IN_G}\n"),
    "unified": f"--- a/m.py\n+++ b/m.py\n{IN_G}",
    "unified_with_numbers": f"--- a/m.py\n+++ b/m.py\n{IN_G}".replace("@@ def g(x):", "@@ def g(x): @@"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form: str) -> None:
    for answer in ("any", "patch"):
        found = candidate_of(FORMS[form], {"files": FILES, "answer": answer, "allowed": ["*"]})
        assert isinstance(found, Candidate), found
        assert found.files == FILES | {"m.py": AFTER_G}


BOTH = "@@ class B:\n@@ def f(self):\n-        return 1\n+        return 2\n"
ENDS = "-        return 1\n+        return 2\n*** End of File\n"


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("*** Add File: new/n.py\n+a = 1\n+\n+b = 2\n", {"new/n.py": "a = 1\n\nb = 2\n"}),
        ("*** Delete File: old.py\n", {"old.py": None}),
        ("*** Update File: old.py\n*** Move to: new.py\n", {"old.py": None, "new.py": "x = 1\ny = 2\n"}),
        ("*** Update File: old.py\n*** Move to: n.py\n x = 1\n-y = 2\n+y = 3\n", {"old.py": None, "n.py": "x = 1\ny = 3\n"}),
        (f"*** Update File: src/c.py\n{BOTH}", {"src/c.py": "2".join(CLASSES.rsplit("1", 1))}),
        (f"*** Update File: src/c.py\n{ENDS}", {"src/c.py": "2".join(CLASSES.rsplit("1", 1))}),
        ("*** Update File: old.py\n@@ no such line\n-y = 2\n+y = 3\n", {"old.py": "x = 1\ny = 3\n"}),
        (f"*** Delete File: old.py\n*** Update File: m.py\n{IN_G}", {"old.py": None, "m.py": AFTER_G}),
    ],
)  # fmt: skip
def test_files_are_added_moved_and_deleted(body: str, after: dict[str, str | None]) -> None:
    found = candidate_of(patch(body), {"files": FILES, "allowed": ["*"]})
    assert isinstance(found, Candidate), found
    expected = {**FILES, **{path: text for path, text in after.items() if text is not None}}
    for path in [path for path, text in after.items() if text is None]:
        del expected[path]
    assert found.files == expected


@pytest.mark.parametrize(
    ("completion", "failure", "says"),
    [
        (UPDATE.replace("*** End Patch\n", ""), "truncated", "ends before `*** End Patch`"),
        (patch(""), "malformed", "changes no file"),
        (patch("x = 1\n"), "malformed", "belongs to no file"),
        (patch("*** Rename File: a\n"), "malformed", "belongs to no file"),
        (patch("*** Update File: m.py\n"), "malformed", "changes nothing in m.py"),
        (patch("*** Update File: m.py\n@@\nreturn 1\n"), "malformed", "begins with none of"),
        (patch("*** Add File: n.py\nx = 1\n"), "malformed", "does not begin with `+`"),
        (patch("*** Add File: m.py\n+x = 1\n"), "context_not_found", "exists already"),
        (patch("*** Add File: ../n.py\n+x = 1\n"), "path_not_allowed", "leaves the workspace"),
        (patch("*** Delete File: n.py\n"), "file_unknown", "no file `n.py`"),
        (patch("*** Delete File: old.py\nx = 1\n"), "malformed", "is not part of it"),
        (patch("*** Update File: m.py\n-        return 1\n+        return 2\n"), "ambiguous", "2 times"),
        (patch("*** Update File: m.py\n@@ def h(x):\n-        return 1\n+        return 2\n"), "ambiguous", "2 times"),
        (patch("*** Update File: m.py\n@@ def g(x):\n+    y = 1\n"), "context_not_found", "no lines of the file"),
        (patch("*** Update File: m.py\n-  return 7\n+  return 8\n"), "context_not_found", "nearest is line"),
        (patch("*** Update File: tests/test_m.py\n-a\n+b\n"), "file_unknown", "no file"),
    ],
)  # fmt: skip
def test_what_cannot_be_applied_says_why(completion: str, failure: Failure, says: str) -> None:
    found = candidate_of(completion, {"files": FILES, "answer": "any", "allowed": ["*"]})
    assert isinstance(found, Refusal), found
    assert (found.failure, says in found.why) == (failure, True), found


LINES = st.sampled_from(
    ("*** Begin Patch", "*** End Patch", "*** Update File: m.py", "*** Add File: n.py", "```", "",
     "*** Move to: o.py", "*** Delete File: old.py", "*** End of File", "@@ def g(x):", "@@",
     "-        return 1", "+x", " ")
)  # fmt: skip


@given(st.lists(LINES, max_size=12), st.sampled_from([True, False, None]))
def test_no_patch_makes_it_raise(lines: list[str], truncated: bool | None) -> None:
    spec = {"files": FILES, "truncated": truncated, "allowed": ["*"]}
    assert verify("\n".join(lines), spec).status in {"passed", "failed"}


def test_code_that_speaks_of_patches_is_code() -> None:
    code = 'BEGIN = """\n*** Begin Patch\n"""\n\n\ndef f(x):\n    return 2\n'
    found = candidate_of(f"```python\n{code}```\n", {"files": {"m.py": F}, "answer": "any"})
    assert isinstance(found, Candidate), found
    assert found.files["m.py"] == code
