"""Pick the concrete tokens of a failure: what an answer about exactly this failure would name."""

import re
from collections.abc import Iterable

MAX_TERMS = 32
MAX_PER_KIND = 8
MAX_LENGTH = 64
MAX_LINE = 500
_SCAN_CHARS = 20_000

# In order of concreteness: places, codes, error names, quoted names, identifiers.
_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"[\w./@$-]*[\w-]+\.[A-Za-z]{1,5}:\d+|\b[a-z][\w-]*:\d+(?=[:)\s])",
        r"\b(?:TS\d{4,5}|E\d{3,4}|[FWBCNS]\d{3}|E[A-Z]{4,}|ERR_[A-Z_]+|SIG[A-Z]{3,4})\b",
        r"\b[A-Za-z_]\w*(?:Error|Exception|Panic)\b",
        r"(?<![\w/.$-])(?:[\w.$@-]+/)*[\w-]+\.(?:tsx?|jsx?|mjs|cjs|py|rs|go|java|rb|c|h|cc|cpp|hpp"
        r"|json|ya?ml|toml|md|css|html|sh|sql|lock)\b",
        r"\b[a-z]+(?:[A-Z][a-z0-9]+)+\b|\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b",
        r"\b[a-z][a-z0-9]+(?:_[a-z0-9]+)+\b",
        r"(?<=[`'\"])[A-Za-z_@][\w@/.-]{2,40}(?=[`'\"])",
    )
)
_PLACE = re.compile(r"^.*\$(?:workspace|home)/")
_GENERIC = frozenset(
    """
    error errors exception file files node_modules package.json package-lock.json index.ts index.js
    node.js undefined null true false string number object boolean command stdout stderr exit_code
    """.split()
)


def concrete_terms(texts: Iterable[str], limit: int = MAX_TERMS) -> list[str]:
    """Return lower-cased distinct tokens, the most concrete kind first, in order of appearance.

    >>> concrete_terms(["node:internal/process/promises:332\\n  triggerUncaughtException(err)"])
    ['promises:332', 'triggeruncaughtexception']
    """
    # A line of that length is minified code, whose names say nothing about the failure.
    joined = [
        "\n".join(line for line in text[:_SCAN_CHARS].split("\n") if len(line) < MAX_LINE)
        for text in texts
    ]
    terms: dict[str, None] = {}
    for pattern in _PATTERNS:
        matches = (match.group(0) for text in joined for match in pattern.finditer(text))
        kind = dict.fromkeys(_PLACE.sub("", match.lower()).strip("./@-") for match in matches)
        new = [term for term in kind if term not in terms and _is_telling(term)]
        terms.update(dict.fromkeys(new[:MAX_PER_KIND]))
    return list(terms)[:limit]


def _is_telling(term: str) -> bool:
    return (
        3 <= len(term) <= MAX_LENGTH
        and term not in _GENERIC
        and "redacted" not in term
        # A frame inside a dependency is the same for every failure that passes through it.
        and "node_modules/" not in term
    )
