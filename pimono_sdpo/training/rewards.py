"""Find the reward of a training by its name, test it on answers that must not win, and build the teacher's feedback.

TRL shows the teacher `privileged_context` as "feedback from your unsuccessful earlier attempt", even
for a completion that succeeded. In the paper (Reinforcement Learning via Self-Distillation,
arXiv:2601.20802), feedback is about the completion just sampled, and empty when it succeeded.
`FeedbackBuilder` follows the paper and uses a template for each kind of text; with
`--teacher-wording trl` it leaves both as they are in TRL.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from string import Formatter
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from jinja2 import TemplateError
from trl.chat_template_utils import add_response_schema, supports_tool_calling
from trl.experimental.sdpo.sdpo_trainer import SuccessfulRolloutTeacherContextBuilder

from pimono_sdpo.errors import OwnCodeError, TrainingInputError
from pimono_sdpo.own_code import OwnReward, import_own
from pimono_sdpo.stage import source_hash
from pimono_sdpo.training.arguments import TRACE_TEMPLATE, GuardedSDPOConfig, Mode, SDPOArguments
from pimono_sdpo.training.callbacks import note_rollouts
from pimono_sdpo.training.console import say
from pimono_sdpo.training.options import SMOKE_TEST
from pimono_sdpo.training.rows import Wording
from pimono_sdpo.training.token_budget import neutralise, shorten_to_budget, special_tokens, templated_ids
from pimono_sdpo.training.trainer import read_messages
from rewards.attacks import attacks, self_test
from rewards.trace_grounding import trace_grounding_reward
from rewards.verifiers.reward import VerifierReward, add_tools
from rewards.verifiers.rubric import MAX_PARTIAL, BadSpec, build_rubric
from rewards.verifiers.tool_calls import is_json

Reward = Callable[..., list[float | None]]
# Returns a reward's feedback on each completion of its last call; None or "" for none.
RewardFeedback = Callable[[], Sequence[str | None]]

# The builder formats the feedback itself; TRL must not add a template of its own.
PASS_THROUGH = "{feedback_raw}"
# Joined, two texts can need a token or two more than separately.
SEAM_TOKENS = 8
TRIED_ROWS = 8
# A sampled token that is half a character decodes to U+FFFD, which is encoded as three byte tokens.
TOKENS_READ_BACK = 3
THINK = re.compile(r"<think>.*?</think>", re.DOTALL)
THOUGHTS = re.compile(r"<think>.*?</think>|<\|channel>.*?<channel\|>", re.DOTALL)


@dataclass(frozen=True)
class Feedback:
    """The feedback that the teacher of a failed completion reads.

    mode     rollout: the reward's feedback on this completion; trace: the row's context; both: the
             reward's feedback, if any, followed by the context; none: nothing
    tokens   limit of the reward's feedback, in tokens of the model; longer texts lose their middle
    as_trl   whether wording and use are those of TRL: the row's context, also for successes
    """

    rollout_template: str
    mode: Mode = "trace"
    trace_template: str = TRACE_TEMPLATE
    tokens: int = 256
    as_trl: bool = False

    @property
    def asks_reward(self) -> bool:
        """Whether the reward's feedback is used."""
        return self.mode in ("rollout", "both")

    def format(self, rollout: str | None, trace: str | None) -> str:
        """Return the feedback on a failed completion, "" when there is none."""
        text = ""
        if self.asks_reward and _is_text(rollout):
            text += self.rollout_template.format(feedback_raw=rollout)
        if self.mode in ("trace", "both") and _is_text(trace):
            text += self.trace_template.format(feedback_raw=trace)
        return text


