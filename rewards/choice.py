"""The reward of a training run, by name, and the trial it must pass before anything is trained."""

from collections.abc import Collection, Sequence
from typing import Any

from datasets import Dataset

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.feedback import TRACE_TEMPLATE, Feedback
from pimono_sdpo.training.options import JobArguments
from pimono_sdpo.training.scoring import Scoring
from rewards.rescore import rubric_of
from rewards.trace_grounding import trace_grounding_reward
from rewards.verifiers.result import MAX_PARTIAL
from rewards.verifiers.reward import VerifierReward
from rewards.verifiers.selftest import self_test, table

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


def taught_by(
    job: JobArguments, rollout_template: str, tokenizer: Any, end_ids: Collection[int]
) -> tuple[Scoring, Feedback]:
    """Return what scores completions and what the teacher of a failed one is told."""
    scoring = scoring_of(job.reward, job.gate, job.grade, tokenizer, end_ids)
    mode = job.feedback or ("trace" if scoring.told is None else "both")
    trace_template = TRACE_TEMPLATE if job.trace_template is None else job.trace_template
    return scoring, Feedback(rollout_template, mode, trace_template, job.feedback_tokens)


def teaching(job: JobArguments, feedback: Feedback) -> dict[str, Any]:
    """Return what of the job's own arguments decides the result of a training, as JSON."""
    return {
        "reward": job.reward,
        "gate": job.gate,
        "grade": job.grade,
        "tools": job.tools,
        "feedback": feedback.mode,
        "feedback_tokens": feedback.tokens,
        "trace_template": feedback.trace_template,
        "eval_split": job.eval_split,
        "eval_generations": job.eval_generations,
    }


def refuse_unsound(scoring: Scoring, rows: Dataset, threshold: float) -> int:
    """Try what must not win on the first rows; return how many rows were tried.

    Raises TrainingInputError with the table of what won.
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
