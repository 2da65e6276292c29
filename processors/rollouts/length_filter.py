"""Count a row's tokens as the trainer will, and drop rows that are too long for it.

reads   prompt, tools, and completion, or chosen and rejected
writes  n_tokens (of the longer one of two), problem and detail

A trainer cuts long rows in the middle of their JSON, or drops them silently.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from datasets import Features, Value

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.stage import Filter, Map, Row
from processors.rollouts.conversation import drop_nulls

Json = dict[str, Any]
WRITES = Features(
    {"n_tokens": Value("int32"), "problem": Value("string"), "detail": Value("string")}
)


@cache
def load_tokenizer(path: str) -> Any:
    """Load a tokenizer with a chat template; raises TrainingInputError."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise TrainingInputError(
            'Tokens are counted with Transformers; install the extra: pip install "pimono-sdpo'
            '[train]", or leave --tokenizer out.'
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise TrainingInputError(
            f"Cannot load a tokenizer from `{path}` ({type(error).__name__}); give the "
            "folder or the Hub id of the model to train."
        ) from error
    if not tokenizer.chat_template:
        raise TrainingInputError(
            f"The tokenizer of `{path}` has no chat template; give an instruction-tuned model."
        )
    return tokenizer


def tokenize(path: str, turns: Sequence[Mapping[str, Any]], tools: Sequence[Json]) -> list[int]:
    """Return the ids of a templated conversation; raises ValueError when the template refuses it.

    Templates raise many kinds of errors; a conversation that one refuses cannot be trained on.
    """
    from jinja2 import TemplateError

    try:
        encoded = load_tokenizer(path).apply_chat_template(
            [drop_nulls(turn) for turn in turns], tools=list(tools) or None, tokenize=True,
            return_dict=True,
        )  # fmt: skip
    except (TemplateError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the chat template refuses it: {error}") from error
    return list(encoded["input_ids"])


def count_tokens(row: Row, tokenizer: str, max_length: int) -> Json:
    """Count the tokens of a row and say whether they are too many."""
    ends = [row[name] for name in ("completion", "chosen", "rejected") if name in row]
    try:
        encoded = [tokenize(tokenizer, [*row["prompt"], *end], row["tools"]) for end in ends]
    except ValueError as refused:
        return {"n_tokens": None, "problem": "template_refused", "detail": str(refused)[:300]}
    longest = max(map(len, encoded))
    if len(ends) == 2 and encoded[0][:max_length] == encoded[1][:max_length]:
        detail = f"the first {max_length} tokens are the same"
        return {"n_tokens": longest, "problem": "identical_after_truncation", "detail": detail}
    if longest > max_length:
        detail = f"{longest} tokens, {max_length} allowed"
        return {"n_tokens": longest, "problem": "too_long", "detail": detail}
    return {"n_tokens": longest, "problem": None, "detail": None}


def drop_long(row: Row) -> str | None:
    """Keep rows that fit."""
    problem: str | None = row["problem"]
    return problem


def build_stages(tokenizer: str, max_length: int) -> tuple[Map, Filter]:
    """Return the stages for one tokenizer (a folder or a Hub id) and maximum length."""
    load_tokenizer(tokenizer)
    return (
        Map(
            partial(count_tokens, tokenizer=tokenizer, max_length=max_length),
            reads=("prompt", "tools"),
            writes=WRITES,
        ),
        Filter(drop_long, reads=("problem",)),
    )
