"""One change in every form that models use, and completions that are not an answer."""

import json
from typing import Any

import pytest

from rewards.verifiers.answer import read_candidate
from tests.verifiers.refusals import refusal

BEFORE = "import re\n\n\ndef f(x):\n    return x + 1\n\n\ndef g(x):\n    return f(x)\n"
AFTER = BEFORE.replace("x + 1", "x - 1")
SPEC = {"files": {"work/main.py": BEFORE}}
DIFF = "--- a/work/main.py\n+++ b/work/main.py\n@@ -4,2 +4,2 @@\n def f(x):\n-    return x + 1\n+    return x - 1\n"
WRITE = {"path": "work/main.py", "content": AFTER}
ONE = {"path": "work/main.py", "oldText": "x + 1", "newText": "x - 1"}
MANY = {"path": "work/main.py", "edits": [{"oldText": "x + 1", "newText": "x - 1"}]}


def write_call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


FORMS = {
    "block": f"The bug:\n\n```python\n{AFTER}```\nDone.",
    "block_without_language": f"```\n{AFTER}```",
    "draft_then_block": f"It was\n```python\n{BEFORE}```\nand must be\n```python\n{AFTER}```\n",
    "block_beside_a_shell": f"```python\n{AFTER}```\nRun it:\n```bash\npython work/main.py\n```\n",
    "one_function": "```python\ndef f(x):\n    return x - 1\n```",
    "crlf": f"Fixed:\r\n```python\n{AFTER}```\n".replace("\n", "\r\n"),
    "fence_in_a_list": "1. Fix:\n\n   ```python\n   def f(x):\n       return x - 1\n   ```\n2. Run it.\n",
    "said_beside_another": f"`work/main.py`:\n```python\n{AFTER}```\nand\n```python\ndef h(): pass\n```",
    "bare": AFTER,
    "bare_function": "def f(x):\n    return x - 1\n",
    "diff": DIFF,
    "fenced_diff": f"```diff\n{DIFF}```\n",
    "write": write_call("write", WRITE),
    "edit": write_call("edit", ONE),
    "edits": write_call("edit", MANY),
    "str_replace": write_call("str_replace", {"path": "work/main.py", "old_str": "x + 1", "new_str": "x - 1"}),
    "edit_everywhere": write_call("edit", {"path": "work/main.py", "old_string": "x + 1", "new_string": "x - 1", "replace_all": True}),
    "edit_then_write": write_call("edit", {**ONE, "newText": "x"}) + write_call("write", WRITE),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_files(form: str) -> None:
    found = read_candidate(FORMS[form], SPEC)
    assert found.files == {"work/main.py": AFTER}


@pytest.mark.parametrize(
    ("completion", "failure"),
    [("", "no_patch"), ("I would subtract one.", "no_patch"), (f"```python\n{AFTER}", "truncated"),
     (f"```python\n{BEFORE}```", "nothing_changed"), (f"```python\n{AFTER}```\n" * 10, "ambiguous"),
     (write_call("edit", {**ONE, "oldText": "y"}), "context_not_found"),
     (write_call("edit", {**ONE, "oldText": "x"}), "ambiguous"),
     (write_call("edit", {**ONE, "oldText": ""}), "context_not_found"),
     (write_call("edit", {**ONE, "path": "tests/test_a.py"}), "path_not_allowed"),
     (write_call("write", {**WRITE, "path": "../x.py"}), "path_not_allowed")],
)  # fmt: skip
def test_a_completion_without_an_answer_is_refused(completion: str, failure: str) -> None:
    found = refusal(completion, SPEC)
    assert found.failure == failure


def test_code_without_a_file_to_go_to_is_refused() -> None:
    files = {"a.py": "x = 1\n", "b.py": "y = 1\n"}
    found = refusal("```python\nx = 2\n```", {"files": files})
    assert "2 files could be meant" in found.why


def test_a_part_keeps_the_rest_with_its_decorators_and_brings_its_imports() -> None:
    before = '"""Doc."""\nfrom __future__ import annotations\nimport os\n\n@once\ndef f(): pass\n\nclass A: pass\n'
    code = "```python\nimport math\n\n@twice\ndef f():\n    return math.pi\n\ndef more(): pass\n```"
    found = read_candidate(code, {"files": {"a.py": before}})
    assert found.files["a.py"] == (
        '"""Doc."""\nfrom __future__ import annotations\nimport math\ndef more(): pass\nimport os\n\n'
        "@twice\ndef f():\n    return math.pi\n\nclass A: pass\n"
    )


DOC = "def f(x):\n    '''\n@@ a line\n--- a/x\n    '''\n    return x - 1\n"


@pytest.mark.parametrize("completion", [DOC, f"```python\n{DOC}```\n", f"```\n{DOC}```\n"])
def test_a_docstring_that_looks_like_a_diff_is_code(completion: str) -> None:
    found = read_candidate(completion, SPEC)
    assert "@@ a line" in found.files["work/main.py"]


TWO = {"a/m.py": "def f(): return 1\n", "b.py": "def f(): return 1\n", "test_b.py": "def f(): pass\n"}
NEW = "def f(): return 2\n"


@pytest.mark.parametrize(
    ("completion", "path"),
    [(f"```python {{}}\n{NEW}```", "a/m.py"), (f"```python:{{}}\n{NEW}```", "b.py"), (f"```{{}}\n{NEW}```", "b.py"),
     (f'```python title="{{}}"\n{NEW}```', "a/m.py"), (f"**{{}}**\n\n```python\n{NEW}```", "b.py"),
     (f"### File: `{{}}`\n```python\n{NEW}```", "a/m.py"), (f"1. In `{{}}`:\n\n   ```python\n   {NEW}   ```", "b.py"),
     (f"```python\n# {{}}\n{NEW}```", "a/m.py"), (f"# {{}}\n{NEW}", "b.py")],
)  # fmt: skip
def test_the_label_of_a_block_selects_the_file(completion: str, path: str) -> None:
    found = read_candidate(completion.format(path), {"files": TWO})
    assert found.changed == (path,)
    assert found.files[path].endswith(NEW)


def test_an_answer_may_have_several_files() -> None:
    both = "".join(f"**{path}**\n```python\n{NEW}```\n" for path in ("m.py", "b.py"))
    found = read_candidate(both, {"files": TWO})
    assert found.changed == ("a/m.py", "b.py")


@pytest.mark.parametrize(
    ("completion", "failure"),
    [(f"```python test_b.py\n{NEW}```", "path_not_allowed"), (f"I left b.py alone.\n```python\n{NEW}```", "no_patch"),
     (f"**b.py**\n```python\n{NEW}```\n**m.py**\n```python\n{NEW}", "truncated"),
     (f"```python b.py\n{NEW}    ```\n", "truncated"), (f"```python b.py\n{NEW}", "truncated")],
)  # fmt: skip
def test_a_path_does_not_turn_prose_into_an_answer(completion: str, failure: str) -> None:
    found = refusal(completion, {"files": TWO})
    assert found.failure == failure