def feedback_of(job: SDPOArguments, args: GuardedSDPOConfig) -> Feedback:
    """Return the feedback of a job; raises TrainingInputError for templates that cannot be filled."""
    mode: Mode = job.feedback or ("both" if job.reward == "verifiers" else "trace")
    as_trl = job.teacher_wording == "trl"
    if as_trl and mode not in ("trace", "none"):
        raise TrainingInputError("--teacher_wording trl knows only the row's context; give --feedback trace.")
    trace = args.feedback_template if as_trl else TRACE_TEMPLATE
    feedback = Feedback(args.feedback_template, mode, trace, job.feedback_tokens, as_trl)
    templates = {
        "reprompt_template": (args.reprompt_template, {"prompt", "solution", "feedback"}),
        "solution_template": (args.solution_template, {"successful_previous_attempt"}),
        "feedback_template": (feedback.rollout_template, {"feedback_raw"}),
    }
    for name, (template, allowed) in templates.items():
        try:
            fields = {field for _, field, *_ in Formatter().parse(template) if field is not None}
        except ValueError:
            fields = set()
        if not fields or not fields <= allowed:
            needed = " ".join(f"{{{field}}}" for field in sorted(allowed))
            raise TrainingInputError(f"{name} cannot be filled; put {needed} in it, and no other braces.")
    return feedback


def word_reprompt(args: GuardedSDPOConfig, feedback: Feedback) -> Wording:
    """Return the wording of the teacher's prompt, with an empty demonstration and one character of feedback."""

    def format_reprompt(prompt: str, context: str) -> str:
        text: str = args.reprompt_template.format(
            prompt=prompt,
            solution=args.solution_template.format(successful_previous_attempt=""),
            feedback=feedback.format("-", context),
        )
        return text

    rollout = feedback.tokens + SEAM_TOKENS if feedback.asks_reward else 0
    return Wording(format_reprompt, TOKENS_READ_BACK * int(args.max_completion_length) + rollout)


class FeedbackBuilder(SuccessfulRolloutTeacherContextBuilder):  # type: ignore[misc] # untyped
    """TRL's builder of the teacher's context, with feedback on the sampled completion itself."""

    def __init__(self, trainer: Any, feedback: Feedback, reward_feedback: RewardFeedback | None = None) -> None:
        super().__init__(trainer)
        self.feedback, self.reward_feedback = feedback, reward_feedback
        tokenizer = trainer.processing_class
        self.special = special_tokens(tokenizer)
        self.ends = {tokenizer.pad_token, *tokenizer.convert_ids_to_tokens(trainer.eos_token_ids)}
        # TRL drops special tokens from a demonstration, and with them the syntax of tool calls. This maps
        # the demonstrations of the batch as TRL writes them to those that the teacher reads instead.
        self.demonstrations: dict[str, str] = {}
        self.count: Callable[[str], int] = lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])

    def build(
        self, output: dict[str, Any], prompts: list[Any], rewards: torch.Tensor, feedbacks: list[Any] | None = None
    ) -> dict[str, torch.Tensor]:
        """Return TRL's teacher batch; a success gets no feedback, but may be shown another one of its group."""
        trainer = self.trainer
        reward_texts: list[str | None] = [None] * len(prompts)
        if self.feedback.asks_reward and self.reward_feedback is not None:
            reward_texts = [
                self._shorten(str(text), self.feedback.tokens) if _is_text(text) else None
                for text in self.reward_feedback()
            ]
        succeeded = (rewards >= trainer.args.success_reward_threshold).tolist()
        formatted = [
            None if success and not self.feedback.as_trl else self.feedback.format(text, trace)
            for success, text, trace in zip(succeeded, reward_texts, feedbacks or [None] * len(prompts), strict=True)
        ]
        ids, tokenizer = output["completion_ids"], trainer.processing_class
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        pairs = zip(texts, tokenizer.batch_decode(ids), strict=True)
        self.demonstrations = dict(
            gather_object([(self._trl_demonstration(text), self._demonstration(raw)) for text, raw in pairs])
        )
        rollouts = [
            {"prompt": prompt, "completion": text, "reward": reward, "feedback": feedback}
            for prompt, text, reward, feedback in zip(prompts, texts, rewards.tolist(), formatted, strict=True)
        ]
        note_rollouts(trainer, rollouts)
        context: dict[str, torch.Tensor] = super().build(output, prompts, rewards, formatted)
        has_feedback = [_is_text(text) and not success for success, text in zip(succeeded, reward_texts, strict=True)]
        for name, flags in (("rollout_feedback_fraction", has_feedback), ("success_rate", succeeded)):
            gathered = gather_object(flags)
            self.last_metrics[f"self_distillation/{name}"] = sum(gathered) / len(gathered)
        return context

    def _build_reprompt_text(self, prompt_text: str, solution_text: str, feedback_text: str) -> str:
        demonstration = (
            solution_text if self.feedback.as_trl else self.demonstrations.get(solution_text, solution_text)
        )
        text: str = super()._build_reprompt_text(prompt_text, demonstration, feedback_text)
        return text

    def _trl_demonstration(self, text: str) -> str:
        """Return the demonstration that TRL makes of a completion without special tokens."""
        if self.trainer.args.remove_thinking_from_demonstration:
            text = THINK.sub("", text).strip()
        return str(self.trainer.args.solution_template.format(successful_previous_attempt=text))

    def _demonstration(self, text: str) -> str:
        """Return a demonstration with all special tokens, and any text that spells one, neutralised."""
        for end in self.ends:
            text = text.replace(end, "")
        if self.trainer.args.remove_thinking_from_demonstration:
            text = THOUGHTS.sub("", text).strip()
        text = self._shorten(text, TOKENS_READ_BACK * self.trainer.max_completion_length) or ""
        return str(self.trainer.args.solution_template.format(successful_previous_attempt=text))

    def _shorten(self, text: str, tokens: int) -> str | None:
        return shorten_to_budget(neutralise(text, self.special)[0], tokens, self.count)


