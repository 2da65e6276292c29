"""Cut text into sentences and words, and tell which words were copied from a reference."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

COPY_LENGTH = 5

_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[A-Za-z0-9_$][\w./:@$+-]*|[^\W\d_]\w*"
)
_SENTENCE_END = re.compile(r"\n|(?<=[.!?;])\s|(?<=[\u3002\uff01\uff1f])")
CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")

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
class Sentence:
    """A sentence or a line: its lower-cased text and the words in it that are not copied."""

    text: str
    own: tuple[str, ...]


def words(text: str) -> list[str]:
    """Lower-cased words; paths, codes and identifiers stay whole, each CJK sign is a word.

    >>> words("Open src/cli.ts:41, then run it.")
    ['open', 'src/cli.ts:41', 'then', 'run', 'it']
    """
    return [word.rstrip(".:/-+") for word in _WORD.findall(text.lower())]


def sentences(text: str, references: Iterable[str]) -> list[Sentence]:
    """Split a text; words inside a run of COPY_LENGTH words of a reference are not its own."""
    lines = [words(line) for reference in references for line in reference.split("\n")]
    runs = {run for reference in references for run in _runs(words(reference))}
    whole = {tuple(line) for line in lines if line}
    out = []
    for part in _SENTENCE_END.split(text):
        found = words(part)
        copied = [tuple(found) in whole] * len(found)
        for start, run in enumerate(_runs(found)):
            if run in runs:
                copied[start : start + COPY_LENGTH] = [True] * COPY_LENGTH
        own = tuple(w for w, is_copied in zip(found, copied, strict=True) if not is_copied)
        out.append(Sentence(part.lower(), own))
    return out


def _runs(found: list[str]) -> Iterable[tuple[str, ...]]:
    return zip(*(found[offset:] for offset in range(COPY_LENGTH)), strict=False)
