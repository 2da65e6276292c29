"""Count and cut text by the tokens of a model, and break control tokens that a text spells.

A privileged context consists of blocks, the most informative first, as the filter writes them:
`Tool/environment diagnostic N (...):` and `Later user correction N:`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pimono_sdpo.text import TRIMMED, cut_middle, split_blocks

ZERO_WIDTH_SPACE = "\u200b"


def special_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts that the tokenizer turns into control tokens, longest first.

    Qwen declares `<tool_response>` and `<think>` as ordinary added tokens; what its chat template
    writes is a control token all the same. Other added tokens, such as `<table>`, are text.
    """
    template = str(tokenizer.chat_template or "")
    written = {text for text in map(str, tokenizer.get_added_vocab()) if text in template and len(text.strip()) > 1}
    return tuple(sorted({*written, *control_tokens(tokenizer)}, key=lambda text: (-len(text), text)))


def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return those that the tokenizer itself calls special, longest first."""
    declared = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return tuple(sorted({*declared, *tokenizer.all_special_tokens}, key=lambda text: (-len(text), text)))


def neutralise(text: str, special: tuple[str, ...]) -> tuple[str, int]:
    """Break special tokens with a zero-width space; return the text and how many there were.

    A trace that quotes `<turn|>` would otherwise end its own turn.
    """
    found = 0
    for token in special:
        found += text.count(token)
        text = text.replace(token, token[0] + ZERO_WIDTH_SPACE + token[1:])
    return text, found


def shorten_to_budget(text: str, budget: int, count: Callable[[str], int]) -> str | None:
    """Cut the middle until `count(text)` is within the budget; None when nothing left fits."""
    if count(text) <= budget:
        return text
    if count(TRIMMED) > budget:
        return None
    return cut_middle(text, _most_that_fits(0, len(text), lambda keep: count(cut_middle(text, keep)) <= budget))


def _most_that_fits(fits: int, too_long: int, test: Callable[[int], bool]) -> int:
    # More text rarely has fewer tokens; the result has been tested in any case.
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        fits, too_long = (middle, too_long) if test(middle) else (fits, middle)
    return fits


def templated_ids(tokenizer: Any, turns: Sequence[Any], *, prompt: bool = True, **template: Any) -> list[int]:
    """Return the ids of a templated conversation, with the generation prompt of a `prompt`."""
    encoded = tokenizer.apply_chat_template(
        turns, add_generation_prompt=prompt, tokenize=True, return_dict=True, **template
    )
    return list(encoded["input_ids"])


# A block cut further than that tells nothing; a block less leaves room for the others.
MIN_CHARS = 160


def shorten_blocks(text: str, fits: Callable[[str], bool]) -> str | None:
    """Cut the middle of every block to one length, and drop the least telling ones if need be.

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
            limit = _most_that_fits(short, longest + 1, lambda to: fits(_join(blocks, to)))
            return _join(blocks, limit)
        # The last block of the kind that has more of them: a first one of each stays longest.
        corrections = [i for i, (header, _) in enumerate(blocks) if header.startswith("Later")]
        diagnostics = [i for i in range(len(blocks)) if i not in corrections]
        blocks.pop(max(diagnostics, corrections, key=len)[-1])
    return None


def _join(blocks: list[tuple[str, str]], limit: int) -> str:
    return "\n\n".join(header + (body if len(body) <= limit else cut_middle(body, limit)) for header, body in blocks)
