"""Write how providers' tokens begin, from the rules of the secret scanner kingfisher.

    pip install kingfisher-secret-scanner
    python -m benchmarks.provider_tokens

writes  processors/provider_tokens.toml
"""

import importlib
import random
import re
import string
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "processors" / "provider_tokens.toml"
HEADER = """\
# How providers' tokens begin, and the least that follows. Written by `python -m benchmarks.provider_tokens`.
#
# These are facts taken from the rules that kingfisher-secret-scanner {version} ships:
#   Kingfisher, https://github.com/mongodb/kingfisher, Copyright 2025-2026 MongoDB, Inc., Apache-2.0
#   Betterleaks, https://github.com/betterleaks/betterleaks, Copyright (c) 2026 Zachary Rice, MIT
#   Veles of OSV-SCALIBR, https://github.com/google/osv-scalibr, Copyright 2025-2026 Google LLC, Apache-2.0

[tokens]
"""
_LETTERS = string.ascii_letters + string.digits
_PRINTED = "".join(map(chr, range(33, 127)))
_CATEGORIES = {"DIGIT": string.digits, "WORD": f"{_LETTERS}_", "SPACE": " "}
# The narrowest of them describes what follows the beginning.
ALPHABETS = {
    "[0-9a-fA-F]": frozenset(string.hexdigits),
    "[A-Za-z0-9]": frozenset(_LETTERS),
    r"[\w-]": frozenset(f"{_LETTERS}_-"),
    r"[\w+/=.%~-]": frozenset(f"{_LETTERS}_-+/=.%~"),
}
# More choices for a character are none that a beginning is spelled with.
MOST_CHOICES = 4
# A shorter beginning says little, and so does a short rest: `su`, `b_`, `key`.
LEAST_BEGINNING, LEAST_REST, LEAST_TOKEN = 3, 8, 18
# So much of a longer rest is enough, as tokens are also printed cut: less behind a beginning of its own, `lin_api_`.
ENOUGH, ENOUGH_BEHIND_NAME = 64, 20
_NAME = re.compile(r".*[A-Za-z]{3}.*[_-]")
# Rules of other secrets than tokens: addresses, hashes, JWTs, keys in files; and what begins a path.
_NO_TOKEN = re.compile(r"\w+:/|0x|eyJ(?!rIjoi|taXJv)|-----|Endpoint=|hooks|ey$|00$|pat$")


def read_rules() -> Iterator[tuple[str, Any]]:
    """Yield the id and the parsed pattern of every rule that reports a secret, as Python reads it."""
    rules = importlib.import_module("kingfisher_sdk").Rules(cache=False)
    for rule in rules.metadata():
        if rule["visible"]:
            detail = rules.detail(rule["id"])
            yield rule["id"], parse_rule(detail["detection_regex"], detail.get("betterleaks_secret_group") or 0)


def parse_rule(pattern: str, group: int) -> tuple[re.Pattern[str], list[Any]]:
    """Return a rule's pattern for Python, and the parsed part that is the secret."""
    compiled = re.compile(_translate(pattern))
    group = compiled.groupindex.get("TOKEN", group or min(compiled.groups, 1))
    parsed = parse(compiled.pattern)
    return compiled, next(_find_group(parsed, group), parsed) if group else parsed


def parse(pattern: str) -> list[Any]:
    """Return the syntax tree of a pattern."""
    return list(importlib.import_module("re._parser").parse(pattern))


def _translate(pattern: str) -> str:
    """Rewrite what Rust's patterns spell otherwise; a flag in the middle holds to the end of its group."""
    for rust, python in (("[:alnum:]", "A-Za-z0-9"), (r"\z", r"\Z")):
        pattern = pattern.replace(rust, python)
    parts: list[str] = []
    opened = [0]
    for token in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?[imsx]+\)|.", pattern, re.DOTALL):
        if re.fullmatch(r"\(\?[imsx]+\)", token):
            parts.append(f"{token[:-1]}:")
            opened[-1] += 1
            continue
        if token == "(":
            opened.append(0)
        if token == ")":
            parts.append(")" * opened.pop())
        parts.append(token)
    return "".join([*parts, ")" * sum(opened)])


def _find_group(items: Iterable[Any], group: int) -> Iterator[list[Any]]:
    for name, value in items:
        if str(name) == "SUBPATTERN":
            if value[0] == group:
                yield list(value[3])
            yield from _find_group(value[3], group)
        elif str(name) == "BRANCH":
            for branch in value[1]:
                yield from _find_group(branch, group)


