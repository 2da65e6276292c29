"""Find in one pass which of many patterns may match a text.

RE2, or Hyperscan where the extra `fast` is installed, runs all of them as automata, in time linear in
the text. They support neither lookarounds nor Python's Unicode classes, so each pattern is widened for
them: if the widened pattern does not match a text, the original one cannot; if it does, the original
pattern decides. Hyperscan takes seconds to compile its automata, so they are kept in the user's cache.
"""

import hashlib
import os
import re
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import re2

hyperscan: Any
try:
    import hyperscan
except ImportError:  # the extra `fast` is not installed
    hyperscan = None

UNSUPPORTED = b"unsupported"  # the content of a file of the cache for patterns that Hyperscan cannot compile
# Returns the numbers of the patterns that match a text in UTF-8.
Scan = Callable[[bytes], list[int]]

# For the states of an automaton; RE2 discards them all when the memory is full.
MAX_MEMORY = 64 * 2**20
# Measured on sessions: with fewer, more automata read each text, with more, their states take longer to build.
PATTERNS_PER_SET = 12
LENGTH_PER_SET = 6000
# Larger counts of a repeat are widened to {least,}, with these limits for `least`.
MAX_COUNT = 4
MAX_LEAST = 24
MAX_LEAST_OPEN = 6
_TOKEN = re.compile(
    r"(?P<look>\(\?<?[=!])"
    r"|(?P<bound>\\[bB])"
    r"|(?P<end>\\Z)"
    r"|(?P<code>\\u[0-9a-fA-F]{4})"
    r"|\[\^?\]?(?:\\.|[^\]\\])*\]"
    r"|(?P<repeat>\{(?P<least>\d*)(?:,(?P<most>\d*))?\})"
    r"|\\."
    # Literal text; a repeat after it is a separate token.
    r"|[^\\\[(){*+?]+|.",
    re.DOTALL,
)
_OTHER = r"\x{80}-\x{10FFFF}"
_CLASSES = {r"\w": rf"\w{_OTHER}", r"\d": rf"\d{_OTHER}", r"\s": rf"\s\x0b\x1c-\x1f{_OTHER}"}
# A negated class must not exclude more than in Python.
_NARROW = {r"\S": "!-~", r"\W": r"!-/:-@\[-\^`{-~", r"\D": "!-/:-~"}
_NO_WORD_BEFORE = r"(?<!\w)"
_EDGES = {_NO_WORD_BEFORE: r"(?:^|\W)", r"(?!\w)": r"(?:$|\W)"}


def read_patterns(table: Mapping[str, str]) -> dict[str, str]:
    r"""Return the patterns of a TOML table without line breaks and indentation.

    `<name>` stands for the pattern of that name in the same table.

    >>> read_patterns({"year": r"\d{4}", "day": "<year>-\n  <year>"})["day"]
    '\\d{4}-\\d{4}'
    """
    joined = {name: re.sub(r"(?:\A|\n) *", "", pattern) for name, pattern in table.items()}

    def expand(pattern: str) -> str:
        return re.sub(r"<(\w{3,})>", lambda m: expand(joined[m[1]]) if m[1] in joined else m[0], pattern)

    return {name: expand(pattern) for name, pattern in joined.items()}


class _LazyPattern:
    def __init__(self, pattern: str, flags: int) -> None:
        self.pattern, self.flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = getattr(re.compile(self.pattern, self.flags), name)
        self.__dict__[name] = attribute
        return attribute


