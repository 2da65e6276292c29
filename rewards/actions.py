"""Judge what an answer does: commands, calls of tools, code; and whether it aims at the failure."""

import re
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import islice
from typing import Any

from rewards.answers import Answer, Call
from rewards.words import sentences, words

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
