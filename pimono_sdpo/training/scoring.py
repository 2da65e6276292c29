"""What scores the completions of a run; the job hands it over, since it may import rewards."""

from collections.abc import Callable
from dataclasses import dataclass

from datasets import Dataset

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.feedback import Told

Reward = Callable[..., list[float | None]]


@dataclass(frozen=True)
class Scoring:
    """A reward of 0 to 1 and what comes with it.

    told       its texts on the completions of its last call, for the teacher; None when it has none
    column     the rows' column without which it cannot judge; None when only it can tell
    partial    the most it gives for what is not right: a success threshold must be above
    """

    reward: Reward
    told: Told | None = None
    column: str | None = None
    partial: float = 0.0

    def silent_rows(self, rows: Dataset) -> int:
        """Count the rows for which there is no reward, whatever the completion is."""
        if self.column is not None:
            return sum(not value for value in rows[self.column])
        columns = {name: list(rows[name]) for name in rows.column_names}
        said = [[{"role": "assistant", "content": ""}] for _ in range(len(rows))]
        prompts = columns.pop("prompt")
        return self.reward(prompts=prompts, completions=said, **columns).count(None)

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
                f"The rows have no column `{self.column}`, which this reward judges by; filter the "
                "traces again, or give --reward trace_grounding."
            )
