"""Cut text into sentences and words, and tell which words were copied from a reference."""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rewards.lexicon import FUNCTION_WORDS

COPY_LENGTH = 5
COPY_CONTENT = 4  # in the order of a reference, whatever stands between
SHORT_WORDS, SHORT_CHARS = 4, 40  # a heading, or an item too short to stand alone
WRAPPED_CHARS = 60

_CJK = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
# One sign of a script without spaces says little: its words are overlapping pairs of signs.
_WORD = re.compile(rf"{_CJK}(?={_CJK})|[a-z0-9_$][\w./:@$+-]*|(?!{_CJK})[^\W\d_]\w*")
_SENTENCE_END = re.compile(r"\n|(?<=[.!?;])\s|(?<=[\u3002\uff01\uff1f])")
_MARK = re.compile(r"[ \t]*(?:#{1,6}[ \t]|[-*+\u2022][ \t]|\d{1,3}[.)][ \t])?[ \t]*")
_BULLET = re.compile(r"[ \t]*(?:[-*+\u2022]|\d{1,3}[.)])[ \t]")
CJK = re.compile(_CJK)


@dataclass(frozen=True)
class Word:
    """A lower-cased word, where it starts, and what of it is the answer's own.

    `own`: not part of a copied run; `novel`: no reference has the word at all.
    """

    text: str
    start: int
    own: bool
    novel: bool


@dataclass(frozen=True)
class Sentence:
    """A sentence or a line: its lower-cased text and its words, placed relative to it."""

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
                        starts[index] - begin,
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
    content = [word for word in found if word not in FUNCTION_WORDS]
    picked = [
        index
        for index, word in enumerate(flow)
        if word in vocabulary and word not in FUNCTION_WORDS
    ]
    runs, content_runs = set(_runs(found, COPY_LENGTH)), set(_runs(content, COPY_CONTENT))
    return _copied(flow, range(len(flow)), runs, COPY_LENGTH) | _copied(
        flow, picked, content_runs, COPY_CONTENT
    )


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
