"""Reward a concrete answer that speaks of the failure it was asked about.

columns  reward_terms, privileged_context / range 0 to 1, or None without a concrete term

A heuristic: it sees what an answer talks about, not whether the answer is right. Terms only count
inside sentences of the answer's own, so that keyword lists, copies and refusals stay below 0.35.
It cannot tell a sentence from words in random order that has the little words of one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pimono_sdpo.failures import CATEGORIES
from rewards.actions import actions
from rewards.words import CJK, FUNCTION_WORDS, Sentence, Word, sentences

GROUNDING_WEIGHT = 0.7
ACTION_WEIGHT = 0.3  # a command that names a term, or an edit of the answer's own
ACTION_ALONE = 0.1  # any other command
TERMS_NEEDED = 3

MIN_OWN_WORDS = 5
MIN_FUNCTION_WORDS = 2
MIN_CJK = 6  # pairs of signs
WORDS_PER_TERM = 2
MAX_TERMS_PER_SENTENCE = 2
MAX_TERMS_PER_ACTION = 2
MAX_CHARS = 50_000

_REFUSAL = re.compile(
    r"\bsorry\b|\bi(?: am|['\u2019]m) (?:afraid|unable|not able)\b"
    r"|\bi (?:cannot|can not|can['\u2019]t|won['\u2019]t|must decline)\b"
    r"|tut mir leid|désolé|lo siento|申し訳|抱歉|对不起"
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
    named, speaks = _carried_terms(parts, terms)
    acting = list(actions(parts))
    aims = [term for part, command in acting if command for term in _aims_at(part, terms)]
    if speaks:
        # A command may name what the sentence beside it only points at.
        named.update([term for term in aims if term not in named][:1])
    own = sum(len(part.own) for part in parts)
    if not named:
        return ACTION_ALONE if acting and own >= MIN_OWN_WORDS else 0.0
    edits = any(not command and _is_written(part, terms) for part, command in acting)
    acts = ACTION_WEIGHT if aims or edits else ACTION_ALONE if acting else 0.0
    share = min(1.0, len(named) / min(TERMS_NEEDED, len(terms)))
    return round(GROUNDING_WEIGHT * share + acts, 6)


def _carried_terms(parts: Sequence[Sentence], terms: set[str]) -> tuple[set[str], bool]:
    """Return terms that real sentences carry by words not used before, and if there is any such.

    The function words of a sentence are its frame: filling one frame twice is a template.
    """
    named: set[str] = set()
    spent: set[str] = set()
    frames: set[tuple[str, ...]] = set()
    speaks = False
    for sentence in parts:
        own = sentence.own
        frame = tuple(word.text for word in own if word.text in FUNCTION_WORDS)
        if not _is_prose(own) or frame in frames or _REFUSAL.search(sentence.text):
            continue
        content = [word for word in own if _is_content(word, terms)]
        fresh = {word.text for word in content} - spent
        novel = {word.text for word in content if word.novel} - spent
        room = min(_weight(fresh) // WORDS_PER_TERM, len(novel), MAX_TERMS_PER_SENTENCE)
        if not room:
            continue
        speaks = True
        found = [term for term in _separate(sentence.text, content, terms) if term not in named]
        if found:
            named.update(found[:room])
            spent |= fresh
            if frame:
                frames.add(frame)
    return named, speaks


def _is_prose(own: Sequence[Word]) -> bool:
    if sum(1 for word in own if CJK.match(word.text)) >= MIN_CJK:
        return True
    frame = FUNCTION_WORDS.intersection(word.text for word in own)
    return len(own) >= MIN_OWN_WORDS and len(frame) >= MIN_FUNCTION_WORDS


def _is_content(word: Word, terms: set[str]) -> bool:
    text = word.text
    return text not in FUNCTION_WORDS and not any(text in term or term in text for term in terms)


def _weight(found: set[str]) -> int:
    """Count words; a pair of CJK signs is half of one."""
    pairs = sum(1 for word in found if CJK.match(word))
    return len(found) - pairs + pairs // 2


def _separate(text: str, content: Sequence[Word], terms: set[str]) -> Iterator[str]:
    """Yield the terms in a text; of those with no word of content between, only the first."""
    edge = None
    for start, end, term in _occurrences(text, terms):
        if edge is None or any(edge <= word.start < start for word in content):
            yield term
        edge = end if edge is None else max(edge, end)


def _aims_at(part: Sentence, terms: set[str]) -> list[str]:
    """Return the terms an action names; none for a list of them or for bare terms."""
    found: list[str] = []
    edge = 0
    for start, end, term in _occurrences(part.text, terms):
        if start >= edge:
            found.append(term)
        edge = max(edge, end)
    plain = any(not any(term in word.text for term in terms) for word in part.own)
    return found if plain and len(found) <= MAX_TERMS_PER_ACTION else []


def _is_written(part: Sentence, terms: set[str]) -> bool:
    content = {word.text for word in part.own if _is_content(word, terms)}
    return len(content) >= WORDS_PER_TERM


def _occurrences(text: str, terms: set[str]) -> list[tuple[int, int, str]]:
    """Return where each term first stands as a whole, in order; the longer of two comes first."""
    found = [(start, term) for term in terms if (start := _whole(text, term)) >= 0]
    ordered = sorted(found, key=lambda hit: (hit[0], -len(hit[1]), hit[1]))
    return [(start, start + len(term), term) for start, term in ordered]


def _whole(text: str, term: str) -> int:
    """Return where the term stands and is not inside a longer word, or -1."""
    position = text.find(term)
    while position >= 0:
        end = position + len(term)
        if not (_is_word(text[max(position - 1, 0) : position]) or _is_word(text[end : end + 1])):
            return position
        position = text.find(term, end)
    return -1


def _is_word(sign: str) -> bool:
    return sign.isascii() and (sign.isalnum() or sign == "_")


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
