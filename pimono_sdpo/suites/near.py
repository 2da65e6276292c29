"""Which programs are nearly the same, so that they belong on one side of a split."""

import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Mapping

WIDTH = 4
# Share of the groups of WIDTH tokens that two programs have in common.
NEAR = 0.35
# A group that so many programs have says nothing.
COMMON = 50
SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)


def groups(programs: Mapping[str, str]) -> dict[str, str]:
    """Return for each name the first of the names whose programs are near to it, or to those.

    >>> groups({"b": "print(a + b + 1)", "a": "print(a + b + 1)  # !", "c": ""})
    {'b': 'a', 'a': 'a', 'c': 'c'}
    """
    shingles = {name: _shingles(text) for name, text in programs.items()}
    having: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in sorted(shingles):
        for one in shingles[name]:
            having[one].append(name)
    shared: Counter[tuple[str, str]] = Counter()
    for names in having.values():
        if len(names) <= COMMON:
            shared.update((a, b) for i, a in enumerate(names) for b in names[i + 1 :])
    first = {name: name for name in programs}
    for (a, b), number in shared.items():
        if number >= NEAR * (len(shingles[a]) + len(shingles[b]) - number):
            low, high = sorted((first[a], first[b]))
            first |= {name: low for name, one in first.items() if one == high}
    return first


def _shingles(text: str) -> set[tuple[str, ...]]:
    tokens = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            docstring = token.type == tokenize.STRING and "\n" in token.string
            if token.type not in SKIPPED and not docstring:
                tokens.append(token.string.strip() or tokenize.tok_name[token.type])
    except (tokenize.TokenError, SyntaxError):
        tokens = text.split()
    return {tuple(tokens[i : i + WIDTH]) for i in range(len(tokens) - WIDTH + 1)}
