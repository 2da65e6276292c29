"""The reward of a training by name, its trial before the first step, and feedback for the teacher.

TRL gives `privileged_context` to the teacher of every completion as "feedback from your
unsuccessful earlier attempt", even where it succeeded. In the paper (Reinforcement Learning via
Self-Distillation, arXiv:2601.20802), feedback belongs to the completion that was just made and is
empty when it succeeded. `FeedbackBuilder` does that, with different words for each kind of text.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from trl.experimental.sdpo.sdpo_trainer import SuccessfulRolloutTeacherContextBuilder

from pimono_sdpo.errors import OwnCodeError, TrainingInputError
from pimono_sdpo.own_code import OwnReward, import_own
from pimono_sdpo.stage import source_hash
from pimono_sdpo.training.token_budget import neutralise, shorten_to_budget, special_tokens
from pimono_sdpo.training.tracking import keep_rollouts, log_rollouts
from rewards.rescore import build_rubric
from rewards.trace_grounding import trace_grounding_reward
from rewards.verifiers.call_formats import FAMILIES
from rewards.verifiers.reward import VerifierReward, find_model_format, needs_format, self_test
from rewards.verifiers.rubric import MAX_PARTIAL

Mode = Literal["rollout", "trace", "both", "none"]
Reward = Callable[..., list[float | None]]
# What a reward says about each completion of its last call; None or "" for nothing.
RewardFeedback = Callable[[], Sequence[str | None]]

TRACE_TEMPLATE = (
    "\nAnother agent has worked on this before. What its tools reported and its user corrected:\n\n{feedback_raw}\n\n"
)
# TRL would put its own words around the feedback; the builder's text goes through unchanged.
PASS_THROUGH = "{feedback_raw}"
# Two texts side by side can need a token or two more than each alone.
SEAM_TOKENS = 8
TRIED_ROWS = 8
# A sampled token that is half a character decodes to U+FFFD, which reads back as three bytes.
TOKENS_READ_BACK = 3
THINK = re.compile(r"<think>.*?</think>", re.DOTALL)
THOUGHTS = re.compile(r"<think>.*?</think>|<\|channel>.*?<channel\|>", re.DOTALL)


@dataclass(frozen=True)
class Feedback:
    """What the teacher of a failed completion reads, and in which words.

    mode     rollout: what the reward says about this completion; trace: the row's context;
             both: the first and below it the second, or the second alone where the reward says
             nothing; none
    tokens   of the model's own tokenizer, for the reward's text; longer ones lose their middle
    """

    rollout_template: str
    mode: Mode = "trace"
    trace_template: str = TRACE_TEMPLATE
    tokens: int = 256

    @property
    def asks_reward(self) -> bool:
        """Whether the reward's text is used."""
        return self.mode in ("rollout", "both")

    def worded(self, rollout: str | None, trace: str | None) -> str:
        """Return the text for a failed completion, "" when there is nothing to say."""
        text = self.rollout_template.format(feedback_raw=rollout) if self.asks_reward and _says(rollout) else ""
        if self.mode in ("trace", "both") and _says(trace):
            text += self.trace_template.format(feedback_raw=trace)
        return text


class FeedbackBuilder(SuccessfulRolloutTeacherContextBuilder):  # type: ignore[misc] # untyped
    """TRL's builder with the feedback of the current attempt; made for one trainer."""

    def __init__(self, trainer: Any, feedback: Feedback, reward_feedback: RewardFeedback | None = None) -> None:
        super().__init__(trainer)
        self.feedback, self.reward_feedback = feedback, reward_feedback
        tokenizer = trainer.processing_class
        self.special = special_tokens(tokenizer)
        self.ends = {tokenizer.pad_token, *tokenizer.convert_ids_to_tokens(trainer.eos_token_ids)}
        # TRL leaves the special tokens out of a demonstration, which are the syntax of tool calls:
        # for each of this batch as TRL words it, what the teacher reads instead.
        self.demonstrations: dict[str, str] = {}
        self.count: Callable[[str], int] = lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])

    def build(
        self, output: dict[str, Any], prompts: list[Any], rewards: torch.Tensor, feedbacks: list[Any] | None = None
    ) -> dict[str, torch.Tensor]:
        """Return TRL's teacher batch; a success gets no feedback, but may be shown one of its group."""
        trainer = self.trainer
        own: list[str | None] = [None] * len(prompts)
        if self.feedback.asks_reward and self.reward_feedback is not None:
            own = [
                self._shorten(str(text), self.feedback.tokens) if _says(text) else None
                for text in self.reward_feedback()
            ]
        succeeded = (rewards >= trainer.args.success_reward_threshold).tolist()
        worded = [
            None if success else self.feedback.worded(text, trace)
            for success, text, trace in zip(succeeded, own, feedbacks or [None] * len(prompts), strict=True)
        ]
        ids, tokenizer = output["completion_ids"], trainer.processing_class
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        pairs = zip(texts, tokenizer.batch_decode(ids), strict=True)
        self.demonstrations = dict(
            gather_object([(self._as_trl_does(text), self._with_syntax(whole)) for text, whole in pairs])
        )
        if trainer.accelerator.is_main_process:
            names = ("prompt", "completion", "reward", "feedback")
            sampled = zip(prompts, texts, rewards.tolist(), worded, strict=True)
            rollouts = [dict(zip(names, one, strict=True)) for one in sampled]
            keep_rollouts(trainer.state, rollouts)
            if "trackio" in trainer.args.report_to:
                log_rollouts(trainer.state.global_step + 1, rollouts)
        context: dict[str, torch.Tensor] = super().build(output, prompts, rewards, worded)
        spoken = [_says(text) and not success for success, text in zip(succeeded, own, strict=True)]
        for name, held in (("rollout_feedback_fraction", spoken), ("success_rate", succeeded)):
            every = gather_object(held)
            self.last_metrics[f"self_distillation/{name}"] = sum(every) / len(every)
        return context

    def _build_reprompt_text(self, prompt_text: str, solution_text: str, feedback_text: str) -> str:
        demonstration = self.demonstrations.get(solution_text, solution_text)
        text: str = super()._build_reprompt_text(prompt_text, demonstration, feedback_text)
        return text

    def _as_trl_does(self, text: str) -> str:
        """Word a completion as a demonstration of TRL."""
        if self.trainer.args.remove_thinking_from_demonstration:
            text = THINK.sub("", text).strip()
        return str(self.trainer.args.solution_template.format(successful_previous_attempt=text))

    def _with_syntax(self, text: str) -> str:
        """Word a completion with its special tokens in ordinary ones; it can also spell one."""
        for end in self.ends:
            text = text.replace(end, "")
        if self.trainer.args.remove_thinking_from_demonstration:
            text = THOUGHTS.sub("", text).strip()
        text = self._shorten(text, TOKENS_READ_BACK * self.trainer.max_completion_length) or ""
        return str(self.trainer.args.solution_template.format(successful_previous_attempt=text))

    def _shorten(self, text: str, tokens: int) -> str | None:
        return shorten_to_budget(neutralise(text, self.special)[0], tokens, self.count)


