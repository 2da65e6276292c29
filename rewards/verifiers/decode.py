"""Decode a completion with its special tokens, which SDPO strips although they mark the calls."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from rewards.verifiers.response_templates import FAMILIES

TURN_ENDS = tuple(dict.fromkeys(end for f in FAMILIES.values() for end in (*f.ends, "<|call|>")))


class Decoded(NamedTuple):
    """The text without padding; `truncated` when it stops without a token that ends the turn."""

    text: str
    truncated: bool


def decode(completion_ids: Sequence[int], tokenizer: Any, end_ids: Collection[int] = ()) -> Decoded:
    """Decode token ids with a transformers tokenizer.

    A turn ends at the tokenizer's own end token, at those of the known model families, and at
    `end_ids`, where the `eos_token_id` of a generation config goes. What follows the first is not
    the model's.
    """
    ids = [int(token) for token in completion_ids]
    ends = _end_ids(tokenizer) | set(end_ids)
    first = next((place for place, token in enumerate(ids) if token in ends), None)
    if first is None:
        while ids and ids[-1] == tokenizer.pad_token_id:
            ids.pop()
    else:
        ids = ids[: first + 1]
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return Decoded(text, truncated=first is None and bool(ids))


def _end_ids(tokenizer: Any) -> set[int]:
    known = tokenizer.get_added_vocab()
    ends = {known[token] for token in TURN_ENDS if token in known}
    return ends | ({tokenizer.eos_token_id} - {None})
