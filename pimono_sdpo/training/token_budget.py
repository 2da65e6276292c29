"""Shorten text to a token budget, and neutralise control tokens in it.

A privileged context consists of blocks, the most informative first, as the filter writes them:
`Tool/environment diagnostic N (...):` and `Later user correction N:`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pimono_sdpo.text import TRIMMED, cut_middle, split_blocks

ZERO_WIDTH_SPACE = "\u200b"


def special_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return special tokens and the added tokens in the chat template, longest first.

    Qwen declares `<tool_response>` and `<think>` as ordinary added tokens, but its chat template uses
    them for control. Added tokens that are not in the template, such as `<table>`, are text.
    """
    template = str(tokenizer.chat_template or "")
    added = {text for text in map(str, tokenizer.get_added_vocab()) if text in template and len(text.strip()) > 1}
    return tuple(sorted({*added, *control_tokens(tokenizer)}, key=lambda text: (-len(text), text)))


def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the tokens that the tokenizer declares as special, longest first."""
    declared = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return tuple(sorted({*declared, *tokenizer.all_special_tokens}, key=lambda text: (-len(text), text)))


def neutralise(text: str, special: tuple[str, ...]) -> tuple[str, int]:
    """Insert a zero-width space into every special token; return the text and their number.

    A trace that quotes `<turn|>` would otherwise end its own turn.
    """
    count = 0
    for token in special:
        count += text.count(token)
        text = text.replace(token, token[0] + ZERO_WIDTH_SPACE + token[1:])
    return text, count


def shorten_to_budget(text: str, budget: int, count: Callable[[str], int]) -> str | None:
    """Cut the middle until `count(text)` is within the budget; None when not even TRIMMED alone is."""
    if count(text) <= budget:
        return text
    if count(TRIMMED) > budget:
        return None
    return cut_middle(text, _find_largest(0, len(text), lambda keep: count(cut_middle(text, keep)) <= budget))


def _find_largest(fits: int, too_long: int, test: Callable[[int], bool]) -> int:
    """Find by bisection the largest length that passes the test, given one that does and one that does not."""
    # A longer text may have fewer tokens, but rarely; the result has always been tested.
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        fits, too_long = (middle, too_long) if test(middle) else (fits, middle)
    return fits


def templated_ids(tokenizer: Any, turns: Sequence[Any], *, prompt: bool = True, **template: Any) -> list[int]:
    """Return the token ids of a conversation in the chat template, with a generation prompt if `prompt`."""
    encoded = tokenizer.apply_chat_template(
        turns, add_generation_prompt=prompt, tokenize=True, return_dict=True, **template
    )
    return list(encoded["input_ids"])


# A block is shortened to this length at least; below that, dropping a block is better.
MIN_CHARS = 160


def shorten_blocks(text: str, fits: Callable[[str], bool]) -> str | None:
    """Shorten every block to the same length, in its middle, and drop the least informative ones if needed.

    Returns the longest text found that fits; None when not even one block of MIN_CHARS does, or
    when the text has no blocks.

    >>> text = "Later user correction 1:\\n" + "a" * 400 + "\\n\\nLater user correction 2:\\nno"
    >>> short = shorten_blocks(text, lambda text: len(text) <= 300)
    >>> len(short), short.endswith("correction 2:\\nno")
    (300, True)
    """
    blocks = split_blocks(text)
    while blocks:
        longest = max(len(body) for _, body in blocks)
        short = min(MIN_CHARS, longest)
        if fits(_join(blocks, short)):
            return _join(blocks, _find_largest(short, longest + 1, lambda limit: fits(_join(blocks, limit))))
        # Drop the last block of the more frequent kind, so that the first one of each kind stays longest.
        corrections = [i for i, (header, _) in enumerate(blocks) if header.startswith("Later")]
        diagnostics = [i for i in range(len(blocks)) if i not in corrections]
        blocks.pop(max(diagnostics, corrections, key=len)[-1])
    return None


def _join(blocks: list[tuple[str, str]], limit: int) -> str:
    return "\n\n".join(header + (body if len(body) <= limit else cut_middle(body, limit)) for header, body in blocks)
