"""Check whether an answer deals with the failure it was asked about: a smoke test, not a grade.

columns  reward_terms, privileged_context / range 0 to 1, or None without a concrete term

It tells stuffing, copies, refusals and empty calls from an answer, in any language: a sentence
earns its terms by words of its own around them, which neither the prompt nor the context has; an
action earns its part when it is a command, a call of a tool or code, and names a term.

It cannot tell whether an answer is right, or makes sense: a fluent wrong diagnosis scores like a
right one, and opening the file that the failure names is always a success. Grade with verifiers
where a row has what they need.
"""

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
from rewards.answers import Answer, Call, Conversation, parsed, text_of

__all__ = ["text_of", "trace_grounding_reward"]

GROUNDING_WEIGHT = 0.7
ACTION_WEIGHT = 0.3  # an action that names a term, beside what is said
ACTION_ONLY = 0.45  # the same action, when nothing is said
ACTION_ALONE = 0.1  # any other action
BREADTH = (0.0, 0.6, 0.8, 1.0)  # by terms named
MAX_TERMS_PER_SENTENCE = 2
MIN_OWN_WORDS = 4
OWN_PER_TERM = 5  # words, where there are more terms; fewer make a list
MIN_OWN_WORDS_SHARE = 0.75
NOVEL_NEEDED = 10  # in all sentences
ALIKE = 0.6  # of the words of two sentences: a template, filled twice
MAX_CHARS = 50_000

Named = Callable[[str], set[str]]  # the terms in a text


def trace_grounding_reward(
    prompts: Sequence[str | Conversation],
    completions: Sequence[str | Conversation],
    reward_terms: Sequence[Sequence[str] | None] | None = None,
    privileged_context: Sequence[str | None] | None = None,
    **_: object,
) -> list[float | None]:
    """Score each completion by the concrete terms of its row that its own sentences use; None for a row without any.

    >>> answer = "The build stops because src/cli.ts is missing, so I restore that file with git."
    >>> ask = "Why does the build fail?"
    >>> trace_grounding_reward([ask], [answer], [["enoent", "src/cli.ts"]])
    [0.42]
    >>> trace_grounding_reward([ask], ["enoent src/cli.ts"], [["enoent", "src/cli.ts"]])
    [0.0]
    """
    terms = reward_terms or [None] * len(completions)
    contexts = privileged_context or [None] * len(completions)
    return [
        _score(text_of(completion, "assistant"), given or (), (text_of(prompt), context or ""))
        for prompt, completion, given, context in zip(prompts, completions, terms, contexts, strict=True)
    ]


def _score(text: str, reward_terms: Sequence[str], references: tuple[str, str]) -> float | None:
    terms = frozenset({term.lower() for term in reward_terms} - {*CATEGORIES, ""})
    if not terms:
        return None

    def named(text: str) -> set[str]:
        return set(_pattern(terms).findall(text))

    answer = parsed(text[:MAX_CHARS])
    said = _said(sentences(unwrapped(answer.prose), references), named, len(terms))
    done = act(answer, named, references)
    # An edit may leave it to the sentence beside it to name what it edits.
    if said and done >= Act.EDIT:
        return round(max(said + ACTION_WEIGHT, ACTION_ONLY), 6)
    if done is Act.AIMED:
        return ACTION_ONLY
    return round(said + (ACTION_ALONE if done else 0.0), 6)


def _said(parts: Sequence["Sentence"], named: Named, terms: int) -> float:
    """Score what the sentences say: the terms they name, and how much they say of them."""
    if any(_REFUSAL.search(part.text) for part in parts):
        return 0.0
    said: dict[str, tuple[set[str], set[str]]] = {}
    novel: set[str] = set()
    for part in parts:
        mine = named(part.text)
        free = {word: new for word, new in part.own if not any(word in term or term in word for term in mine)}
        is_question = part.text.rstrip().endswith(("?", "\uff1f"))
        is_list = len(mine) > MAX_TERMS_PER_SENTENCE and len(free) < OWN_PER_TERM * len(mine)
        is_own = len(free) >= MIN_OWN_WORDS and len(part.own) >= MIN_OWN_WORDS_SHARE * part.length
        if is_own and not is_question and not is_list:
            said[part.text.strip()] = mine, {*free}
            novel |= {word for word, is_new in free.items() if is_new}
    credited: set[str] = set()
    for text, (mine, own) in said.items():
        others = (other for key, (terms_of, other) in said.items() if key != text and terms_of)
        if not any(len(own & o) >= ALIKE * len(own | o) for o in others):
            credited.update(sorted(mine - credited)[:MAX_TERMS_PER_SENTENCE])
    breadth = BREADTH[min(len(credited), 3)] if len(credited) < terms else 1.0
    return GROUNDING_WEIGHT * breadth * min(1.0, len(novel) / NOVEL_NEEDED)