def _list_characters(items: Iterable[Any]) -> str:
    """Return the printable characters of a class."""
    found: set[str] = set()
    is_negated = False
    for name, value in items:
        match str(name):
            case "NEGATE":
                is_negated = True
            case "LITERAL":
                found.add(chr(value))
            case "RANGE":
                found.update(map(chr, range(value[0], min(value[1], 126) + 1)))
            case "CATEGORY":
                named = _CATEGORIES[str(value).rpartition("_")[2]]
                found.update(set(_PRINTED) - set(named) if "_NOT_" in str(value) else named)
    return "".join(sorted(set(_PRINTED) - found if is_negated else found))


def draw(items: Iterable[Any], chance: random.Random) -> str:
    """Return a text that the parsed pattern matches, except for what it looks at around it."""
    return "".join(_draw(str(name), value, chance) for name, value in items)


def _draw(name: str, value: Any, chance: random.Random) -> str:
    match name:
        case "LITERAL":
            return chr(value)
        case "IN":
            return chance.choice(_list_characters(value))
        case "ANY" | "NOT_LITERAL":
            return chance.choice(_LETTERS)
        case "SUBPATTERN":
            return draw(value[3], chance)
        case "BRANCH":
            return draw(chance.choice(value[1]), chance)
        case "MAX_REPEAT" | "MIN_REPEAT":
            count = chance.randint(value[0], min(value[1], value[0] + 8))
            return "".join(draw(value[2], chance) for _ in range(count))
    return ""


def split_beginning(items: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield every literal beginning of a parsed pattern, and the items behind it."""
    if not items:
        yield "", []
        return
    (name, value), rest = items[0], items[1:]
    match str(name):
        case "LITERAL":
            yield from ((chr(value) + more, left) for more, left in split_beginning(rest))
        case "IN" if len(choices := _list_characters(value)) <= MOST_CHOICES:
            yield from ((one + more, left) for one in choices for more, left in split_beginning(rest))
        case "SUBPATTERN":
            yield from split_beginning([*value[3], *rest])
        case "BRANCH":
            for branch in value[1]:
                yield from split_beginning([*branch, *rest])
        case "AT" | "ASSERT" | "ASSERT_NOT":
            yield from split_beginning(rest)
        case "MAX_REPEAT" if value[:2] == (0, 1):
            yield from split_beginning([*value[2], *rest])
            yield from split_beginning(rest)
        case _:
            yield "", items


def _measure(items: Iterable[Any]) -> Iterator[tuple[set[str], int]]:
    """Yield the characters of each item and how many there are at least."""
    for name, value in items:
        match str(name):
            case "LITERAL":
                yield {chr(value)}, 1
            case "IN":
                yield set(_list_characters(value)), 1
            case "MAX_REPEAT" | "MIN_REPEAT":
                inner = list(_measure(value[2]))
                yield set().union(*(some for some, _ in inner)), value[0] * sum(least for _, least in inner)
            case "SUBPATTERN":
                yield from _measure(value[3])
            case "BRANCH":
                branches = [list(_measure(branch)) for branch in value[1]]
                least = min(sum(count for _, count in branch) for branch in branches)
                yield set().union(*(some for branch in branches for some, _ in branch)), least
            case "AT" | "ASSERT" | "ASSERT_NOT":
                pass
            case _:
                yield set(_PRINTED), 1


def describe_rest(items: list[Any]) -> tuple[str, int]:
    """Return the alphabet of what follows the beginning, and how long it is at least."""
    measured = list(_measure(items))
    for alphabet, characters in ALPHABETS.items():
        least = 0
        for some, count in measured:
            if not some <= characters:
                break
            least += count
        else:
            return alphabet, least
    return alphabet, least


def main() -> None:
    """Write the table."""
    least: dict[tuple[str, str], int] = {}
    for _, (_, secret) in read_rules():
        for beginning, rest in split_beginning(secret):
            alphabet, count = describe_rest(rest)
            is_telling = len(beginning) >= LEAST_BEGINNING or count >= 32
            if not is_telling or count < LEAST_REST or len(beginning) + count < LEAST_TOKEN:
                continue
            if re.search("[A-Za-z]", beginning) and not _NO_TOKEN.match(beginning):
                known = least.get((beginning, alphabet), count)
                enough = ENOUGH_BEHIND_NAME if _NAME.fullmatch(beginning) else ENOUGH
                least[beginning, alphabet] = min(known, count, enough)
    table: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for (beginning, alphabet), count in least.items():
        table[alphabet, count].append(beginning)
    lines = [
        f"'{alphabet}{{{count}}}' = [{', '.join(f'{one!r}' for one in sorted(table[alphabet, count]))}]"
        for alphabet, count in sorted(table)
    ]
    text = HEADER.format(version=version("kingfisher-secret-scanner")) + "\n".join(lines) + "\n"
    OUT.write_text(text, encoding="utf-8")
    print(f"{len(least)} beginnings in {len(table)} lines of {OUT}")


if __name__ == "__main__":
    main()
