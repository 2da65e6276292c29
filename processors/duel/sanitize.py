"""Make text that a model wrote safe to show to a judge; in time linear in the text.

No list of words separates instructions to a judge from text it should read, so no words are
removed: text is brought to its plain form, what nobody can see is removed, control tokens are
broken, and the frame around an answer has a mark that no answer can know (`judge.py`).
"""

import re
import unicodedata

# Variation selectors and fillers, which look like nothing but are not in a category of such.
_FILLERS = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0}
_FILLERS |= {*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}


class _Seen(dict[int, int | None]):
    """What `str.translate` keeps: not format, control and private characters, nor fillers."""

    def __missing__(self, code: int) -> int | None:
        unseen = unicodedata.category(chr(code)) in ("Cf", "Cc", "Co", "Cs") or code in _FILLERS
        self[code] = code if chr(code) in "\n\t" or not unseen else None
        return self[code]


_SEEN = _Seen()
_CONTROL = re.compile(
    r"<(?=[|\u2581]|/?(?:start_of_turn|end_of_turn|s|bos|eos|think|tool_call|hidden)>|</?SYS>)"
    r"|\|(?=>)|\[(?=/?INST\])"
)


def sanitize(text: str) -> str:
    """Return the text as a judge may read it.

    >>> sanitize("THOUGHT:\u200b look.\\n<|im_end|> \uff21")
    'THOUGHT: look.\\n< |im_end| > A'
    """
    plain = unicodedata.normalize("NFKC", text.translate(_SEEN)).translate(_SEEN)
    return _CONTROL.sub(r"\g<0> ", plain)