def _is_text(text: str | None) -> bool:
    return isinstance(text, str) and text.strip() != ""


@dataclass(frozen=True)
class Scoring:
    """A reward from 0 to 1.

    feedback   returns the feedback on the completions of the last call, for the teacher; None without any
    column     the column that it needs to score a row, None if that is not known
    partial    the most that a failed completion gets; the success threshold must be above
    """

    reward: Reward
    feedback: RewardFeedback | None = None
    column: str | None = None
    partial: float = 0.0

    def find_unscored(self, rows: Dataset) -> list[int]:
        """Return the indices of the rows that get no reward for any completion."""
        if self.column is not None:
            return [index for index, value in enumerate(rows[self.column]) if not value]
        columns = {"prompts" if name == "prompt" else name: list(rows[name]) for name in rows.column_names}
        empty = [[{"role": "assistant", "content": ""}] for _ in range(len(rows))]
        return [index for index, reward in enumerate(self.reward(completions=empty, **columns)) if reward is None]

    def check(self, threshold: float, weights: list[float] | None, columns: list[str]) -> None:
        """Raise TrainingInputError when no completion could succeed or fail, or a column is missing."""
        best = sum(weights) if weights else 1.0
        if not self.partial * best < threshold <= best:
            raise TrainingInputError(
                f"success_reward_threshold is {threshold}, but this reward gives at most "
                f"{self.partial * best} to a failed completion and {best} to a successful one; give "
                f"--success_reward_threshold {best}."
            )
        if self.column is not None and self.column not in columns:
            raise TrainingInputError(
                f"The rows have no column `{self.column}`, which this reward needs; filter the "
                "traces again, or give --reward trace_grounding."
            )


