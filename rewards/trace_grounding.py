"""Reward a concrete answer that speaks of the failure it was asked about, or acts on it.

columns  reward_terms, privileged_context / range 0 to 1, or None without a concrete term

A sentence earns its terms by the words around them: words of its own, not copied from the prompt or
the context, that say what is wrong or what is done about it (`rewards.words`). An action earns
its part when it is a command, a call of a tool or code, and names a term. Lists, copies, refusals,
denials and results of runs that nobody saw earn nothing.

A heuristic, which cannot tell whether an answer is right: a confident, wrong diagnosis in the words
of the trade scores like a right one, and so does nonsense made of these words on purpose; opening
the file that the failure names is always a success; an answer in a language whose words are not in
the lexicon is scored by its actions alone. Only running the tests can tell.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import Any

from pimono_sdpo.failures import CATEGORIES
from rewards.answers import Answer, Call, Conversation, parsed, text_of
from rewards.words import (
    CJK,
    FUNCTION_WORDS,
    Sentence,
    Word,
    is_move,
    is_technical,
    sentences,
    unwrapped,
    words,
)

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
    r"|\bnot comfortable\b|\b(?:forbids?|forbidden|prohibit\w*|off[ -]limits)\b"
    r"|\bagainst (?:my|the|our)? ?(?:policy|policies|guidelines|rules)\b"
    r"|tut mir leid|kann (?:ich )?(?:\w+ )?nicht helfen|désolé|ne peux pas (?:vous )?aider"
    r"|lo siento|no puedo ayudar|desculpe|não posso ajudar|mi dispiace|non posso aiutar"
    r"|не могу помочь|извините|к сожалению, я не|przykro mi|nie mogę pomóc|przepraszam"
    r"|申し訳|お手伝いできません|抱歉|对不起|無法協助|无法帮助|죄송"
)
_PROBLEM = r"(?:error|problem|bug|issue|failure|fault|defect|mistake)s?"
_DENIAL = re.compile(
    rf"\b(?:no|not an?|isn['\u2019]t an?|never (?:was |had )?an?|without any) (?:\w+ )?{_PROBLEM}\b"
    rf"|\bnot (?:see|find|have|know of) any {_PROBLEM}\b"
    r"|\bnothing (?:is |was |to |at all )*(?:wrong|broken|missing|fix|change|do|failed|be)\b"
    r"|\b(?:works?|worked|working|runs?|is|are) (?:just )?(?:as expected|as intended|correctly|fine"
    r"|perfectly|correct|okay|ok)\b"
    rf"|\b(?:without|zero|free of) (?:any )?{_PROBLEM}\b|\bno (?:changes?|fix|action)\b"
    r"|\bnot (?:broken|wrong|failing|affected)\b|\blooks? (?:good|fine|correct)\b|\bharmless\b"
    r"|\ball is (?:well|good|fine)\b|\bno need (?:to|for)\b"
    r"|\b(?:did|does|do|has|have)(?:n['\u2019]t| not| never) (?:even )?"
    r"(?:fail|failed|happen|happened|occur|occurred)\b|\bnever (?:failed|happened|occurred)\b"
    r"|\b(?:can|should|may|please|just) (?:safely )?ignore\b"
    r"|нет (?:никак\w+ )?(?:ошиб|проблем)|вс[её] (?:работает|в порядке)|nie ma (?:żadn\w+ )?"
    r"(?:błęd|problem)|wszystko (?:działa|jest w porządku)|(?:kein|keine) (?:fehler|problem)"
    r"|alles in ordnung|(?:no hay|não há|non c'è|il n'y a pas d')(?: \w+)? ?(?:err|probl)"
    r"|没有(?:错误|问题)|問題(?:は)?ありません"
)
_ALL_PASS = re.compile(
    r"(?<!that )(?<!until )(?<!whether )(?<!if )"
    r"\b(?:all|every|\d+)(?: \d+)?(?: of the| the)? (?:\w+ )?tests? (?:now )?(?:pass|passed|passes"
    r"|succeed(?:ed)?|are green)\b"
)
_RESULT_LINE = re.compile(
    r"^[ \t]*(?:[✓✔√][^\n]{0,300}(?:\d ?m?s\b|\(\d+ tests?)|(?:PASS|PASSED|OK)[ \t]+\S*[./]\S*"
    r"|(?:---|===)[ \t]+PASS:?|ok[ \t]+\d+|=+[ \t].{0,80}\bpassed\b"
    r"|Tests?(?: Files)?:?[ \t]+\d+ passed"
    r"|\d+ (?:tests? )?pass(?:ed|ing)\b|test result: ok|BUILD SUCCESS|Found 0 errors"
    r"|\S{1,200} (?:PASSED\b|passed[ \t]*$|\.{2,9} ?ok\b)"
    r"|</?tool_(?:response|result|output)s?>"
    r"|(?:Command |Process )?exit(?:ed with)?(?: code:?)? 0\b)",
    re.MULTILINE,
)


def refuses(sentence: str) -> bool:
    """Tell whether a lower-cased sentence declines to help."""
    return bool(_REFUSAL.search(sentence))


def explains_nothing(sentence: str) -> bool:
    """Tell whether a lower-cased sentence refuses, denies, asks, or reports a success."""
    if sentence.rstrip().endswith(("?", "\uff1f")) or refuses(sentence):
        return True
    return bool(_DENIAL.search(sentence) or _ALL_PASS.search(sentence))


def shows_results(text: str, known: str) -> bool:
    """Tell whether a text shows the lines of a successful run that `known` does not have.

    >>> shows_results("  Tests  12 passed (12)", "Tests  1 failed | 11 passed (12)")
    True
    """
    return any(match.group(0).strip() not in known for match in _RESULT_LINE.finditer(text))


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


GROUNDING_WEIGHT = 0.7
ACTION_WEIGHT = 0.3  # an action that names a term, beside what is said
ACTION_ONLY = 0.45  # the same action, when nothing is said
ACTION_ALONE = 0.1  # any other action
INVENTED_RESULTS = 0.2  # at most, for an answer that shows a successful run
BREADTH = (0.0, 0.6, 0.8, 1.0)  # by terms named
TECHNICAL_NEEDED = 6
MOVES_NEEDED = 2

MIN_OWN_WORDS = 4
MIN_CJK = 6  # pairs of signs
MAX_TERMS_PER_SENTENCE = 2
MIN_TECHNICAL_SHARE = 0.34  # of the words of content
MIN_TECHNICAL_CJK = 0.15
MAX_CHARS = 50_000

__all__ = ["text_of", "trace_grounding_reward"]


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
    [0.42]
    >>> trace_grounding_reward([ask], ["enoent src/cli.ts"], [["enoent", "src/cli.ts"]])
    [0.0]
    """
    contexts = privileged_context or [None] * len(completions)
    rows = zip(prompts, completions, reward_terms, contexts, strict=True)
    return [
        _score(text_of(completion, "assistant"), terms, (text_of(prompt), context or ""))
        for prompt, completion, terms, context in rows
    ]


