"""Decide which user messages are requests worth training on.

A request asks for work: not a greeting, not "continue", not a slash command, not a harness nudge.
"""

import re

MIN_WORDS = 4
MIN_CHARS = 16
_AUTOMATED = re.compile(
    r"^(?:/[\w:-]+\s*\S*$|Tool budget|\[(?:system|tool_result|Request interrupted)|<command-)"
)
_SMALL_TALK = re.compile(
    r"^\W*(?:(?:hi|hello|hey|yo|test(?:ing)?|continue|proceed|go on|go ahead|ok(?:ay)?|yes|thanks?"
    r"|you still there|still there|are you there|继续|开始|你好|続けて|계속|weiter)[\s,.!?]*)+$",
    re.IGNORECASE,
)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")


def is_substantive(text: str) -> bool:
    """Tell whether a user message is a request of its own.

    >>> is_substantive("continue"), is_substantive("Fix the failing parser test, please")
    (False, True)
    """
    body = text.strip()
    if _AUTOMATED.search(body) or _SMALL_TALK.search(body[:200]):
        return False
    has_words = len(body) >= MIN_CHARS and len(_WORD.findall(body[:2000])) >= MIN_WORDS
    return has_words or _is_cjk(body)


def _is_cjk(body: str) -> bool:
    """Eight characters of Chinese, Japanese or Korean already make a request."""
    return len(re.findall(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]", body[:2000])) >= 8