def scoring_of(name: str, gates: Sequence[str], graded: Sequence[str], end_ids: Collection[int] = ()) -> Scoring:
    """Return the reward of a name: verifiers, trace_grounding or module:name."""
    if name == "verifiers":
        reward = VerifierReward(build_rubric(gates, graded), end_ids)
        return Scoring(reward, reward.feedback, "verifier_spec", MAX_PARTIAL)
    if gates or graded:
        raise TrainingInputError("--gate and --grade name verifiers; give --reward verifiers, or leave them out.")
    if name == "trace_grounding":
        return Scoring(trace_grounding_reward)
    if ":" in name:
        return Scoring(OwnReward(name))
    raise TrainingInputError(
        f"--reward {name} is not verifiers or trace_grounding; give your own reward as module:name."
    )


def hash_own(names: Sequence[str]) -> dict[str, str]:
    """Return the source hashes of the user's functions among `names`: module:name, optionally with a weight."""
    functions = {name: import_own(name) for name in (name.partition("=")[0] for name in names if ":" in name)}
    for name, function in functions.items():
        if not callable(function):
            raise OwnCodeError(f"`{name}` is not a function; give the name of one.")
    return {name: source_hash(function) for name, function in functions.items()}


def set_response_template(tokenizer: Any) -> None:
    """Set the response template that TRL has for exactly this chat template, unless the tokenizer has its own."""
    if getattr(tokenizer, "response_template", None) is None:
        with suppress(ValueError):  # TRL does not know the chat template
            add_response_schema(tokenizer)


def check_call_format(name: str, tokenizer: Any, rows: Dataset) -> None:
    """Raise TrainingInputError when the reward scores tool calls and TRL cannot parse those of the model."""
    if name != "verifiers" or "verifier_spec" not in rows.column_names:
        return
    tools = rows["tools"] if "tools" in rows.column_names else repeat(None)
    specs = (json.loads(text) for text in map(add_tools, rows["verifier_spec"], tools) if text)
    try:
        need_parsing = [spec for spec in specs if isinstance(spec, dict) and spec.get("tools") and not is_json(spec)]
    except BadSpec as error:
        raise TrainingInputError(f"The tool calls of a row cannot be read: {error}") from error
    if need_parsing and not (getattr(tokenizer, "response_template", None) and supports_tool_calling(tokenizer)):
        raise TrainingInputError(
            "The tool calls of this model cannot be parsed, so that every call would score 0: its chat template is "
            "not one that TRL knows; give a tokenizer with a `response_template`, or rows with the `format` json."
        )


def try_attacks(
    scoring: Scoring, rows: Dataset, threshold: float, tokenizer: Any, template: dict[str, Any], name: str
) -> dict[str, int]:
    """Try the reward on answers that must not win, as the model would write them; return how many were tried.

    Raises TrainingInputError when one of them wins; a smoke test only says so.
    """
    tested = list(rows.select(range(min(TRIED_ROWS, len(rows)))))

    def render(prompt: Any, message: dict[str, Any]) -> tuple[list[dict[str, Any]], list[int]]:
        start = templated_ids(tokenizer, prompt, **template)
        try:
            whole = templated_ids(tokenizer, [*prompt, message], prompt=False, **template)
        except (TemplateError, TypeError):  # raised by templates that know no calls
            return [message], []
        if whole[: len(start)] != start or ("tool_calls" in message and not supports_tool_calling(tokenizer)):
            return [message], []
        return read_messages(tokenizer, [start], [whole[len(start) :]], template.get("tools"))[0], whole[len(start) :]

    findings = self_test(scoring.reward, tested, threshold, render)
    if findings:
        first = findings[0]
        wins = (
            f"{len(findings)} answers that solve nothing win on {len(tested)} rows; the first, `{first.case}` on row "
            f"{first.row + 1}, gets {first.reward:g}"
        )
        if name != SMOKE_TEST:
            raise TrainingInputError(
                f"The reward can be won without solving the task ({wins}); give another reward or a higher "
                "success_reward_threshold."
            )
        say(f"this reward is a smoke test: {wins}")
    return {"rows": len(tested), "answers": sum(1 for row in tested for _ in attacks(row)), "wins": len(findings)}
