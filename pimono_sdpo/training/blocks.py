"""Shorten a privileged context block by block, so that each diagnostic keeps its head and its tail.

The blocks are those of the filter, the most telling first: `Tool/environment diagnostic N (...):`
and `Later user correction N:`.
"""

import re
from collections.abc import Callable

from pimono_sdpo.text import cut_middle

# A block cut further than that tells nothing; a block less leaves room for the others.
MIN_CHARS = 160
_HEADER = re.compile(r"^(?:Tool/environment diagnostic|Later user correction) \d+\b[^\n]*:\n", re.M)


def shorten_blocks(text: str, fits: Callable[[str], bool]) -> str | None:
    """Cut the middle of every block to one length, and drop the least telling ones if need be.

    Returns the longest text found that fits; None when not even one block of MIN_CHARS does, or
    when the text has no blocks.

    >>> text = "Later user correction 1:\\n" + "a" * 400 + "\\n\\nLater user correction 2:\\nno"
    >>> short = shorten_blocks(text, lambda text: len(text) <= 300)
    >>> len(short), short.endswith("correction 2:\\nno")
    (300, True)
    """
    blocks = split_blocks(text)
    while blocks:
        longest = max(len(body) for _, body in blocks)
        if fits(_join(blocks, min(MIN_CHARS, longest))):
            short, long = min(MIN_CHARS, longest), longest + 1
            while long - short > 1:
                middle = (short + long) // 2
                if fits(_join(blocks, middle)):
                    short = middle
                else:
                    long = middle
            return _join(blocks, short)
        blocks.pop(_least_telling(blocks))
    return None


def split_blocks(text: str) -> list[tuple[str, str]]:
    """Return header and body of each block; empty when the text does not begin with one."""
    starts = [match.span() for match in _HEADER.finditer(text)]
    if not starts or starts[0][0] != 0:
        return []
    ends = [begin for begin, _ in starts[1:]] + [len(text)]
    return [
        (text[begin:stop], text[stop:end].strip("\n"))
        for (begin, stop), end in zip(starts, ends, strict=True)
    ]


def _join(blocks: list[tuple[str, str]], limit: int) -> str:
    return "\n\n".join(
        header + (body if len(body) <= limit else cut_middle(body, limit))
        for header, body in blocks
    )


def _least_telling(blocks: list[tuple[str, str]]) -> int:
    """The last block of the kind that has more of them: a first one of each stays longest."""
    corrections = [i for i, (header, _) in enumerate(blocks) if header.startswith("Later")]
    diagnostics = [i for i in range(len(blocks)) if i not in corrections]
    return (diagnostics if len(diagnostics) >= len(corrections) else corrections)[-1]
