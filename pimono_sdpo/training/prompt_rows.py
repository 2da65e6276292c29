"""Fit the prompt and the privileged context of every row to the token budgets of SDPO.

TRL cuts token ids from the left: the student's prompt at `max_prompt_length` and the teacher's at
`max_reprompt_len`. Either loses <bos> and the head of the task, and the two see different tasks.
Here the oldest earlier turns go first, then the middle of the texts, of a context block by block,
and only as much as necessary.

reads prompt, privileged_context, reward_terms / writes prompt, privileged_context
"""

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, TypedDict

import msgspec
from datasets import Dataset, List, Value
from jinja2 import TemplateError
from trl.experimental.sdpo import SDPOConfig

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.schema import MESSAGE
from pimono_sdpo.text import TRIMMED
from pimono_sdpo.training.rewards import SEAM_TOKENS, TOKENS_READ_BACK, Feedback
from pimono_sdpo.training.rows import Fitted, LeftOut, fit_rows
from pimono_sdpo.training.token_budget import (
    neutralise,
    shorten_blocks,
    shorten_to_budget,
    special_tokens,
    templated_ids,
)

Row = dict[str, Any]
COLUMNS = ("prompt", "privileged_context", "reward_terms")
COUNTS = ("prompts_shortened", "contexts_shortened", "special_tokens_neutralised")
WRITTEN = {"prompt": List(MESSAGE), "privileged_context": Value("string")}


@dataclass(frozen=True)
class Reprompt:
    """How the teacher's prompt is worded, by templates and limits of an SDPOConfig."""

    args: SDPOConfig
    feedback: Feedback

    def text(self, prompt: str, context: str) -> str:
        """Return the teacher's last user turn around an empty demonstration.

        Where the reward's feedback goes stands one character.
        """
        text: str = self.args.reprompt_template.format(
            prompt=prompt,
            solution=self.args.solution_template.format(successful_previous_attempt=""),
            feedback=self.feedback.worded("-", context),
        )
        return text

    def check(self) -> None:
        """Raise TrainingInputError for a template that cannot be filled or leaves feedback out."""
        fields = {
            "reprompt_template": (self.args.reprompt_template, {"prompt", "solution", "feedback"}),
            "solution_template": (self.args.solution_template, {"successful_previous_attempt"}),
            "feedback_template": (self.feedback.rollout_template, {"feedback_raw"}),
            "trace_template": (self.feedback.trace_template, {"feedback_raw"}),
        }
        for name, (template, known) in fields.items():
            try:
                found = {field for _, field, *_ in Formatter().parse(template) if field is not None}
            except ValueError:
                found = set()
            if not found or not found <= known:
                needed = " ".join(f"{{{field}}}" for field in sorted(known))
                raise TrainingInputError(f"{name} cannot be filled; put {needed} in it, and no other braces.")

    def reserved_tokens(self) -> int:
        """Return what a demonstration and the reward's feedback can need beside `text`."""
        own = self.feedback.tokens + SEAM_TOKENS if self.feedback.asks_reward else 0
        return TOKENS_READ_BACK * int(self.args.max_completion_length) + own


