"""Write your own reward, test it on answers that must not win, and use it as a verifier.

    python examples/own_reward.py rows

TRL uses it like any reward: `GRPOTrainer(reward_funcs=[checks_first_reward], ...)`. In the folder of
this file, these commands train with the reward, and with the verifier:

    pimono-sdpo train rows --reward own_reward:checks_first_reward
    pimono-sdpo train rows --reward verifiers --gate own_reward:verify
"""

import re
import sys
from typing import Any

from datasets import load_dataset

from rewards import self_test
from rewards.answers import text_of
from rewards.verifiers.rubric import VerifierResult, failed, passed

CHECK = re.compile(r"```(?:bash|sh)\n[^`]*\b(?:pytest|npm test|cargo test|go test|tsc)\b")


def checks_first_reward(completions: list[Any], **_: object) -> list[float]:
    """Reward an answer that runs the project's tests or type checker.

    >>> checks_first_reward(["I look first.\\n```bash\\nnpm test\\n```", "Done."])
    [1.0, 0.0]
    """
    return [float(bool(CHECK.search(text_of(completion)))) for completion in completions]


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Check the same as a verifier; `spec` is the row's `verifier_spec`, which is not needed here."""
    if CHECK.search(completion):
        return passed("checks_first")
    feedback = "Run the tests or the type checker before you change anything."
    return failed("checks_first", "command_error", feedback, 0.0)


def main(folder: str) -> None:
    """Test the reward on empty answers, copies, refusals and lists of terms."""
    rows = load_dataset(folder, split="train")
    findings = self_test(checks_first_reward, list(rows), threshold=1.0)
    for finding in findings:
        print(f"row {finding.row}: `{finding.case}` gets {finding.reward} and must not win")
    print(f"{len(rows)} rows, {len(findings)} attacks that win")


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)