def _says(text: str | None) -> bool:
    return isinstance(text, str) and text.strip() != ""


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

    def find_unscored(self, rows: Dataset) -> list[int]:
        """Return the numbers of the rows without a reward, whatever the completion is."""
        if self.column is not None:
            return [at for at, value in enumerate(rows[self.column]) if not value]
        columns = {name: list(rows[name]) for name in rows.column_names} | {"prompts": list(rows["prompt"])}
        del columns["prompt"]
        empty = [[{"role": "assistant", "content": ""}] for _ in range(len(rows))]
        return [at for at, reward in enumerate(self.reward(completions=empty, **columns)) if reward is None]

    def check(self, threshold: float, weights: list[float] | None, columns: list[str]) -> None:
        """Raise TrainingInputError when no completion, or every one, would be a success."""
        best = sum(weights) if weights else 1.0
        if not self.partial * best < threshold <= best:
            raise TrainingInputError(
                f"success_reward_threshold is {threshold}, and this reward gives up to "
                f"{self.partial * best} to completions that fail and up to {best} to others; give "
                f"--success_reward_threshold {best}."
            )
        if self.column is not None and self.column not in columns:
            raise TrainingInputError(
                f"The rows have no column `{self.column}`, which this reward needs; filter the "
                "traces again, or give --reward outcome."
            )


def scoring_of(
    name: str, gates: Sequence[str], graded: Sequence[str], tokenizer: Any, end_ids: Collection[int] = ()
) -> Scoring:
    """Return `outcome` (next_call where it can verify), `verifiers`, `trace_grounding` or `module:name`."""
    if name == "verifiers":
        reward = VerifierReward(build_rubric(gates, graded), tokenizer, end_ids)
        return Scoring(reward, reward.feedback, "verifier_spec", MAX_PARTIAL)
    if gates or graded:
        raise TrainingInputError("--gate and --grade name verifiers; give --reward verifiers, or leave them out.")
    if name == "outcome":
        rubric = build_rubric([], ["next_call"])
        reward = VerifierReward(rubric, tokenizer, end_ids, fallback=trace_grounding_reward)
        return Scoring(reward, reward.feedback, partial=MAX_PARTIAL)
    if name == "trace_grounding":
        return Scoring(trace_grounding_reward)
    if ":" in name:
        return Scoring(OwnReward(name))
    raise TrainingInputError(
        f"--reward {name} is not outcome, verifiers or trace_grounding; give your own as module:name."
    )


def hash_own(names: Sequence[str]) -> dict[str, str]:
    """Return the hashes of the code that is named as `module:name`, perhaps with a weight."""
    own = {name: import_own(name) for name in (name.partition("=")[0] for name in names if ":" in name)}
    if wrong := [name for name, found in own.items() if not callable(found)]:
        raise OwnCodeError(f"`{wrong[0]}` is not a function; give the name of one.")
    return {name: source_hash(found) for name, found in own.items()}


def check_call_format(name: str, tokenizer: Any, rows: Dataset) -> None:
    """Raise TrainingInputError when no call of the model could be read, whatever it writes."""
    if name not in {"verifiers", "outcome"} or find_model_format(tokenizer):
        return
    if "verifier_spec" not in rows.column_names:
        return
    specs = (json.loads(text) for text in rows["verifier_spec"] if text)
    if any(isinstance(spec, dict) and needs_format(spec) for spec in specs):
        raise TrainingInputError(
            "The format in which this model calls tools is unknown, so that every call would score "
            f"0; use a model of {', '.join(FAMILIES)}, or one whose tokenizer has a "
            "`response_template`."
        )


def refuse_unsound(scoring: Scoring, rows: Dataset, threshold: float) -> int:
    """Try completions that must not win on the first rows; return how many rows were tried."""
    tried = list(rows.select(range(min(TRIED_ROWS, len(rows)))))
    if findings := self_test(scoring.reward, tried, threshold=threshold):
        raise TrainingInputError(
            f"The reward can be won without solving the task ({len(findings)} trials on {len(tried)} rows; the first, "
            f"`{findings[0].case}` on row {findings[0].row + 1}, gets {findings[0].reward:g}); give another reward or "
            "a higher success_reward_threshold."
        )
    return len(tried)
