"""Score completions for `pimono_sdpo`: rewards for TRL, and verifiers that run in a sandbox.

A reward is a plain function that TRL calls. To write your own, take the columns of the rows that you
need as keyword arguments and return one number per completion:

    from rewards import text_of

    def short_answer(prompts, completions, **columns):
        return [1.0 if len(text_of(one)) < 200 else 0.0 for one in completions]

To score a completion by what it does, combine verifiers in a rubric; `rewards.verifiers` describes
how to write one:

    from rewards import Rubric, VerifierReward
    from rewards.verifiers import tests

    reward = VerifierReward(Rubric(gates=[tests.verify]))
"""

from rewards.answers import text_of
from rewards.attacks import self_test
from rewards.trace_grounding import trace_grounding_reward
from rewards.verifiers.reward import VerifierReward
from rewards.verifiers.rubric import BadSpec, Rubric, RubricResult, Verifier, VerifierResult

__all__ = [
    "BadSpec",
    "Rubric",
    "RubricResult",
    "Verifier",
    "VerifierResult",
    "VerifierReward",
    "self_test",
    "text_of",
    "trace_grounding_reward",
]
