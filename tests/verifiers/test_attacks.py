"""Answers that solve nothing win nowhere; right answers in unusual style do not lose."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from rewards import trace_grounding_reward
from rewards.attacks import attacks, self_test
from rewards.form import find_problem
from rewards.verifiers import patches, syntax, tests, tool_calls
from rewards.verifiers.reward import VerifierReward
from rewards.verifiers.rubric import Rubric, passed, skipped
from rewards.verifiers.tool_calls import definitions

CODE = "def total(items):\n    count = 0\n    for item in items:\n        count += 1\n    return count\n"
FIXED = CODE.replace("count += 1", "count += item")
DIFF = """--- a/src/total.py
+++ b/src/total.py
@@ -2,4 +2,4 @@
     count = 0
     for item in items:
-        count += 1
+        count += item
     return count
"""
TESTS = {
    "kind": "value",
    "module": "src/total.py",
    "entry": "total",
    "cases": [{"args": [[1, 2, 3]], "expected": 6}, {"args": [[]], "expected": 0}],
}
SPEC = {"files": {"src/total.py": CODE}, "allowed": ["src/total.py"], "tests": TESTS, "harness": "pi"}
FAILED = "python -m pytest tests/test_total.py"
ROW: dict[str, Any] = {
    "prompt": [{"role": "user", "content": f"`total` counts instead of adding. src/total.py:\n\n{CODE}"}],
    "privileged_context": f"$ {FAILED}\nAssertionError: assert 3 == 6\nsrc/total.py:4: count += 1",
    "reward_terms": ["assertionerror", "src/total.py", "count"],
    "tools": definitions("pi"),
    "verifier_spec": json.dumps({**SPEC, "failed_call": {"tool": "bash", "command": FAILED}}),
}
SHIPPED: dict[str, tuple[Any, float]] = {
    "trace_grounding": (trace_grounding_reward, 0.35),
    "tests": (VerifierReward(Rubric([], [(tests.verify, 1.0)])), 1.0),
    "calls, then tests": (VerifierReward(Rubric([tool_calls.verify], [(tests.verify, 1.0)])), 1.0),
    "patches, then syntax": (VerifierReward(Rubric([patches.verify], [(syntax.verify, 1.0)])), 1.0),
}


@pytest.mark.parametrize("name", [*SHIPPED])
def test_no_answer_that_solves_nothing_wins(name: str) -> None:
    reward, threshold = SHIPPED[name]
    assert len({case for case, _ in attacks(ROW)}) >= 120
    assert len({case for case, _ in attacks({"prompt": "Fix it."})}) >= 60
    assert self_test(reward, [ROW], threshold) == []


def test_a_reward_that_needs_only_a_valid_call_is_found_out() -> None:
    cases = {finding.case for finding in self_test(VerifierReward(Rubric([tool_calls.verify])), [ROW])}
    assert {"bash: true", "bash: rm -rf /", "read_of_anything"} <= cases


def test_an_answer_equal_to_the_right_one_does_not_count() -> None:
    def calls_true(completions: Sequence[Any], **_: object) -> list[float]:
        return [float('"true"' in json.dumps(one)) for one in completions]

    function = {"name": "bash", "arguments": {"command": "true"}}
    chosen = [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}]
    found = {finding.case for finding in self_test(calls_true, [{**ROW, "chosen": chosen}])}
    assert "bash: true" not in found
    assert "bash: true" in {finding.case for finding in self_test(calls_true, [ROW])}


def test_a_verifier_that_was_skipped_is_never_a_pass() -> None:
    def skips(completion: str, spec: dict[str, Any]) -> Any:
        return skipped("skips", "does not apply")

    def passes(completion: str, spec: dict[str, Any]) -> Any:
        return passed("passes")

    assert Rubric([passes], [(skips, 1.0)])("x", {}).reward is None
    assert Rubric([passes])("x", {}).reward == 1.0
    assert Rubric([skips], [(passes, 1.0)])("x", {}).reward == 1.0
    assert VerifierReward(Rubric([passes], [(skips, 1.0)]))(["p"], ["c"], verifier_spec=["{}"]) == [0.5]


def test_a_context_with_the_answer_is_found() -> None:
    leaky = [{**ROW, "privileged_context": DIFF}]
    found = {finding.case for finding in self_test(VerifierReward(Rubric([patches.verify])), leaky)}
    assert "context_copy" in found


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("python -m pytest tests/test_total.py -x", "the call is the failed one"),
        ("timeout 60 bash -c 'python -m pytest tests/test_total.py' 2>&1 | tail", "the call is the failed one"),
        ("python -m pytest tests/test_other.py", ""),
        ("rm build/a.o", ""),
        ("rm -rf node_modules", "the call destroys"),
        ("git stash drop", "the call destroys"),
        ("sed -i 's/1/item/' src/total.py", ""),
        ("true && :", "the command does nothing"),
    ],
)
def test_the_form_of_a_next_call(command: str, problem: str) -> None:
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    assert find_problem(call, ROW["tools"], json.loads(ROW["verifier_spec"])) == problem


def call(name: str, **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


OLD, NEW = "        count += 1\n", "        count += item\n"
RIGHT = {
    "a whole file": f"```python\n{FIXED}```",
    "a fix followed by a usage block": f"```python\n{FIXED}```\n\nUsage:\n\n```python\nprint(total([1, 2]))\n```",
    "one function with its file": f"**src/total.py**\n\n```python\n{FIXED}```",
    "a diff without a fence": f"I add the items.\n\n{DIFF}",
    "a diff with wrong numbers": f"```diff\n{DIFF.replace('@@ -2,4 +2,4 @@', '@@ -9,1 +9,1 @@')}```",
    "write": call("write", path="src/total.py", content=FIXED),
    "edit": call("edit", path="src/total.py", oldText=OLD, newText=NEW),
    "edits": call("edit", path="src/total.py", edits=[{"oldText": OLD, "newText": NEW}]),
    "str_replace_editor": call(
        "str_replace_editor", command="str_replace", path="/repo/src/total.py", old_str=OLD, new_str=NEW
    ),
    "*** Begin Patch": (
        "*** Begin Patch\n*** Update File: src/total.py\n@@ def total(items):\n     for item in items:\n"
        "-        count += 1\n+        count += item\n*** End Patch"
    ),
    "SEARCH/REPLACE": f"src/total.py\n```python\n<<<<<<< SEARCH\n{OLD}=======\n{NEW}>>>>>>> REPLACE\n```",
    "a heredoc": f"```bash\ncat > src/total.py <<'EOF'\n{FIXED}EOF\n```",
    "a heredoc in a call": call("bash", command=f"cat > src/total.py <<'EOF'\n{FIXED}EOF"),
}


@pytest.mark.parametrize("style", [*RIGHT])
def test_a_right_answer_in_unusual_style_does_not_lose(style: str) -> None:
    reward, _ = SHIPPED["tests"]
    columns = {"verifier_spec": [ROW["verifier_spec"]], "tools": [None]}
    assert reward([ROW["prompt"]], [[{"role": "assistant", "content": RIGHT[style]}]], **columns) == [1.0]
