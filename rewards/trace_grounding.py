"""Check whether an answer addresses the failure it was asked about: a smoke test, not a grade.

columns  reward_terms, privileged_context, tools, verifier_spec / range 0 to 1, or None without a concrete term

Where a row has `tools`, an answer must have the form of one next step (`rewards.form`), and a sentence
of its own besides the call.

It gives no reward for lists of terms, copies, refusals and empty calls, in any language. A sentence
earns its terms with enough own words around them, which occur in neither the prompt nor the context.
An action earns its share if it is a command, a tool call or code, and names a term.

It cannot check whether an answer is correct or makes sense: a fluent wrong diagnosis scores like a
correct one, and opening the file that the failure names is always a success. Grade with verifiers if
a row has what they need.
"""

import json
import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pimono_sdpo.failures import CATEGORIES
from rewards.answers import Answer, Call, Conversation, parse_answer, text_of
from rewards.form import find_problem

__all__ = ["text_of", "trace_grounding_reward"]

GROUNDING_WEIGHT = 0.7
ACTION_WEIGHT = 0.3  # an action that names a term, in addition to sentences that do
ACTION_ONLY = 0.45  # the same action without such sentences
CALL_ONLY = 0.3  # the same where the row has tools, below the usual threshold of 0.35
OTHER_ACTION = 0.1  # an action without a term
BREADTH = (0.0, 0.6, 0.8, 1.0)  # by number of terms
MAX_TERMS_PER_SENTENCE = 2
MIN_OWN_WORDS = 4
OWN_WORDS_PER_TERM = 5  # in a sentence with more terms; fewer words make it a list
MIN_OWN_WORDS_SHARE = 0.75
MIN_NEW_WORDS = 10  # in all sentences, for the full score
MAX_OVERLAP = 0.6  # of the words of two sentences; more means a template that was filled in twice
MAX_CHARS = 50_000

FindTerms = Callable[[str], set[str]]


def trace_grounding_reward(
    prompts: Sequence[str | Conversation],
    completions: Sequence[str | Conversation],
    reward_terms: Sequence[Sequence[str] | None] | None = None,
    privileged_context: Sequence[str | None] | None = None,
    tools: Sequence[Sequence[Any] | None] | None = None,
    verifier_spec: Sequence[str | None] | None = None,
    **_: object,
) -> list[float | None]:
    """Score each completion by its own sentences that use concrete terms of its row; None for a row without terms.

    >>> answer = "The build stops because src/cli.ts is missing, so I restore that file with git."
    >>> ask = "Why does the build fail?"
    >>> trace_grounding_reward([ask], [answer], [["enoent", "src/cli.ts"]])
    [0.42]
    >>> trace_grounding_reward([ask], ["enoent src/cli.ts"], [["enoent", "src/cli.ts"]])
    [0.0]
    """
    empty = [None] * len(completions)
    columns = (reward_terms or empty, privileged_context or empty, tools or empty, verifier_spec or empty)
    rewards = []
    for prompt, completion, row_terms, context, row_tools, spec in zip(prompts, completions, *columns, strict=True):
        score = _score(text_of(completion, "assistant"), row_terms or (), (text_of(prompt), context or ""))
        if score and row_tools:
            decoded = json.loads(spec or "{}")
            if find_problem(completion, row_tools, decoded if isinstance(decoded, dict) else {}):
                score = 0.0
            elif score == ACTION_ONLY:
                score = CALL_ONLY
        rewards.append(score)
    return rewards


def _score(text: str, reward_terms: Sequence[str], references: tuple[str, str]) -> float | None:
    terms = frozenset({term.lower() for term in reward_terms} - {*CATEGORIES, ""})
    if not terms:
        return None

    def find_terms(text: str) -> set[str]:
        return set(_pattern(terms).findall(text))

    answer = parse_answer(text[:MAX_CHARS])
    score = _score_sentences(split_sentences(strip_markdown(answer.prose), references), find_terms, len(terms))
    action = find_action(answer, find_terms, references)
    # The sentences may name the term instead of the edit.
    if score and action >= Action.EDIT:
        return round(max(score + ACTION_WEIGHT, ACTION_ONLY), 6)
    if action is Action.WITH_TERM:
        return ACTION_ONLY
    return round(score + (OTHER_ACTION if action else 0.0), 6)


