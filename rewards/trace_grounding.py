"""Reward a concrete answer that speaks of the failure it was asked about.

columns  reward_terms, privileged_context / range 0 to 1, or None without a concrete term

A heuristic: it sees what an answer talks about, not whether the answer is right. Terms only count
inside sentences of the answer's own, so that keyword lists and copies stay below 0.35.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pimono_sdpo.failures import CATEGORIES
from rewards.words import CJK, FUNCTION_WORDS, Sentence, sentences

GROUNDING_WEIGHT = 0.7
ACTION_WEIGHT = 0.3
ACTION_ALONE = 0.1
TERMS_NEEDED = 3

MIN_OWN_WORDS = 5
MIN_FUNCTION_WORDS = 2
MIN_CJK = 8
WORDS_PER_TERM = 2
MAX_TERMS_PER_SENTENCE = 2
MAX_CHARS = 50_000

_ACTION = re.compile(
    r"^```|^[+-] ?\S.*[(={;]|^\$ \S|call:\w+\{|<tool_call>|\"(?:command|path|name)\"\s*:"
    r"|`(?:npm|npx|pnpm|yarn|bun|node|deno|python3?|pytest|pip|uv|cargo|go|make|git|bash|sh|cat|ls"
    r"|grep|rg|sed|mkdir|chmod|cp|mv|docker|tsc|ruff|mypy)\b[^`\n]*`",
    re.MULTILINE,
)

Conversation = Sequence[Mapping[str, Any]]


def trace_grounding_reward(
    prompts: Sequence[str | Conversation],
    completions: Sequence[str | Conversation],
    reward_terms: Sequence[Sequence[str]],
    privileged_context: Sequence[str | None] | None = None,
    **_: object,
) -> list[float | None]:
    """Score each completion by the concrete terms of its row that its own sentences use.

    Usable as it is in TRL's SDPO and GRPO trainers, which pass every dataset column. A row whose
    `reward_terms` hold nothing but categories gives None; TRL's `nansum` counts that as 0.

    >>> answer = "The build stops because src/cli.ts is missing, so I restore that file with git."
    >>> ask = "Why does the build fail?"
    >>> trace_grounding_reward([ask], [answer], [["enoent", "src/cli.ts"]])
    [0.35]
    >>> trace_grounding_reward([ask], ["enoent src/cli.ts"], [["enoent", "src/cli.ts"]])
    [0.0]
    """
    contexts = privileged_context or [None] * len(completions)
    rows = zip(prompts, completions, reward_terms, contexts, strict=True)
    return [
        _score(text_of(completion), terms, (text_of(prompt), context or ""))
        for prompt, completion, terms, context in rows
    ]


def _score(answer: str, reward_terms: Sequence[str], references: tuple[str, str]) -> float | None:
    terms = {term.lower() for term in reward_terms} - set(CATEGORIES) - {""}
    if not terms:
        return None
    parts = sentences(answer[:MAX_CHARS], references)
    used = _carried_terms(parts, terms)
    acts = float(_acts(answer[:MAX_CHARS], parts))
    if not used:
        return ACTION_ALONE * acts
    grounding = min(1.0, used / min(TERMS_NEEDED, len(terms)))
    return round(GROUNDING_WEIGHT * grounding + ACTION_WEIGHT * acts, 6)


def _carried_terms(parts: Sequence[Sentence], terms: set[str]) -> int:
    """Count terms that stand in a real sentence, each held by words not used before."""
    named: set[str] = set()
    spent: set[str] = set()
    for sentence in parts:
        if not _is_prose(sentence.own):
            continue
        found = sorted(term for term in terms - named if _names(sentence.text, term))
        content = {
            word
            for word in sentence.own
            if word not in FUNCTION_WORDS
            and not any(word in term or term in word for term in terms)
        }
        room = min(len(content - spent) // WORDS_PER_TERM, MAX_TERMS_PER_SENTENCE)
        if found and room:
            named.update(found[:room])
            spent |= content
    return len(named)


def _is_prose(own: Sequence[str]) -> bool:
    signs = sum(1 for word in own if CJK.match(word))
    if signs >= MIN_CJK:
        return True
    return len(own) >= MIN_OWN_WORDS and len(FUNCTION_WORDS.intersection(own)) >= MIN_FUNCTION_WORDS


def _names(text: str, term: str) -> bool:
    """True when the term occurs as a whole, not inside a longer word."""
    position = text.find(term)
    while position >= 0:
        end = position + len(term)
        before, after = text[position - 1 : position], text[end : end + 1]
        if not (_is_word(before) or _is_word(after)):
            return True
        position = text.find(term, end)
    return False


def _is_word(sign: str) -> bool:
    return sign.isascii() and (sign.isalnum() or sign == "_")


def _acts(answer: str, parts: Sequence[Sentence]) -> bool:
    """A command, an edit or a tool call, in an answer that is not mostly copied."""
    own = sum(len(sentence.own) for sentence in parts)
    return own >= MIN_OWN_WORDS and _ACTION.search(answer) is not None


def text_of(turns: str | Conversation) -> str:
    """Join the text of a completion or a prompt, plain or conversational."""
    if isinstance(turns, str):
        return turns
    return "\n".join(_content(message.get("content")) for message in turns)


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