def _score(text: str, reward_terms: Sequence[str], references: tuple[str, str]) -> float | None:
    terms = {term.lower() for term in reward_terms} - set(CATEGORIES) - {""}
    if not terms:
        return None
    text = text[:MAX_CHARS]
    answer = parsed(text)
    said = _said(sentences(unwrapped(answer.prose), references), terms)
    done = act(answer, partial(_named, terms=terms), references)
    # An edit may leave it to the sentence beside it to name what it edits.
    if said and done >= Act.EDIT:
        score = max(said + ACTION_WEIGHT, ACTION_ONLY)
    elif done is Act.AIMED:
        score = ACTION_ONLY
    else:
        score = said + (ACTION_ALONE if done else 0.0)
    if shows_results(text, "\n".join(references)):
        score = min(score, INVENTED_RESULTS)
    return round(score, 6)


def _said(parts: Sequence[Sentence], terms: set[str]) -> float:
    """Score what the sentences say: terms, as many as there are moves and technical words for.

    The function words of a sentence are its frame: filling one frame twice is a template.
    """
    if any(refuses(part.text) for part in parts):
        return 0.0
    named: set[str] = set()
    technical: set[str] = set()
    moves: set[str] = set()
    frames: set[tuple[str, ...]] = set()
    for sentence in parts:
        own = sentence.own
        frame = tuple(word.text for word in own if word.text in FUNCTION_WORDS)
        if frame in frames or not _is_prose(own, len(sentence.words)):
            continue
        if explains_nothing(sentence.text):
            continue
        content = [word for word in own if _is_content(word, terms)]
        telling = {word.text for word in content if is_technical(word.text)}
        if not telling - technical or not _is_mostly_technical(telling, content):
            continue
        technical |= telling
        moves.update(word.text for word in content if word.novel and is_move(word.text))
        found = [term for term in _separate(sentence.text, content, terms) if term not in named]
        named.update(found[:MAX_TERMS_PER_SENTENCE])
        if found and frame:
            frames.add(frame)
    credited = min(len(named), _weight(moves), len(BREADTH) - 1)
    breadth = 1.0 if credited == len(terms) else BREADTH[credited]
    substance = min(1.0, _weight(technical) / TECHNICAL_NEEDED, _weight(moves) / MOVES_NEEDED)
    return GROUNDING_WEIGHT * breadth * substance


def _is_mostly_technical(telling: set[str], content: Sequence[Word]) -> bool:
    cjk = any(CJK.match(word.text) for word in content)
    share = MIN_TECHNICAL_CJK if cjk else MIN_TECHNICAL_SHARE
    return len(telling) >= share * len({word.text for word in content})


def _is_prose(own: Sequence[Word], total: int) -> bool:
    """Tell whether a sentence is more than a copy and has a word that holds it together."""
    if len(own) * 2 < total:
        return False
    if sum(1 for word in own if CJK.match(word.text)) >= MIN_CJK:
        return True
    return len(own) >= MIN_OWN_WORDS and any(word.text in FUNCTION_WORDS for word in own)


def _is_content(word: Word, terms: set[str]) -> bool:
    text = word.text
    if text in FUNCTION_WORDS or text[0].isdigit():
        return False
    return not any(text in term or term in text for term in terms)


def _weight(found: set[str]) -> int:
    """Count words; a pair of CJK signs is half of one."""
    pairs = sum(1 for word in found if CJK.match(word))
    return len(found) - pairs + (pairs + 1) // 2


def _separate(text: str, content: Sequence[Word], terms: set[str]) -> Iterator[str]:
    """Yield the terms in a text; of those with no word of content between, only the first."""
    edge = None
    for start, end, term in _occurrences(text, terms):
        if edge is None or any(edge <= word.start < start for word in content):
            yield term
        edge = end if edge is None else max(edge, end)


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