def _score_sentences(sentences: Sequence["Sentence"], find_terms: FindTerms, term_count: int) -> float:
    """Score the sentences by the terms that they name, and by how much they add to the references."""
    if any(_REFUSAL.search(sentence.text) for sentence in sentences):
        return 0.0
    counted: dict[str, tuple[set[str], set[str]]] = {}
    new_words: set[str] = set()
    for sentence in sentences:
        terms = find_terms(sentence.text)
        own = {word: new for word, new in sentence.own if not any(word in term or term in word for term in terms)}
        is_question = sentence.text.rstrip().endswith(("?", "\uff1f"))
        is_list = len(terms) > MAX_TERMS_PER_SENTENCE and len(own) < OWN_WORDS_PER_TERM * len(terms)
        is_own = len(own) >= MIN_OWN_WORDS and len(sentence.own) >= MIN_OWN_WORDS_SHARE * sentence.length
        if is_own and not is_question and not is_list:
            counted[sentence.text.strip()] = terms, {*own}
            new_words |= {word for word, is_new in own.items() if is_new}
    credited: set[str] = set()
    for text, (terms, own_words) in counted.items():
        others = (words for key, (other_terms, words) in counted.items() if key != text and other_terms)
        if not any(len(own_words & words) >= MAX_OVERLAP * len(own_words | words) for words in others):
            credited.update(sorted(terms - credited)[:MAX_TERMS_PER_SENTENCE])
    breadth = BREADTH[min(len(credited), 3)] if len(credited) < term_count else 1.0
    return GROUNDING_WEIGHT * breadth * min(1.0, len(new_words) / MIN_NEW_WORDS)


