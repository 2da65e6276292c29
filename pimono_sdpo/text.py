"""Small text helpers shared by stages and training."""

TRIMMED = "\n\n[... trimmed ...]\n\n"


def shorten(text: str, limit: int) -> str:
    """Cut the middle out of a text so that at most `limit` characters stay.

    >>> shorten("a" * 60 + "b" * 60, 60)
    'aaaaaaaaaaaaaaaaaaaa\\n\\n[... trimmed ...]\\n\\nbbbbbbbbbbbbbbbbbbb'
    """
    if len(text) <= limit:
        return text
    room = max(limit - len(TRIMMED), 0)
    tail = room // 2
    return text[: room - tail] + TRIMMED + (text[-tail:] if tail else "")