def fit_prompts(
    dataset: Dataset,
    held_out: Dataset | None,
    tokenizer: Any,
    prompt_tokens: int,
    reprompt_tokens: int,
    reprompt: Reprompt,
) -> Fitted:
    """Return the rows within both budgets, without those that cannot be cut to them.

    Counts: prompts_shortened, contexts_shortened, left_out by reason (rows) and
    special_tokens_neutralised (tokens).
    Lengths: tokens of each row's `prompt` and `teacher_prompt` before anything was cut, the second
    with what is reserved for a demonstration and the reward's feedback.
    """
    reprompt.check()
    special = special_tokens(tokenizer)
    template = reprompt.args.chat_template_kwargs or {}

    def fit(row: Row, number: int) -> tuple[Row, Row]:
        _check_row(row, number)
        turns, found = zip(*(neutralise(turn["content"], special) for turn in row["prompt"]), strict=True)
        context, in_context = neutralise(row["privileged_context"] or "", special)
        task = turns[-1]
        before = [
            {"role": turn["role"], "content": text} for turn, text in zip(row["prompt"], turns[:-1], strict=False)
        ]

        def count(user_text: str) -> int:
            return len(templated_ids(tokenizer, [*before, {"role": "user", "content": user_text}], **template))

        def count_reprompt(context: str) -> int:
            return count(reprompt.text(task, context)) + reprompt.reserved_tokens()

        lengths = {"prompt": count(task), "teacher_prompt": count_reprompt(context)}
        # The tools of an exercise and its request stay; of other rows the request is the last turn.
        stay = 2 if before and before[0]["role"] == "system" else 0
        while len(before) > stay and count(task) > prompt_tokens:
            # The request matters more than earlier turns; the oldest exchange goes first.
            gone = 1 if before[stay]["role"] == "assistant" and not stay else 2
            before = before[:stay] + before[stay + gone :]
        short = shorten_to_budget(task, prompt_tokens, count)
        if short is None:
            raise LeftOut(
                "too_long",
                f"{count(TRIMMED)} tokens without its last user text, over the {prompt_tokens} of max_prompt_length",
            )
        shortened = short != task or len(before) < len(turns) - 1
        task, within = short, context
        if count_reprompt(context) > reprompt_tokens:
            blocks = shorten_blocks(context, lambda text: count_reprompt(text) <= reprompt_tokens)
            cut = blocks or shorten_to_budget(context, reprompt_tokens, count_reprompt)
            if cut is None:
                raise LeftOut(
                    "too_long",
                    f"{count_reprompt(TRIMMED)} tokens for the teacher's prompt without any feedback, "
                    f"over the {reprompt_tokens} of max_reprompt_len",
                )
            within = cut
        counts = (int(shortened), int(within != context), in_context + sum(found))
        fitted = {"prompt": [*before, {"role": "user", "content": task}], "privileged_context": within}
        return fitted, lengths | dict(zip(COUNTS, counts, strict=True))

    budgets = {"prompt": prompt_tokens, "teacher_prompt": reprompt_tokens}
    try:
        return fit_rows(dataset, held_out, fit, WRITTEN, COUNTS, budgets)
    except TemplateError as error:
        raise TrainingInputError(
            f"The chat template refuses a prompt ({' '.join(str(error).split())}); give rows with "
            "turns that it takes, or another model."
        ) from error


class _Turn(TypedDict):
    role: str
    content: str


class _Row(TypedDict):
    prompt: list[_Turn]
    privileged_context: str | None
    reward_terms: list[str] | None


def _check_row(row: Row, number: int) -> None:
    try:
        turns = msgspec.convert(dict(row), _Row)["prompt"]
        last = f"a turn of `{turns[-1]['role']}`" if turns else "no turn"
        wrong = None if last == "a turn of `user`" else f"its prompt ends in {last}"
    except msgspec.ValidationError as error:
        wrong = str(error)
    if wrong is not None:
        raise TrainingInputError(
            f"Row {number} cannot be trained on ({wrong}); give rows written by "
            "`pimono-sdpo filter`, whose prompts end in a turn of the user."
        )


def check_template(rows: Dataset, tokenizer: Any, template: Mapping[str, Any]) -> int:
    """Return how many prompts passed through the chat template whole; raises TrainingInputError."""
    special = special_tokens(tokenizer)
    for number, prompt in enumerate(rows["prompt"], 1):
        bare = [{**turn, "content": "x"} for turn in prompt]
        text, frame = (tokenizer.decode(templated_ids(tokenizer, turns, **template)) for turns in (prompt, bare))
        # Compare decoded text, since some tokenizers normalise it.
        ids = tokenizer([turn["content"] for turn in prompt], add_special_tokens=False)["input_ids"]
        if any(tokenizer.decode(one).strip() not in text for one in ids):
            raise TrainingInputError(
                f"The chat template changes the prompt of row {number}; give a model whose "
                "template keeps the text of its turns."
            )
        if any(text.count(token) > frame.count(token) for token in special):
            raise TrainingInputError(
                f"Text of row {number} becomes control tokens in the chat template; give a "
                "tokenizer that declares its special tokens."
            )
    return len(rows)