@lru_cache(maxsize=64)
def _pattern(terms: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern that matches the terms as whole words; where terms overlap, it matches the longer one."""
    longest_first = sorted(terms, key=lambda term: (-len(term), term))
    return re.compile(rf"(?<![a-z0-9_])(?:{'|'.join(map(re.escape, longest_first))})(?![a-z0-9_])")


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_REFUSAL = re.compile("|".join(_TABLE["refusals"]))
_PROGRAMS = frozenset(_TABLE["programs"].split())
MAX_ACTIONS = 16  # of each kind
MAX_TERMS_IN_ACTION = 2  # more terms are a list
MIN_CODE_WORDS = 3  # outside of strings
MIN_OWN_CODE_WORDS = 2
MAX_LOCATION_CHARS = 300  # a longer argument is content rather than a path or pattern

_TOOL = re.compile(
    r"(?:^|[._-])(?:read|view|open|cat|edit|replace|patch|write|create|insert|bash|sh|shell|run|exec|"
    r"execute|terminal|command|grep|rg|search|find|glob|python|test)(?:$|[._-])"
)
_RUNS = re.compile(r"(?:^|[._-])(?:bash|sh|shell|run|exec|execute|terminal|command)(?:$|[._-])")
_SEGMENT = re.compile(r"&&|\|\||[;|\n]")
_STRING = re.compile(r'"[^"\n]*"|\'[^\'\n]*\'|`[^`\n]*`')
_STATEMENT = re.compile(
    r"[(){};=]|^\s*(?:return|import|from|def|fn|func|if|for|case|select|let|const|var|use|pub|class)\b"
)
_CHANGED = re.compile(r"^[+-](?![+-])", re.MULTILINE)


class Action(IntEnum):
    """How much an action does about the failure."""

    NOTHING = 0
    OTHER = 1
    EDIT = 2
    WITH_TERM = 3


def find_action(answer: Answer, find_terms: FindTerms, references: tuple[str, str]) -> Action:
    """Return the best action of an answer; `find_terms` returns the terms in a text."""
    actions = [_rate_command(text, find_terms, references) for text in answer.commands[:MAX_ACTIONS]]
    actions += [_rate_call(call, find_terms, references) for call in answer.calls[:MAX_ACTIONS]]
    actions += [_rate_code(text, find_terms, references) for text in answer.code[:MAX_ACTIONS]]
    return max(actions, default=Action.NOTHING)


def _rate_command(text: str, find_terms: FindTerms, references: tuple[str, str]) -> Action:
    """Rate a shell command; echoing terms or listing a folder does not count."""
    text = text[: MAX_LOCATION_CHARS * 4]
    # A command that occurs in a reference is a copy, however short, even if it is the one that failed.
    if any(text.strip() in reference for reference in references):
        return Action.NOTHING
    parts = [part.split(None, 1) for part in _SEGMENT.split(text)]
    arguments = [part[1] for part in parts if len(part) == 2 and part[0] in _PROGRAMS]
    if not arguments or not _count_own_words(text, references):
        return Action.NOTHING
    has_term = find_terms("\n".join(arguments).lower()) and len(find_terms(text.lower())) <= MAX_TERMS_IN_ACTION
    return Action.WITH_TERM if has_term else Action.OTHER


def _rate_call(call: Call, find_terms: FindTerms, references: tuple[str, str]) -> Action:
    name = call.name.lower()
    texts = list(islice(_find_texts(call.arguments), MAX_ACTIONS))
    if not _TOOL.search(name) or not texts:
        return Action.NOTHING
    if _RUNS.search(name):
        return max(_rate_command(text, find_terms, references) for text in texts)
    contents = [text for text in texts if len(text) > MAX_LOCATION_CHARS or "\n" in text]
    locations = [text for text in texts if text not in contents]
    if any(not _count_own_words(text, references) for text in contents):
        return Action.NOTHING
    if any(_rate_code(text, find_terms, references) is Action.WITH_TERM for text in contents):
        return Action.WITH_TERM
    has_term = 1 <= len(find_terms("\n".join(locations).lower())) <= MAX_TERMS_IN_ACTION
    return Action.WITH_TERM if has_term else Action.OTHER


def _find_texts(value: Any) -> Iterator[str]:
    """Yield the strings in the arguments of a call, including those of a list of edits."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str) and item.strip():
            yield item
        elif isinstance(item, dict | list):
            pending += reversed(list(item.values() if isinstance(item, dict) else item))


def _rate_code(text: str, find_terms: FindTerms, references: tuple[str, str]) -> Action:
    """Rate code or a diff, which must contain words that the references do not have."""
    changed = [line[1:] for line in text.split("\n") if _CHANGED.match(line)]
    lines = [line for line in changed or text.split("\n") if line.strip()]
    if sum(map(bool, map(_STATEMENT.search, lines))) * 2 < max(len(lines), 1):
        return Action.NOTHING
    body = "\n".join(lines).strip()
    is_data = body.startswith("{") and body.endswith("}") and '":' in body
    bare = body if is_data else _STRING.sub("''", body)
    own_words = min(_count_own_words(text, references) for text in (body, bare))
    if len(split_words(bare)) < MIN_CODE_WORDS or own_words < MIN_OWN_CODE_WORDS:
        return Action.NOTHING
    return Action.WITH_TERM if find_terms(text.lower()) else Action.EDIT


def _count_own_words(text: str, references: tuple[str, str]) -> int:
    return sum(len(sentence.own) for sentence in split_sentences(text, references))


COPY_LENGTH = 5
COPY_CONTENT_LENGTH = 4  # content words in the order of a reference, with any words between them
MAX_FUNCTION_WORD = 3
MAX_HEADING_WORDS, MAX_HEADING_CHARS = 4, 40  # also an item that is too short to be a sentence
MAX_JOINED_CHARS = 60  # of consecutive headings

_CJK_CHAR = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
# A single CJK character says little, so words of these scripts are overlapping pairs of characters.
_WORD = re.compile(rf"{_CJK_CHAR}(?={_CJK_CHAR})|[a-z0-9_$][\w./:@$+-]*|(?!{_CJK_CHAR})[^\W\d_]\w*")
_SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s|(?<=[\u3002\uff01\uff1f])")
_MARK = re.compile(r"^[ \t]*(?:#{1,6}[ \t]|[-*+\u2022][ \t]|\d{1,3}[.)][ \t])?[ \t]*")
_CJK = re.compile(_CJK_CHAR)


class Sentence(NamedTuple):
    """A sentence in lower case, its number of words, and the words not copied, each with whether it is new.

    A word is new if it occurs in no reference.
    """

    text: str
    length: int
    own: list[tuple[str, bool]]


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, with paths and identifiers kept whole, CJK text as pairs.

    >>> split_words("Open src/cli.ts:41, then run it.")
    ['open', 'src/cli.ts:41', 'then', 'run', 'it']
    """
    return _find_words(text.lower())[1]


def strip_markdown(text: str) -> str:
    """Remove Markdown markup; join headings with the text below them.

    >>> strip_markdown("**Cause**\\n\\n- the loop in the parser ends early")
    'Cause: the loop in the parser ends early'
    """
    lines: list[str] = []
    heading = ""
    for raw in text.replace("**", "").split("\n"):
        line = _MARK.sub("", raw, count=1).rstrip()
        is_short = len(line) < MAX_HEADING_CHARS and len(line.split()) <= MAX_HEADING_WORDS
        if is_short and line[-1:] not in ".!?;\u3002" and len(heading) < MAX_JOINED_CHARS:
            heading += line.rstrip(":") + ": "
        elif line:
            lines.append(heading + line)
            heading = ""
    return "\n".join([*lines, heading] if heading else lines)


def split_sentences(text: str, references: Iterable[str]) -> list[Sentence]:
    """Split a text into sentences; words in a run of COPY_LENGTH words of a reference count as copied."""
    text = text.lower()
    reference_words = list(map(_split_reference, references))
    vocabulary = set(chain.from_iterable(reference_words))
    starts, words = _find_words(text)
    copied = {index for reference in reference_words for index in _find_copied(words, reference)}
    sentences = []
    ends = [(0, 0), *(match.span() for match in _SENTENCE_END.finditer(text)), (len(text), len(text))]
    for (_, begin), (end, _) in pairwise(ends):
        first, last = bisect_left(starts, begin), bisect_left(starts, end)
        own = [(words[index], words[index] not in vocabulary) for index in range(first, last) if index not in copied]
        sentences.append(Sentence(text[begin:end], last - first, own))
    return sentences


_split_reference = lru_cache(maxsize=64)(split_words)


def _find_words(lowered: str) -> tuple[list[int], list[str]]:
    """Return where each word begins, and the words; CJK text is split into pairs of characters."""
    matches = list(_WORD.finditer(lowered))
    starts = [match.start() for match in matches]
    pairs = (lowered[at : at + 2] if _CJK.match(lowered, at) else "" for at in starts)
    return starts, [pair or match[0].rstrip(".:/-+") for pair, match in zip(pairs, matches, strict=True)]


def _find_copied(words: list[str], reference: list[str]) -> Iterator[int]:
    """Yield the indexes of words in runs of a reference, of all its words or only of its content words.

    So a copy is found even if other words were inserted.
    """
    content = [word for word in reference if len(word) > MAX_FUNCTION_WORD or _CJK.match(word)]
    known = set(content)
    of_content = [index for index, word in enumerate(words) if word in known]
    for indexes, source, length in (
        (range(len(words)), reference, COPY_LENGTH),
        (of_content, content, COPY_CONTENT_LENGTH),
    ):
        runs = set(_list_runs(source, length))
        for start, run in enumerate(_list_runs([words[index] for index in indexes], length)):
            if run in runs:
                yield from indexes[start : start + length]


def _list_runs(words: list[str], length: int) -> Iterable[tuple[str, ...]]:
    return zip(*(words[offset:] for offset in range(length)), strict=False)