@lru_cache(maxsize=64)
def _pattern(terms: frozenset[str]) -> re.Pattern[str]:
    """Return what matches the terms that stand as a whole, of overlapping ones the longer."""
    longest_first = sorted(terms, key=lambda term: (-len(term), term))
    return re.compile(rf"(?<![a-z0-9_])(?:{'|'.join(map(re.escape, longest_first))})(?![a-z0-9_])")


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_REFUSAL = re.compile("|".join(_TABLE["refusals"]))
_PROGRAMS = frozenset(_TABLE["programs"].split())
MAX_ACTIONS = 16  # of a kind
MAX_TERMS_AIMED = 2  # more is a list
MIN_NAMES = 3  # what code must consist of, besides its strings
MIN_OWN = 2
SHORT = 300  # an argument that says where, not what

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


class Act(IntEnum):
    """How much an answer does about the failure."""

    NOTHING = 0
    SOMETHING = 1
    EDIT = 2
    AIMED = 3


def act(answer: Answer, named: Named, references: tuple[str, str]) -> Act:
    """Return the best that an answer does; `named` finds the terms in a text."""
    found = [_command(text, named, references) for text in answer.commands[:MAX_ACTIONS]]
    found += [_called(call, named, references) for call in answer.calls[:MAX_ACTIONS]]
    found += [_code(text, named, references) for text in answer.code[:MAX_ACTIONS]]
    return max(found, default=Act.NOTHING)


def _command(text: str, named: Named, references: tuple[str, str]) -> Act:
    """Judge a shell command; echoing terms or listing a folder is none."""
    text = text[: SHORT * 4]
    # A command that a reference shows, be it the one that failed, is a copy however short it is.
    if any(text.strip() in reference for reference in references):
        return Act.NOTHING
    parts = [part.split(None, 1) for part in _SEGMENT.split(text)]
    given = [part[1] for part in parts if len(part) == 2 and part[0] in _PROGRAMS]
    if not given or not _count_own(text, references):
        return Act.NOTHING
    is_aimed = named("\n".join(given).lower()) and len(named(text.lower())) <= MAX_TERMS_AIMED
    return Act.AIMED if is_aimed else Act.SOMETHING


def _called(call: Call, named: Named, references: tuple[str, str]) -> Act:
    name = call.name.lower()
    texts = list(islice(_texts(call.arguments), MAX_ACTIONS))
    if not _TOOL.search(name) or not texts:
        return Act.NOTHING
    if _RUNS.search(name):
        return max(_command(text, named, references) for text in texts)
    what = [text for text in texts if len(text) > SHORT or "\n" in text]
    where = [text for text in texts if text not in what]
    if any(not _count_own(text, references) for text in what):
        return Act.NOTHING
    if any(_code(text, named, references) is Act.AIMED for text in what):
        return Act.AIMED
    is_aimed = 1 <= len(named("\n".join(where).lower())) <= MAX_TERMS_AIMED
    return Act.AIMED if is_aimed else Act.SOMETHING


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in the arguments of a call, also those of a list of edits."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str) and item.strip():
            yield item
        elif isinstance(item, dict | list):
            pending += reversed(list(item.values() if isinstance(item, dict) else item))


def _code(text: str, named: Named, references: tuple[str, str]) -> Act:
    """Judge code or a diff: it must hold words of its own; a term makes it aimed."""
    changed = [line[1:] for line in text.split("\n") if _CHANGED.match(line)]
    lines = [line for line in changed or text.split("\n") if line.strip()]
    if sum(map(bool, map(_STATEMENT.search, lines))) * 2 < max(len(lines), 1):
        return Act.NOTHING
    body = "\n".join(lines).strip()
    is_data = body.startswith("{") and body.endswith("}") and '":' in body
    bare = body if is_data else _STRING.sub("''", body)
    if len(words(bare)) < MIN_NAMES or min(_count_own(one, references) for one in (body, bare)) < MIN_OWN:
        return Act.NOTHING
    return Act.AIMED if named(text.lower()) else Act.EDIT


