"""Make every row fit its token budget, so that TRL never cuts one.

TRL cuts token ids from the left: the student's prompt at `max_prompt_length` and the teacher's at
`max_reprompt_len`. Either loses <bos> and the head of the task, and the two see different tasks.
Here the oldest earlier turns go instead, then the middle of the texts, of a context block by block,
and only as much as has to.

reads prompt, privileged_context, reward_terms / writes prompt, privileged_context
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.schema import Message
from pimono_sdpo.text import TRIMMED, cut_middle
from pimono_sdpo.training.blocks import shorten_blocks

Row = dict[str, Any]
COLUMNS = ("prompt", "privileged_context", "reward_terms")
ZERO_WIDTH_SPACE = "\u200b"
# A sampled token that is half a character decodes to U+FFFD, which reads back as three bytes.
TOKENS_READ_BACK = 3
FLAGS = {
    "prompts_shortened": "_prompt_shortened",
    "contexts_shortened": "_context_shortened",
    "special_tokens_neutralised": "_neutralised",
}


@dataclass(frozen=True)
class Reprompt:
    """How TRL words the teacher's prompt; the fields are SDPOConfig's."""

    reprompt_template: str
    solution_template: str
    feedback_template: str
    completion_tokens: int
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def text(self, prompt: str, feedback: str) -> str:
        """Return the teacher's last user turn around an empty demonstration."""
        return self.reprompt_template.format(
            prompt=prompt,
            solution=self.solution_template.format(successful_previous_attempt=""),
            feedback=self.feedback_template.format(feedback_raw=feedback),
        )

    def check(self) -> None:
        """Fill the templates once; raises TrainingInputError when that cannot be."""
        try:
            self.text("prompt", "feedback")
        except (LookupError, ValueError, AttributeError) as error:
            # What str.format raises for fields it is not given and for stray braces.
            raise TrainingInputError(
                f"The templates of the teacher's prompt cannot be filled ({type(error).__name__}: "
                f"{error}); use only {{prompt}}, {{solution}} and {{feedback}} in "
                "reprompt_template, {successful_previous_attempt} in solution_template and "
                "{feedback_raw} in feedback_template."
            ) from error


def fit_rows(
    dataset: Dataset,
    tokenizer: Any,
    prompt_tokens: int,
    reprompt_tokens: int,
    reprompt: Reprompt,
) -> tuple[Dataset, dict[str, int]]:
    """Return the rows within both budgets, and how many rows each measure touched.

    Counts: prompts_shortened, contexts_shortened (rows) and special_tokens_neutralised (tokens).
    Raises TrainingInputError for missing columns, a prompt that does not end in a user turn, or a
    budget that even the shortest text overruns.
    """
    missing = [name for name in COLUMNS if name not in dataset.column_names]
    if missing:
        raise TrainingInputError(
            f"The dataset lacks the column(s) {_names(missing)} and has "
            f"{_names(dataset.column_names)}; give rows written by `pimono-sdpo filter`."
        )
    reprompt.check()
    special = special_tokens(tokenizer)

    def fit(row: Row, index: int) -> Row:
        # Rows are named from 1 in every message.
        return _fit(row, index + 1, tokenizer, prompt_tokens, reprompt_tokens, reprompt, special)

    fitted = dataset.map(
        fit,
        with_indices=True,
        # The cache key would not see a change of this module's code.
        load_from_cache_file=False,
        desc="fit to token budgets",
    )
    counts = {name: sum(fitted[column]) for name, column in FLAGS.items()}
    return fitted.remove_columns(list(FLAGS.values())), counts


