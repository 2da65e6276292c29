"""Take the comments that silence a checker out of a text: `noqa`, `@ts-ignore`, `eslint-disable`.

A directive loses its first letter to `_`, so that lines and columns stay where they were.
"""

import re
from collections import Counter

# Those with a hyphen or an `@` are no names and stand for themselves, also across lines of a block.
_ANYWHERE = re.compile(
    r"@ts-(?:nocheck|ignore|expect-error)|(?:es|ox|ts)lint[-:](?:disable|enable)|biome-ignore|"
    r"deno-lint-ignore|prettier-ignore|jshint\s{1,9}ignore|@(?:no)?flow\b",
    re.IGNORECASE,
)
_LEAD = re.compile(r"#|//")
_AFTER_LEAD = re.compile(
    r"\b(?:noqa\b|nosec\b|type:\s{0,9}ignore|isort:\s{0,9}\w|"
    r"(?:ruff|flake8|mypy|pyright|pyre|pylint|ty|pytype)(?:-\w{1,20}){0,2}\s{0,9}:)",
    re.IGNORECASE,
)
_OF_THE_FILE = re.compile(r"@ts-nocheck|lint[-:]disable(?!-)|ignore-all|ignore-file", re.IGNORECASE)
Key = tuple[str, str]


def without(text: str) -> str:
    """Return the text without any directive.

    >>> without("x = y  # noqa: F821")
    'x = y  # _oqa: F821'
    """
    return "\n".join(map(_blunt, text.split("\n")))


def without_new(before: str, after: str) -> str:
    """Return the text without the directives that an earlier one had not.

    One that speaks for a line is new, too, where that line is.
    """
    known = Counter(key for _, key in _directives(before.split("\n")))
    lines = after.split("\n")
    for at, key in _directives(lines):
        if known[key]:
            known[key] -= 1
        else:
            lines[at] = _blunt(lines[at])
    return "\n".join(lines)


def _directives(lines: list[str]) -> list[tuple[int, Key]]:
    found = []
    for at, line in enumerate(lines):
        if _blunt(line) != line:
            after = lines[at + 1] if at + 1 < len(lines) else ""
            # Such as `@ts-ignore`, which a new line below would use anew.
            of_the_next = _ANYWHERE.search(line) and not _OF_THE_FILE.search(line)
            found.append((at, (line.strip(), after.strip() if of_the_next else "")))
    return found


def _blunt(line: str) -> str:
    line = _ANYWHERE.sub(_first_letter, line)
    lead = _LEAD.search(line)
    if lead is None:
        return line
    return line[: lead.end()] + _AFTER_LEAD.sub(_first_letter, line[lead.end() :])


def _first_letter(found: re.Match[str]) -> str:
    return "_" + found[0][1:]
