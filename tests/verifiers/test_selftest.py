"""The self-test passes sound rewards and reports the flaws of others."""

import json
from collections.abc import Sequence
from typing import Any

from rewards import trace_grounding_reward
from rewards.verifiers import patches, syntax
from rewards.verifiers.reward import Finding, VerifierReward, self_test
from rewards.verifiers.rubric import Rubric

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
TASK = [{"role": "user", "content": f"`total` counts instead of adding. src/total.py:\n\n{CODE}"}]
ROW = {
    "prompt": TASK,
    "privileged_context": "AssertionError: assert 3 == 6\nsrc/total.py:4: count += 1",
    "reward_terms": ["assertionerror", "src/total.py", "count"],
}
PATCH = {"files": {"src/total.py": CODE}}
CALL = json.dumps({"name": "write", "arguments": {"path": "src/total.py", "content": FIXED}})


def rows(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**ROW, "verifier_spec": json.dumps(spec)}] * 2


def test_the_rubric_of_patches_is_sound() -> None:
    assert self_test(VerifierReward(Rubric([patches.verify], [(syntax.verify, 1.0)])), rows(PATCH)) == []


def test_the_heuristic_is_sound_at_its_threshold() -> None:
    assert self_test(trace_grounding_reward, [ROW], threshold=0.35) == []


def test_unsound_rewards_are_found() -> None:
    def length_reward(completions: Sequence[Any], **_: object) -> list[float]:
        return [min(1.0, len(c[0]["content"]) / 300) for c in completions]

    def never_reward(completions: Sequence[Any], **_: object) -> list[float | None]:
        return [None for _ in completions]

    assert Finding(0, "ten_times_the_length", 1.0) in self_test(length_reward, [ROW])
    assert self_test(never_reward, [ROW]) == []


def test_a_context_with_the_answer_is_found() -> None:
    reward = VerifierReward(Rubric([patches.verify]))
    leaky = [{**rows(PATCH)[0], "privileged_context": DIFF}]
    assert "context_copy" in {finding.case for finding in self_test(reward, leaky)}