def _fit(
    row: Row,
    number: int,
    tokenizer: Any,
    prompt_tokens: int,
    reprompt_tokens: int,
    reprompt: Reprompt,
    special: tuple[str, ...],
) -> Row:
    messages, last = _conversation(row["prompt"], number)
    _check_columns(row, number)
    neutral = [neutralise(message["content"], special) for message in messages]
    context, in_context = neutralise(row["privileged_context"] or "", special)
    before = [
        Message(role=message["role"], content=text)
        for message, (text, _) in zip(messages[:-1], neutral[:-1], strict=True)
    ]

    def count(user_text: str) -> int:
        turn = Message(role="user", content=user_text)
        return count_tokens(tokenizer, [*before, turn], reprompt.chat_template_kwargs)

    task = neutral[-1][0]
    while before and count(task) > prompt_tokens:
        # The request comes before what was said before it; the oldest exchange goes first.
        before = before[2:] if before[0]["role"] == "user" else before[1:]
    short_task = shorten_to_budget(task, prompt_tokens, count)
    if short_task is None:
        raise TrainingInputError(
            f"Row {number} needs {count(TRIMMED)} tokens without its last user text, over the "
            f"{prompt_tokens} of max_prompt_length; raise max_prompt_length or shorten the row."
        )
    demonstration = TOKENS_READ_BACK * reprompt.completion_tokens

    def count_reprompt(feedback: str) -> int:
        return count(reprompt.text(short_task, feedback)) + demonstration

    short_context: str | None = context
    if count_reprompt(context) > reprompt_tokens:
        short_context = shorten_blocks(
            context, lambda text: count_reprompt(text) <= reprompt_tokens
        ) or shorten_to_budget(context, reprompt_tokens, count_reprompt)
    if short_context is None:
        raise TrainingInputError(
            f"Row {number} needs {count_reprompt(TRIMMED)} tokens for the teacher's prompt without "
            f"any feedback, over the {reprompt_tokens} of max_reprompt_len; raise max_reprompt_len."
        )
    return {
        "prompt": [*before, Message(role=last["role"], content=short_task)],
        "privileged_context": short_context,
        FLAGS["prompts_shortened"]: int(short_task != task or len(before) + 1 < len(messages)),
        FLAGS["contexts_shortened"]: int(short_context != context),
        FLAGS["special_tokens_neutralised"]: in_context + sum(found for _, found in neutral),
    }


def _conversation(prompt: Any, number: int) -> tuple[list[Message], Message]:
    messages = list(prompt) if isinstance(prompt, list) else []
    if not all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in messages):
        raise TrainingInputError(
            f"The prompt of row {number} is no list of turns with `role` and `content`; give rows "
            "written by `pimono-sdpo filter`."
        )
    if not messages or messages[-1]["role"] != "user":
        found = f"a turn of `{messages[-1]['role']}`" if messages else "no turn"
        raise TrainingInputError(
            f"The prompt of row {number} ends in {found}; give conversations that end in a user "
            "turn, which is where the teacher's feedback goes."
        )
    if not all(isinstance(message["content"], str) for message in messages):
        raise TrainingInputError(
            f"The prompt of row {number} has content in parts; give each turn's content as one "
            "text, since student and teacher join parts differently."
        )
    return messages, messages[-1]


def _check_columns(row: Row, number: int) -> None:
    terms, context = row["reward_terms"], row["privileged_context"]
    if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
        raise TrainingInputError(
            f"The `reward_terms` of row {number} are no list of texts; give rows written by "
            "`pimono-sdpo filter`."
        )
    if not isinstance(context, str | None):
        raise TrainingInputError(
            f"The `privileged_context` of row {number} is no text; give rows written by "
            "`pimono-sdpo filter`."
        )


def special_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts that the tokenizer turns into control tokens, longest first."""
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return tuple(
        sorted({*added, *tokenizer.all_special_tokens}, key=lambda text: (-len(text), text))
    )


def neutralise(text: str, special: tuple[str, ...]) -> tuple[str, int]:
    """Break special tokens with a zero-width space; return the text and how many there were.

    A trace that quotes `<turn|>` would otherwise end its own turn.

    >>> neutralise("see <eos>", ("<eos>",))[1]
    1
    """
    found = 0
    for token in special:
        found += text.count(token)
        text = text.replace(token, token[0] + ZERO_WIDTH_SPACE + token[1:])
    return text, found


def shorten_to_budget(text: str, budget: int, count: Callable[[str], int]) -> str | None:
    """Cut the middle until `count(text)` is within the budget; None when nothing left fits.

    >>> len(shorten_to_budget("a" * 100, 40, len))
    40
    """
    if count(text) <= budget:
        return text
    if count(TRIMMED) > budget:
        return None
    # Tokens hardly ever get fewer with more text; what is returned has been counted in any case.
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count(cut_middle(text, middle)) <= budget:
            fits = middle
        else:
            too_long = middle
    return cut_middle(text, fits)


def count_tokens(tokenizer: Any, messages: list[Message], template: Mapping[str, Any]) -> int:
    """Count the ids of a templated conversation with its generation prompt."""
    encoded = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, **template
    )
    return len(encoded["input_ids"])


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
