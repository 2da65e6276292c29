"""The reward of a training by name, and the trial it must pass before anything is trained."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.feedback import RewardFeedback
from rewards.rescore import rubric_of
from rewards.trace_grounding import trace_grounding_reward
from rewards.verifiers.reward import VerifierReward, self_test, table
from rewards.verifiers.rubric import MAX_PARTIAL

Reward = Callable[..., list[float | None]]


@dataclass(frozen=True)
class Scoring:
    """A reward of 0 to 1 and what comes with it.

    feedback   its texts on the completions of its last call, for the teacher; None without any
    column     the column of the rows that it needs to score; None when only the reward knows
    partial    the most it gives to a failure; a success threshold must be above
    """

    reward: Reward
    feedback: RewardFeedback | None = None
    column: str | None = None
    partial: float = 0.0

    def count_unscored(self, rows: Dataset) -> int:
        """Count the rows without a reward, whatever the completion is."""
        if self.column is not None:
            return sum(not value for value in rows[self.column])
        columns = {name: list(rows[name]) for name in rows.column_names}
        empty = [[{"role": "assistant", "content": ""}] for _ in range(len(rows))]
        prompts = columns.pop("prompt")
        return self.reward(prompts=prompts, completions=empty, **columns).count(None)

    def check(self, threshold: float, weights: list[float] | None, columns: list[str]) -> None:
        """Raise TrainingInputError when no completion, or every one, would be a success."""
        best = sum(weights) if weights else 1.0
        if not 0 < threshold <= best:
            raise TrainingInputError(
                f"success_reward_threshold is {threshold} and the reward goes from 0 to {best}; "
                "give a threshold above 0 that it can reach."
            )
        if threshold <= self.partial * best:
            raise TrainingInputError(
                f"success_reward_threshold is {threshold} and this reward gives up to "
                f"{self.partial * best} to completions that fail; give "
                f"--success_reward_threshold {best}."
            )
        reserved = sorted({"completions", "completion_ids", "trainer_state"} & {*columns})
        if reserved:
            raise TrainingInputError(
                f"The rows have a column `{reserved[0]}`, a name that the trainer gives to rewards "
                "itself; rename the column."
            )
        if self.column is not None and self.column not in columns:
            raise TrainingInputError(
                f"The rows have no column `{self.column}`, which this reward needs; filter the "
                "traces again, or give --reward trace_grounding."
            )


TRIED_ROWS = 8


def scoring_of(
    name: str,
    gates: Sequence[str],
    graded: Sequence[str],
    tokenizer: Any,
    end_ids: Collection[int] = (),
) -> Scoring:
    """Return `trace_grounding`, or `verifiers` as `rubric_of` takes them.

    Raises TrainingInputError for names without --reward verifiers, OutputError for unknown ones.
    """
    if name == "verifiers":
        reward = VerifierReward(rubric_of(gates, graded), tokenizer, end_ids)
        return Scoring(reward, reward.feedback, "verifier_spec", MAX_PARTIAL)
    if gates or graded:
        raise TrainingInputError(
            "--gate and --grade name verifiers; give --reward verifiers, or leave them out."
        )
    return Scoring(trace_grounding_reward)


def refuse_unsound(scoring: Scoring, rows: Dataset, threshold: float) -> int:
    """Try completions that must not win on the first rows; return how many rows were tried.

    Raises TrainingInputError with a table of those that won.
    """
    tried = rows.select(range(min(TRIED_ROWS, len(rows))))
    findings = self_test(scoring.reward, list(tried), threshold=threshold)
    if findings:
        raise TrainingInputError(
            f"The reward can be won without solving the task ({len(findings)} of its trials on "
            f"{len(tried)} rows); give another reward or a higher success_reward_threshold.\n"
            f"{table(findings)}"
        )
    return len(tried)
