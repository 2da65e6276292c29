"""An answer that only removes code is refused, and no answer takes quadratic time."""

import json
from typing import Any

import pytest

from rewards.verifiers import syntax
from rewards.verifiers.answer import read_candidate
from rewards.verifiers.reward import VerifierReward, attacks, self_test
from rewards.verifiers.rubric import Rubric
from tests.verifiers.refusals import refusal

CODE = "def f():\n    return 1\n"
SPEC: dict[str, Any] = {"files": {"a.py": CODE}}
LONG = 300_000


@pytest.mark.parametrize(
    "answer",
    [
        "```python\npass\n```",
        "```python\n```",
        "```python\n```\n" * 1000,
        '```python\n"""Words."""\n...\n# f\n```',
        "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,1 @@\n-def f():\n-    return 1\n+pass\n",
    ],
)
def test_a_file_without_its_code_is_refused(answer: str) -> None:
    result = syntax.verify(answer, SPEC)
    assert (result.status, result.category) == ("failed", "malformed_output")
    assert "leaves no code in a.py" in result.feedback


def test_files_without_code_may_be_emptied() -> None:
    two = {"files": {"a.py": CODE, "b.py": "# nothing yet\n"}}
    call = {"name": "write", "arguments": {"path": "b.py", "content": "pass\n"}}
    read_candidate(json.dumps(call), two)
    moved = (
        "--- a/a.py\n+++ b/a.py\n@@ -1,2 +0,0 @@\n-def f():\n-    return 1\n"
        "--- a/b.py\n+++ b/b.py\n@@ -1 +1,2 @@\n-# nothing yet\n+def f():\n+    return 1\n"
    )
    read_candidate(moved, two)


def test_the_self_test_deletes_the_code() -> None:
    row = {"prompt": "Fix f.", "verifier_spec": json.dumps(SPEC)}
    names = [name for name, _ in attacks(row)]
    assert {"code_deleted", "code_deleted_by_a_diff", "code_deleted_by_a_write"} <= set(names)
    assert self_test(VerifierReward(Rubric([syntax.verify])), [row]) == []


@pytest.mark.parametrize("opening", ['{"name": "write", ', "{", "```python\n", "a"])
def test_openings_without_an_end_are_skipped(opening: str) -> None:
    """Where each looks for its own end, this takes minutes."""
    text = opening * (LONG // len(opening))
    refusal(text, SPEC)
