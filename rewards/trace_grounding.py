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
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import Any

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
NOVEL_PER_SENTENCE = 2
NOVEL_NEEDED = 10  # in all sentences
ALIKE = 0.6  # of the words of two sentences: a template, filled twice
MAX_CHARS = 50_000


def trace_grounding_reward(
    prompts: Sequence[str | Conversation],
    completions: Sequence[str | Conversation],
    reward_terms: Sequence[Sequence[str] | None] | None = None,
    privileged_context: Sequence[str | None] | None = None,
    **_: object,
) -> list[float | None]:
    """Score each completion by the concrete terms of its row that its own sentences use.

    Usable as it is in TRL's SDPO and GRPO trainers, which pass every dataset column. A row without
    `reward_terms`, or with nothing but categories among them, gives None.

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
        for prompt, completion, given, context in zip(
            prompts, completions, terms, contexts, strict=True
        )
    ]


def _score(text: str, reward_terms: Sequence[str], references: tuple[str, str]) -> float | None:
    terms = {term.lower() for term in reward_terms} - set(CATEGORIES) - {""}
    if not terms:
        return None
    answer = parsed(text[:MAX_CHARS])
    said = _said(sentences(unwrapped(answer.prose), references), terms)
    done = act(answer, partial(_named, terms=terms), references)
    # An edit may leave it to the sentence beside it to name what it edits.
    if said and done >= Act.EDIT:
        return round(max(said + ACTION_WEIGHT, ACTION_ONLY), 6)
    if done is Act.AIMED:
        return ACTION_ONLY
    return round(said + (ACTION_ALONE if done else 0.0), 6)


def _said(parts: Sequence["Sentence"], terms: set[str]) -> float:
    """Score what the sentences say: the terms they name, and how much they say of them."""
    if any(_REFUSAL.search(part.text) for part in parts):
        return 0.0
    said: dict[str, tuple[set[str], set[str], set[str]]] = {}
    for part in parts:
        named = set(_named(part.text, terms))
        own = {word.text for word in part.own if not _names(word.text, named)}
        novel = {word.text for word in part.own if word.novel and not _names(word.text, named)}
        is_question = part.text.rstrip().endswith(("?", "\uff1f"))
        if is_question or len(part.own) < MIN_OWN_WORDS_SHARE * len(part.words):
            continue
        listed = len(named) > MAX_TERMS_PER_SENTENCE and len(own) < OWN_PER_TERM * len(named)
        if len(novel) >= NOVEL_PER_SENTENCE and len(own) >= MIN_OWN_WORDS and not listed:
            said[part.text.strip()] = named, own, novel
    named = set()
    for text, (mine, own, _) in said.items():
        others = (other[1] for key, other in said.items() if key != text and other[0])
        if mine and not any(len(own & o) >= ALIKE * len(own | o) for o in others):
            named.update(sorted(mine - named)[:MAX_TERMS_PER_SENTENCE])
    novel = {word for _, _, words_of in said.values() for word in words_of}
    credited = min(len(named), len(BREADTH) - 1)
    breadth = 1.0 if credited == len(terms) else BREADTH[credited]
    return GROUNDING_WEIGHT * breadth * min(1.0, len(novel) / NOVEL_NEEDED)


def _names(word: str, named: set[str]) -> bool:
    return any(word in term or term in word for term in named)


def _named(text: str, terms: set[str]) -> list[str]:
    """Return the terms in a text, of overlapping ones the longer."""
    found: list[str] = []
    edge = 0
    for start, end, term in _occurrences(text, terms):
        if start >= edge:
            found.append(term)
        edge = max(edge, end)
    return found


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


_NEVER = (
    r"(?:can ?not|can['\u2019]t|won['\u2019]t|will not|would rather not|must not|unable to"
    r"|not able to)"
)
_HELP = (
    r"(?:help|assist|comply|discuss|answer|provide|support|engage|fulfil|continue|work on|touch)"
)

_REFUSAL = re.compile(
    rf"\bsorry\b|\b(?:i|we)(?: am| are|['\u2019]m|['\u2019]re)? {_NEVER} (?:\w+ )?{_HELP}\b"
    r"|\bi(?: am|['\u2019]m) (?:afraid|unable|not able)\b|\bas an ai\b|\bnot possible for me\b"
    r"|\b(?:i|we) (?:have to |must )?(?:decline|refuse)\b|\b(?:ask|consult) (?:someone|somebody)\b"
    r"|\bnot comfortable\b|\b(?:do not|don['\u2019]t) have access\b"
    r"|\b(?:forbids?|forbidden|prohibit\w*|off[ -]limits)\b"
    r"|\bagainst (?:my|the|our)? ?(?:policy|policies|guidelines|rules)\b"
    r"|tut mir leid|kann (?:ich )?(?:\w+ )?nicht helfen|désolé|ne peux pas (?:vous )?aider"
    r"|lo siento|no puedo ayudar|desculpe|não posso ajudar|mi dispiace|non posso aiutar"
    r"|не могу помочь|извините|к сожалению, я не|przykro mi|nie mogę pomóc|przepraszam"
    r"|申し訳|お手伝いできません|抱歉|对不起|無法協助|无法帮助|죄송"
)

MAX_ACTIONS = 16  # of a kind
MAX_TERMS_AIMED = 2  # more is a list
MIN_NAMES = 3  # what code must consist of, besides its strings and comments
MIN_OWN = 2
MIN_OWN_SHARE = 0.2
SHORT = 300  # an argument that says where, not what

_PROGRAMS = frozenset(
    """
    awk ast-grep bash biome black bun bundle cargo cat chmod clang cmake composer cp ctest deno diff
    docker dotnet eslint fd find gcc gh git go gofmt gradle grep head helm jest jq kubectl
    make mix mkdir mv mypy mvn nl node npm npx nox perl php pip pip3 pnpm poetry
    prettier pylint pyright pytest python python3 rg ruby ruff rustc rustfmt sed sh swift tail
    terraform touch tox tree tsc tsgo tsx uv vitest vue-tsc yarn zig ./gradlew ./mvnw
    """.split()
)
_TOOL = re.compile(
    r"(?:^|[._-])(?:read|view|open|cat|edit|replace|patch|write|create|insert|bash|sh|shell|run|exec|"
    r"execute|terminal|command|grep|rg|search|find|glob|python|test)(?:$|[._-])"
)
_RUNS = re.compile(r"(?:^|[._-])(?:bash|sh|shell|run|exec|execute|terminal|command)(?:$|[._-])")
_SEGMENT = re.compile(r"&&|\|\||[;|\n]")
_LEADING = re.compile(r"(?:sudo |time |env |\w{1,40}=\S{0,80} )*")
_STRING = re.compile(r'"[^"\n]*"|\'[^\'\n]*\'|`[^`\n]*`')
_COMMENT = re.compile(r"//[^\n]*|(?:(?<=\s)|^)#(?![\[!])[^\n]*", re.MULTILINE)
_STATEMENT = re.compile(
    r"[(){};=]|^\s*(?:return|import|from|def|fn|func|if|for|case|select|let|const|var|use|pub|class)\b"
)
_NAME = re.compile(r"[^\W\d]\w+")
_IDENTIFIER = re.compile(r"\b(?:[a-z]+[A-Z]\w*|[A-Za-z]+_\w+)")
_CHANGED = re.compile(r"^[+-](?![+-])", re.MULTILINE)

Named = Callable[[str], list[str]]


class Act(IntEnum):
    """How much an answer does about the failure."""

    NOTHING = 0
    SOMETHING = 1
    EDIT = 2
    AIMED = 3


def act(answer: Answer, named: Named, references: tuple[str, str]) -> Act:
    """Return the best that an answer does; `named` finds the terms in a text."""
    found = [
        *(_command(text, named, references) for text in answer.commands[:MAX_ACTIONS]),
        *(_called(call, named, references) for call in answer.calls[:MAX_ACTIONS]),
        *(_code(text, named, references) for text in answer.code[:MAX_ACTIONS]),
    ]
    return max(found, default=Act.NOTHING)


def _command(text: str, named: Named, references: tuple[str, str]) -> Act:
    """Judge a shell command; echoing terms or listing a folder is none."""
    text = text[: SHORT * 4]
    # A command that a reference shows, be it the one that failed, is a copy however short it is.
    if any(text.strip() in reference for reference in references):
        return Act.NOTHING
    parts = [part.strip() for part in _SEGMENT.split(text)]
    working = [part for part in parts if _program(part) in _PROGRAMS]
    if not working or not _own(text, references):
        return Act.NOTHING
    aimed = any(1 <= len(named(part.lower())) <= MAX_TERMS_AIMED for part in working)
    return Act.AIMED if aimed and len(named(text.lower())) <= MAX_TERMS_AIMED else Act.SOMETHING


def _program(command: str) -> str:
    match = _LEADING.match(command)
    found = command[match.end() if match else 0 :].split(None, 1)
    return found[0] if len(found) == 2 else ""


def _called(call: Call, named: Named, references: tuple[str, str]) -> Act:
    name = call.name.lower()
    texts = list(islice(_texts(call.arguments), MAX_ACTIONS))
    if not _TOOL.search(name) or not texts:
        return Act.NOTHING
    if _RUNS.search(name):
        return max(_command(text, named, references) for text in texts)
    where = [text for text in texts if len(text) <= SHORT and "\n" not in text]
    what = [text for text in texts if len(text) > SHORT or "\n" in text]
    if any(not _own(text, references) for text in what):
        return Act.NOTHING
    if any(_code(text, named, references) is Act.AIMED for text in what):
        return Act.AIMED
    aimed = named("\n".join(where).lower())
    return Act.AIMED if 1 <= len(aimed) <= MAX_TERMS_AIMED else Act.SOMETHING


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in the arguments of a call, also those of a list of edits."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if item.strip():
                yield item
        elif isinstance(item, dict):
            pending += reversed(list(item.values()))
        elif isinstance(item, list):
            pending += reversed(item)


def _code(text: str, named: Named, references: tuple[str, str]) -> Act:
    """Judge code: it must hold statements of its own; a term or a known name makes it aimed."""
    if _CHANGED.search(text):
        body = "\n".join(line[1:] for line in text.split("\n") if _CHANGED.match(line))
    else:
        body = text
    bare = body if _is_data(body) else _COMMENT.sub("", _STRING.sub("''", body))
    lines = [line for line in bare.split("\n") if line.strip()]
    statements = sum(1 for line in lines if _STATEMENT.search(line))
    names = {name.lower() for name in _NAME.findall(bare)}
    if statements * 2 < max(len(lines), 1) or len(names) < MIN_NAMES:
        return Act.NOTHING
    # Taking strings out of a copy would hide that it is one.
    own = _count_own(body, references)
    if min(own, _count_own(bare, references)) < MIN_OWN or own < MIN_OWN_SHARE * len(words(body)):
        return Act.NOTHING
    if any(len(named(line.lower())) > MAX_TERMS_AIMED for line in text.split("\n")):
        return Act.NOTHING
    known = {name for reference in references for name in _IDENTIFIER.findall(reference)}
    aimed = named(text.lower()) or known.intersection(_IDENTIFIER.findall(bare))
    return Act.AIMED if aimed else Act.EDIT


def _is_data(text: str) -> bool:
    return text.lstrip().startswith("{") and text.rstrip().endswith("}") and '":' in text


def _own(text: str, references: tuple[str, str]) -> bool:
    return _count_own(text, references) > 0


def _count_own(text: str, references: tuple[str, str]) -> int:
    return sum(len(part.own) for part in sentences(text, references))


COPY_LENGTH = 5
COPY_CONTENT = 4  # in the order of a reference, whatever stands between
SHORT_WORD = 3
SHORT_WORDS, SHORT_CHARS = 4, 40  # a heading, or an item too short to stand alone
WRAPPED_CHARS = 60

_CJK = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
# One sign of a script without spaces says little: its words are overlapping pairs of signs.
_WORD = re.compile(rf"{_CJK}(?={_CJK})|[a-z0-9_$][\w./:@$+-]*|(?!{_CJK})[^\W\d_]\w*")
_SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s|(?<=[\u3002\uff01\uff1f])")
_MARK = re.compile(r"[ \t]*(?:#{1,6}[ \t]|[-*+\u2022][ \t]|\d{1,3}[.)][ \t])?[ \t]*")
_BULLET = re.compile(r"[ \t]*(?:[-*+\u2022]|\d{1,3}[.)])[ \t]")
CJK = re.compile(_CJK)


@dataclass(frozen=True)
class Word:
    """A lower-cased word, and what of it is the answer's own.

    `own`: not part of a copied run; `novel`: no reference has the word at all.
    """

    text: str
    own: bool
    novel: bool


@dataclass(frozen=True)
class Sentence:
    """A sentence or a line: its lower-cased text and its words."""

    text: str
    words: tuple[Word, ...]

    @property
    def own(self) -> list[Word]:
        """The words that are not copied."""
        return [word for word in self.words if word.own]


def words(text: str) -> list[str]:
    """Lower-cased words; paths, codes and identifiers stay whole, CJK text comes in pairs.

    >>> words("Open src/cli.ts:41, then run it.")
    ['open', 'src/cli.ts:41', 'then', 'run', 'it']
    """
    return [word for _, word in _placed(text.lower())]


def unwrapped(text: str) -> str:
    """Drop Markdown's marks; join headings to what they head, and lines that were wrapped.

    >>> unwrapped("**Cause**\\n\\n- the loop in the parser ends early")
    'Cause: the loop in the parser ends early'
    """
    lines: list[str] = []
    short = ""
    wrapped = False
    for raw in text.replace("**", "").split("\n"):
        line = raw[_mark_end(raw) :].rstrip()
        if not line:
            wrapped = False
        elif _is_short(line) and len(short) < WRAPPED_CHARS:
            short += line.rstrip(":") + ": "
            wrapped = False
        elif wrapped and not short and not _BULLET.match(raw):
            lines[-1] += " " + line
            wrapped = len(raw) >= WRAPPED_CHARS
        else:
            lines.append(short + line)
            short = ""
            wrapped = len(raw) >= WRAPPED_CHARS
    return "\n".join([*lines, short] if short else lines)


def sentences(text: str, references: Iterable[str]) -> list[Sentence]:
    """Split a text; words inside a run of COPY_LENGTH words of a reference are not its own.

    A copy stays a copy when other words are woven in: the words of content that a reference knows
    are also compared without those between them.
    """
    text = text.lower()
    known = [(words(reference), reference.split("\n")) for reference in references]
    whole = {tuple(words(line)) for _, lines in known for line in lines}
    vocabulary = {word for found, _ in known for word in found}
    placed = _placed(text)
    flow = [word for _, word in placed]
    copied = {index for found, _ in known for index in _copied_from(flow, found)}
    starts = [start for start, _ in placed]
    out = []
    for begin, end in _cuts(text):
        first, last = bisect_left(starts, begin), bisect_left(starts, end)
        is_line = tuple(flow[first:last]) in whole
        out.append(
            Sentence(
                text[begin:end],
                tuple(
                    Word(
                        flow[index],
                        own=not (is_line or index in copied),
                        novel=flow[index] not in vocabulary,
                    )
                    for index in range(first, last)
                ),
            )
        )
    return out


def _mark_end(line: str) -> int:
    match = _MARK.match(line)
    return match.end() if match else 0


def _is_short(line: str) -> bool:
    return (
        len(line.split()) <= SHORT_WORDS
        and line[-1] not in ".!?;\u3002"
        and len(line) < SHORT_CHARS
    )


def _placed(lowered: str) -> list[tuple[int, str]]:
    return [
        (match.start(), _word_at(lowered, match.start(), match.end()))
        for match in _WORD.finditer(lowered)
    ]


def _word_at(lowered: str, start: int, end: int) -> str:
    if CJK.match(lowered, start):
        return lowered[start : start + 2]
    return lowered[start:end].rstrip(".:/-+")


def _cuts(text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for match in _SENTENCE_END.finditer(text):
        yield begin, match.start()
        begin = match.end()
    yield begin, len(text)


def _copied_from(flow: list[str], found: list[str]) -> set[int]:
    vocabulary = set(found)
    content = [word for word in found if _is_long(word)]
    picked = [i for i, word in enumerate(flow) if word in vocabulary and _is_long(word)]
    runs, content_runs = set(_runs(found, COPY_LENGTH)), set(_runs(content, COPY_CONTENT))
    return _copied(flow, range(len(flow)), runs, COPY_LENGTH) | _copied(
        flow, picked, content_runs, COPY_CONTENT
    )


def _is_long(word: str) -> bool:
    """Whether a word carries content rather than holding a sentence together, by its length."""
    return len(word) > SHORT_WORD or bool(CJK.match(word))


def _copied(
    flow: list[str], picked: Sequence[int], runs: Collection[tuple[str, ...]], length: int
) -> set[int]:
    copied: set[int] = set()
    for start, run in enumerate(_runs([flow[index] for index in picked], length)):
        if run in runs:
            copied.update(picked[start : start + length])
    return copied


def _runs(found: list[str], length: int) -> Iterable[tuple[str, ...]]:
    return zip(*(found[offset:] for offset in range(length)), strict=False)
