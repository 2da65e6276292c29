"""Small text helpers shared by readers, stages and training."""

import re

TRIMMED = "\n\n[... trimmed ...]\n\n"
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Put U+FFFD for the lone surrogates that no UTF-8 column can hold.

    >>> replace_surrogates("a\\ud800b")
    'a\ufffdb'
    """
    return _SURROGATE.sub("\ufffd", text)


def shorten(text: str, limit: int) -> str:
    """Cut the middle out of a text so that at most `limit` characters stay.

    >>> shorten("a" * 60 + "b" * 60, 60)
    'aaaaaaaaaaaaaaaaaaaa\\n\\n[... trimmed ...]\\n\\nbbbbbbbbbbbbbbbbbbb'
    """
    return text if len(text) <= limit else cut_middle(text, max(limit - len(TRIMMED), 0))


def shorten_around(text: str, limit: int, place: int) -> str:
    """Shorten to head, tail and what begins with the line of `place`, a third each.

    >>> text = "a\\n" * 100 + "here it is\\n" + "b\\n" * 100
    >>> shorten_around(text, 120, 200).split(TRIMMED)[1][:10]
    'here it is'
    """
    if len(text) <= limit:
        return text
    part = max(limit - 2 * len(TRIMMED), 0) // 3
    begin = text.rfind("\n", 0, place) + 1
    if begin < part or begin + part > len(text) - part:
        return shorten(text, limit)
    return text[:part] + TRIMMED + text[begin : begin + part] + TRIMMED + text[len(text) - part :]


def cut_middle(text: str, keep: int) -> str:
    """Keep `keep` characters, half from each end, around a mark.

    A task's head says what is wanted and a diagnostic's tail says what failed.
    """
    tail = keep // 2
    return text[: keep - tail] + TRIMMED + text[len(text) - tail :]


def split_shingles(text: str, words: int = 3) -> list[str]:
    """Return the overlapping word groups of a text, cases and spacing apart.

    Chinese, Japanese and Korean are written without spaces: there each character is a word.

    >>> split_shingles("Fix the  Parser now")
    ['fix the parser', 'the parser now']
    """
    found = _WORD.findall(text.lower())
    if len(found) <= words:
        return [" ".join(found)]
    return [" ".join(found[i : i + words]) for i in range(len(found) - words + 1)]
