"""Cut text into sentences and words, and tell which words were copied from a reference."""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

COPY_LENGTH = 5

_CJK = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
# One sign of a script without spaces says little: its words are overlapping pairs of signs.
_WORD = re.compile(rf"{_CJK}(?={_CJK})|[a-z0-9_$][\w./:@$+-]*|(?!{_CJK})[^\W\d_]\w*")
_SENTENCE_END = re.compile(r"\n|(?<=[.!?;])\s|(?<=[\u3002\uff01\uff1f])")
CJK = re.compile(_CJK)

# Words every real sentence of these languages is held together by; a list of keywords has none.
FUNCTION_WORDS = frozenset(
    """
    a an and are as at be because been before but by can could do does for from has have i if in
    into is it its must not of on only or should since so still than that the then there this to
    was we were when where which while will with would you
    aber auf aus bei das dem den der die ein eine es für ich im ist mit nicht oder und von weil wird
    avec ce dans des du elle en est et il je la le les mais ne pas pour que qui sur un une
    como con de del el en es la las los más no para pero por que se su un una y
    com do da em não o os para que um uma
    """.split()
)


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


def sentences(text: str, references: Iterable[str]) -> list[Sentence]:
    """Split a text; words inside a run of COPY_LENGTH words of a reference are not its own.

    A copy stays a copy when other words are woven in: the words a reference knows are also
    compared without those between them.
    """
    text = text.lower()
    known = [(words(reference), reference.split("\n")) for reference in references]
    runs = {run for found, _ in known for run in _runs(found)}
    whole = {tuple(words(line)) for _, lines in known for line in lines}
    vocabulary = {word for found, _ in known for word in found}
    placed = _placed(text)
    flow = [word for _, word in placed]
    familiar = [index for index, word in enumerate(flow) if word in vocabulary]
    copied = _copied(flow, range(len(flow)), runs) | _copied(flow, familiar, runs)
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


def _placed(lowered: str) -> list[tuple[int, str]]:
    return [
        (match.start(), _word_at(lowered, match.start(), match.end()))
        for match in _WORD.finditer(lowered)
    ]


def _word_at(lowered: str, start: int, end: int) -> str:
    if CJK.match(lowered, start):
        return lowered[start : start + 2]
    return lowered[start:end].rstrip(".:/-+")


def _cuts(text: str) -> Iterable[tuple[int, int]]:
    begin = 0
    for match in _SENTENCE_END.finditer(text):
        yield begin, match.start()
        begin = match.end()
    yield begin, len(text)


def _copied(flow: list[str], picked: Sequence[int], runs: Collection[tuple[str, ...]]) -> set[int]:
    copied: set[int] = set()
    for start, run in enumerate(_runs([flow[index] for index in picked])):
        if run in runs:
            copied.update(picked[start : start + COPY_LENGTH])
    return copied


def _runs(found: list[str]) -> Iterable[tuple[str, ...]]:
    return zip(*(found[offset:] for offset in range(COPY_LENGTH)), strict=False)
