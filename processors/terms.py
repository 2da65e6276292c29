"""Pick the concrete tokens of a failure: what an answer about exactly this failure would name."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from pimono_sdpo.prefilter import Prefilter

MAX_TERMS = 32
MAX_PER_KIND = 8
MAX_LENGTH = 64
MAX_LINE = 500
_SCAN_CHARS = 20_000

# In order of concreteness: places, codes, error names, quoted names, identifiers. Each may start
# only where a word starts and what it repeats is bounded: the time stays linear in the text.
PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![\w./@$-])[\w./@$-]{0,200}[\w-]\.[A-Za-z]{1,5}:\d{1,7}(?!\d)"
        r"|(?<![\w-])[a-z][\w-]{0,63}:\d{1,7}(?=[:)\s])",
        r"\b(?:TS\d{4,5}|E\d{3,4}|[FWBCNS]\d{3}|E[A-Z]{4,30}|ERR_[A-Z_]{1,60}|SIG[A-Z]{3,4})\b",
        r"\b[A-Za-z_]\w{0,63}(?:Error|Exception|Panic)\b",
        r"(?<![\w/.$@-])(?:[\w.$@-]{1,64}/){0,16}[\w-]{1,64}(?:\.[\w-]{1,64}){0,4}\.(?:tsx?|jsx?|mjs|cjs"
        r"|py|rs|go|java|rb|c|h|cc|cpp|hpp|json|ya?ml|toml|md|css|html|sh|sql|lock)\b",
        r"\b[a-z]{1,64}(?:[A-Z][a-z0-9]{1,64}){1,8}\b|\b[A-Z][a-z0-9]{1,64}(?:[A-Z][a-z0-9]{1,64}){1,8}\b",
        r"\b[a-z][a-z0-9]{1,64}(?:_[a-z0-9]{1,64}){1,8}\b",
        # A quoted word of plain small letters is mostly just a word.
        r"(?<=[`'\"])(?=[\w@/.-]{0,40}(?:[\d_./@-]|[a-z][A-Z])|[A-Za-z]{9,40}[`'\"])"
        r"[A-Za-z_@][\w@/.-]{2,40}(?=[`'\"])",
    )
)
_REDACTED = re.compile(r"\[REDACTED:\w{1,40}\]")
_PLACE = re.compile(r"^.*\$(?:workspace|home)/")
_GENERIC = frozenset(
    """
    error errors exception file files node_modules package.json package-lock.json index.ts index.js
    node.js undefined null true false string number object boolean command stdout stderr exit_code
    """.split()
)


_PREFILTER = Prefilter(PATTERNS)


def concrete_terms(texts: Iterable[str], limit: int = MAX_TERMS) -> list[str]:
    """Return lower-cased distinct tokens, the most concrete kind first, in order of appearance.

    >>> concrete_terms(["node:internal/process/promises:332\\n  triggerUncaughtException(err)"])
    ['promises:332', 'triggeruncaughtexception']
    """
    # A line of that length is minified code, whose names say nothing about the failure.
    joined = [
        "\n".join(
            _REDACTED.sub("", line)
            for line in text[:_SCAN_CHARS].replace("\\n", "\n").split("\n")
            if len(line) < MAX_LINE
        )
        for text in texts
    ]
    may_hold = [frozenset(_PREFILTER.candidates(text)) for text in joined]
    terms: dict[str, None] = {}
    for number, pattern in enumerate(PATTERNS):
        texts = (text for text, kinds in zip(joined, may_hold, strict=True) if number in kinds)
        found = (match.group(0) for text in texts for match in pattern.finditer(text))
        new = (term for term in map(_spelled, found) if term not in terms and _is_telling(term))
        terms |= dict.fromkeys(islice(_distinct(new), MAX_PER_KIND))
    return list(terms)[:limit]


def _spelled(match: str) -> str:
    return _PLACE.sub("", match.lower()).strip("./@-")


def _distinct(terms: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for term in terms:
        if term not in seen:
            seen.add(term)
            yield term


def _is_telling(term: str) -> bool:
    return (
        3 <= len(term) <= MAX_LENGTH
        and term not in _GENERIC
        and "redacted" not in term
        # A frame inside a dependency is the same for every failure that passes through it.
        and "node_modules/" not in term
    )