def lazy_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that is compiled on first use, since most runs need only a few."""
    return cast(re.Pattern[str], _LazyPattern(pattern, flags))


def compile_patterns(file: Path, table: str) -> dict[str, re.Pattern[str]]:
    """Read the patterns of one table of a TOML file."""
    patterns = read_patterns(tomllib.loads(file.read_text(encoding="utf-8"))[table])
    return {name: lazy_pattern(pattern) for name, pattern in patterns.items()}


class Prefilter:
    """The widened patterns, compiled into automata."""

    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        widened = [widen_pattern(pattern) for pattern in patterns]
        # For a single pattern, loading Hyperscan would take longer than it saves.
        fast = compile_hyperscan(widened) if hyperscan and len(widened) > 1 else None
        self._scan = fast or compile_re2(widened)

    def candidates(self, text: str) -> list[int]:
        """Return the indexes of the patterns that may match, in order."""
        return sorted(self._scan(text.encode()))


def compile_re2(widened: Sequence[str]) -> Scan:
    """Compile the patterns into automata of a few patterns each.

    An automaton builds its states when a text first needs them, which is far slower than using
    them, and their number grows like the product of the numbers of its patterns.
    """
    options = re2.Options()
    options.max_mem = MAX_MEMORY
    sets: list[tuple[Any, list[int]]] = []
    for numbers in _group([len(pattern) for pattern in widened]):
        automaton = re2.Set.SearchSet(options)
        for number in numbers:
            automaton.Add(widened[number])
        automaton.Compile()
        sets.append((automaton, numbers))

    def scan(text: bytes) -> list[int]:
        return [numbers[at] for automaton, numbers in sets for at in automaton.Match(text) or ()]

    return scan


def compile_hyperscan(widened: Sequence[str]) -> Scan | None:
    """Compile the patterns into one automaton, or load it from the cache; None if Hyperscan lacks a construct."""
    name = hashlib.sha256("\0".join([hyperscan.__version__, *widened]).encode()).hexdigest()[:32]
    file = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pimono_sdpo" / "hyperscan" / name
    stored = None
    with suppress(OSError):  # the patterns have not been compiled here
        stored = file.read_bytes()
    if stored == UNSUPPORTED:
        return None
    try:
        database = hyperscan.loadb(stored or b"", hyperscan.HS_MODE_BLOCK)
    except hyperscan.error:  # there is none, or it is cut off or of another kind of processor
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        try:
            database.compile([_without_flags(one) for one in widened], flags=[_list_flags(one) for one in widened])
        except hyperscan.error:
            database = None
        with suppress(OSError):  # without a cache, the next process compiles again
            file.parent.mkdir(parents=True, exist_ok=True)
            aside = file.with_suffix(f".{os.getpid()}")
            aside.write_bytes(hyperscan.dumpb(database) if database else UNSUPPORTED)
            aside.replace(file)
    if database is None:
        return None
    memory = threading.local()  # each thread needs its own

    def scan(text: bytes) -> list[int]:
        if not hasattr(memory, "scratch"):
            memory.scratch = hyperscan.Scratch(database)
        found: set[int] = set()
        # It misses some matches of `$` at the end of a text, or before a line break that ends it.
        database.scan(text + b"\n\n", match_event_handler=lambda number, *_: found.add(number), scratch=memory.scratch)
        return [*found]

    return scan


def _without_flags(widened: str) -> bytes:
    return widened.partition(")")[2].encode()


def _list_flags(widened: str) -> int:
    flags = hyperscan.HS_FLAG_UTF8 | hyperscan.HS_FLAG_SINGLEMATCH | hyperscan.HS_FLAG_ALLOWEMPTY
    named = {"m": hyperscan.HS_FLAG_MULTILINE, "i": hyperscan.HS_FLAG_CASELESS, "s": hyperscan.HS_FLAG_DOTALL}
    for letter in widened.partition(")")[0].removeprefix("(?"):
        flags |= named[letter]
    return int(flags)


def _group(lengths: Sequence[int]) -> list[list[int]]:
    """Divide patterns of these lengths into sets: the longest first, each into the shortest set that has room."""
    groups: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        totals = [(sum(lengths[one] for one in group), group) for group in groups if len(group) < PATTERNS_PER_SET]
        total, group = min(totals, key=lambda pair: pair[0], default=(LENGTH_PER_SET, []))
        if total + lengths[number] > LENGTH_PER_SET:
            group = []
            groups.append(group)
        group.append(number)
    return groups


class Guarded:
    """A pattern that is searched for only if RE2 finds that it may match.

    This is many times faster in long texts without a match.
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern
        self._prefilter = Prefilter([pattern])

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first match, as `Pattern.search` does."""
        return self.pattern.search(text) if self._prefilter.candidates(text) else None

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Yield all matches, as `Pattern.finditer` does."""
        return self.pattern.finditer(text) if self._prefilter.candidates(text) else iter(())

    def sub(self, replacement: str, text: str) -> str:
        """Replace all matches, as `Pattern.sub` does."""
        return self.pattern.sub(replacement, text) if self._prefilter.candidates(text) else text


def widen_pattern(pattern: re.Pattern[str]) -> str:
    r"""Rewrite a pattern for RE2 and Hyperscan so that it matches wherever the pattern does, and maybe elsewhere.

    >>> widen_pattern(re.compile(r"(?<!\w)not{1,20}(?! yet)\b"))
    '(?m)(?:^|\\W)not{1,}'
    """
    flags = "m" + ("i" if pattern.flags & re.IGNORECASE else "")
    flags += "s" if pattern.flags & re.DOTALL else ""
    return f"(?{flags})" + "".join(_widen_tokens(pattern.pattern))


def _widen_tokens(source: str) -> Iterator[str]:
    position = depth = 0
    after_repeat = False
    while position < len(source):
        if depth == 0 and (edge := _find_edge(source, position)):
            position += len(edge)
            yield _EDGES[edge]
            continue
        token = _TOKEN.match(source, position)
        assert token is not None
        position = token.end()
        depth += (token[0] == "(") - (token[0] == ")")
        text, is_repeat = token[0], bool(token["repeat"]) or token[0] in "*+?"
        if token["look"]:
            position = _find_closing(source, position)
            continue
        if token["bound"] or (text == "+" and after_repeat):
            # Without it, a possessive repeat only matches more.
            after_repeat = False
            continue
        if token["end"]:
            text = "$"
        elif token["code"]:
            text = rf"\x{{{text[2:]}}}"
        elif token["repeat"] and max(int(token["least"] or 0), int(token["most"] or 0)) > MAX_COUNT:
            # Every count needs a state of its own.
            limit = MAX_LEAST if token["most"] else MAX_LEAST_OPEN
            text = f"{{{min(int(token['least'] or 0), limit)},}}"
        elif text in _CLASSES:
            text = f"[{_CLASSES[text]}]"
        elif text.startswith("[") and len(text) > 1:
            text = _widen_class(text)
        yield text
        # A `?` or `+` after a repeat makes it lazy or possessive.
        after_repeat = is_repeat and not after_repeat


def _find_edge(source: str, position: int) -> str:
    """Return the lookaround at a position if it is at the edge of an alternative, where it may consume a character."""
    for edge in _EDGES:
        if source.startswith(edge, position):
            before, after = source[:position][-1:], source[position + len(edge) :][:1]
            return edge if (before if edge == _NO_WORD_BEFORE else after) in {"", "|"} else ""
    return ""


def _widen_class(text: str) -> str:
    text = re.sub(r"\\u([0-9a-fA-F]{4})", r"\\x{\1}", text)
    for short, other in (_NARROW if text.startswith("[^") else _CLASSES).items():
        text = text.replace(short, other)
    return text


def _find_closing(source: str, position: int) -> int:
    """Return the end of the group that contains a position."""
    depth = 1
    while depth:
        token = _TOKEN.match(source, position)
        assert token is not None
        opens = token[0] == "(" or bool(token["look"])
        depth += opens - (token[0] == ")")
        position = token.end()
    return position
