"""Count, neutralise and shorten text by a model's own tokenizer."""

from collections.abc import Callable, Mapping
from typing import Any

from pimono_sdpo.schema import Message
from pimono_sdpo.text import TRIMMED, cut_middle

ZERO_WIDTH_SPACE = "\u200b"


def special_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts that the tokenizer turns into control tokens, longest first.

    Qwen declares `<tool_response>` and `<think>` as ordinary added tokens; what its chat template
    writes is a control token all the same. Other added tokens, such as `<table>`, are text.
    """
    template = str(tokenizer.chat_template or "")
    added = (
        str(token)
        for token in tokenizer.added_tokens_decoder.values()
        if token.special or (str(token).strip() and str(token) in template and len(str(token)) > 1)
    )
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


def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return those of `special_tokens` that the tokenizer itself calls special."""
    declared = {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special}
    known = declared | {*tokenizer.all_special_tokens}
    return tuple(token for token in special_tokens(tokenizer) if token in known)