def _count_own(text: str, references: tuple[str, str]) -> int:
    return sum(len(part.own) for part in sentences(text, references))


COPY_LENGTH = 5
COPY_CONTENT = 4  # in the order of a reference, whatever stands between
SHORT_WORD = 3
SHORT_WORDS, SHORT_CHARS = 4, 40  # a heading, or an item too short to stand alone
HEADING_CHARS = 60

_SIGN = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
# One sign of a script without spaces says little: its words are overlapping pairs of signs.
_WORD = re.compile(rf"{_SIGN}(?={_SIGN})|[a-z0-9_$][\w./:@$+-]*|(?!{_SIGN})[^\W\d_]\w*")
_SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s|(?<=[\u3002\uff01\uff1f])")
_MARK = re.compile(r"^[ \t]*(?:#{1,6}[ \t]|[-*+\u2022][ \t]|\d{1,3}[.)][ \t])?[ \t]*")
_CJK = re.compile(_SIGN)


class Sentence(NamedTuple):
    """A lower-cased sentence, how many words it has, and those not copied: whether no reference has them at all."""

    text: str
    length: int
    own: list[tuple[str, bool]]


def words(text: str) -> list[str]:
    """Lower-cased words; paths, codes and identifiers stay whole, CJK text comes in pairs.

    >>> words("Open src/cli.ts:41, then run it.")
    ['open', 'src/cli.ts:41', 'then', 'run', 'it']
    """
    return _placed(text.lower())[1]


def unwrapped(text: str) -> str:
    """Drop Markdown's marks; join headings to what they head.

    >>> unwrapped("**Cause**\\n\\n- the loop in the parser ends early")
    'Cause: the loop in the parser ends early'
    """
    lines: list[str] = []
    heading = ""
    for raw in text.replace("**", "").split("\n"):
        line = _MARK.sub("", raw, count=1).rstrip()
        is_short = len(line) < SHORT_CHARS and len(line.split()) <= SHORT_WORDS
        if is_short and line[-1:] not in ".!?;\u3002" and len(heading) < HEADING_CHARS:
            heading += line.rstrip(":") + ": "
        elif line:
            lines.append(heading + line)
            heading = ""
    return "\n".join([*lines, heading] if heading else lines)


def sentences(text: str, references: Iterable[str]) -> list[Sentence]:
    """Split a text; words inside a run of COPY_LENGTH words of a reference are not its own."""
    text = text.lower()
    known = list(map(_words_of, references))
    vocabulary = set(chain.from_iterable(known))
    starts, flow = _placed(text)
    copied = {index for found in known for index in _copied_from(flow, found)}
    out = []
    ends = [(0, 0), *(match.span() for match in _SENTENCE_END.finditer(text)), (len(text), len(text))]
    for (_, begin), (end, _) in pairwise(ends):
        first, last = bisect_left(starts, begin), bisect_left(starts, end)
        own = [(flow[at], flow[at] not in vocabulary) for at in range(first, last) if at not in copied]
        out.append(Sentence(text[begin:end], last - first, own))
    return out


_words_of = lru_cache(maxsize=64)(words)


def _placed(lowered: str) -> tuple[list[int], list[str]]:
    """Return where each word begins, and the words; of CJK text the pairs of signs."""
    matches = list(_WORD.finditer(lowered))
    starts = [match.start() for match in matches]
    pairs = (lowered[at : at + 2] if _CJK.match(lowered, at) else "" for at in starts)
    return starts, [pair or match[0].rstrip(".:/-+") for pair, match in zip(pairs, matches, strict=True)]


def _copied_from(flow: list[str], found: list[str]) -> Iterator[int]:
    """Yield the places of words in runs of a reference, of all its words or of those of content.

    So a copy stays a copy when other words are woven in.
    """
    # A longer word carries content rather than holding a sentence together.
    content = [word for word in found if len(word) > SHORT_WORD or _CJK.match(word)]
    known = set(content)
    picked = [at for at, word in enumerate(flow) if word in known]
    for places, reference, length in ((range(len(flow)), found, COPY_LENGTH), (picked, content, COPY_CONTENT)):
        runs = set(_runs(reference, length))
        for start, run in enumerate(_runs([flow[at] for at in places], length)):
            if run in runs:
                yield from places[start : start + length]


def _runs(found: list[str], length: int) -> Iterable[tuple[str, ...]]:
    return zip(*(found[offset:] for offset in range(length)), strict=False)
