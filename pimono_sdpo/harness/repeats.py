"""Which texts repeat which messages, without comparing each with each."""


def repeats(texts: set[str], messages: set[str], long: int = 21) -> tuple[set[str], set[str]]:
    """Return the texts that repeat a message, and the messages that a text repeats.

    A message of `long` characters or more may also stand among others; it is looked up by how it
    begins.

    >>> texts, messages = repeats({"a", "see: fix the parser now"}, {"a", "b", "fix the parser"}, 9)
    >>> sorted(texts), sorted(messages)
    (['a', 'see: fix the parser now'], ['a', 'fix the parser'])
    """
    repeated = texts & messages
    repeating = set(repeated)
    lengths: dict[str, set[int]] = {}
    for message in messages:
        if len(message) >= long:
            lengths.setdefault(message[:long], set()).add(len(message))
    for text in texts if lengths else ():
        for at in range(len(text) - long + 1):
            for length in lengths.get(text[at : at + long], ()):
                found = text[at : at + length]
                if found in messages:
                    repeating.add(text)
                    repeated.add(found)
    return repeating, repeated
