"""Decide which user messages are requests worth training on.

A request asks for work: not a greeting, not "continue", not a slash command, not a harness nudge,
not a screenshot's path or a context file that came without words, not a bare name, which answers.
"""

import re

MIN_WORDS = 4
MIN_CHARS = 16
_AUTOMATED = re.compile(
    r"^(?:/[\w:-]{1,80}(?:\s{1,8}\S{0,200})?$|Tool budget|<command-"
    r"|\[(?:system|tool_result|Request interrupted)|# AGENTS\.md instructions"
    r"|Contents of \S{1,300}\.md\b|Caveat: )"
)
_SMALL_TALK = re.compile(
    r"^\W*(?:(?:hi|hello|hey|yo|test(?:ing)?|continue|proceed|go on|go ahead|ok(?:ay)?|yes|thanks?"
    r"|you still there|still there|are you there|继续|开始|你好|続けて|계속|weiter)[\s,.!?]*)+$",
    re.IGNORECASE,
)
_BARE_NAME = re.compile(r"[\w.-]+", re.ASCII)
_BLOCK = re.compile(
    r"<(file|skill|system-reminder|environment_context|user_instructions|INSTRUCTIONS|context|attachment)"
    r"\b[^>]{0,300}>.*?(?:</\1>|\Z)",
    re.DOTALL,
)
_IMAGE = r"\.(?:png|jpe?g|gif|webp|heic)"
_ROOT = r"(?:~|/|\.{1,2}/|[A-Za-z]:\\)"
_PICTURE = re.compile(
    rf"\A{_ROOT}[^\n]{{1,300}}{_IMAGE}\Z"
    rf"|(?<!\S)(?:{_ROOT}(?:\\ |[^\s'\"]){{1,300}}?"
    rf"|'{_ROOT}[^'\n]{{1,300}}?|\"{_ROOT}[^\"\n]{{1,300}}?)"
    rf"{_IMAGE}['\"]?(?!\S)"
    r"|\[(?:Image|Screenshot)[^\]\n]{0,100}\]",
    re.IGNORECASE,
)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def is_substantive(text: str) -> bool:
    """Tell whether a user message is a request of its own.

    >>> is_substantive("continue"), is_substantive("Fix the failing parser test, please")
    (False, True)
    """
    body = text.strip()
    if _AUTOMATED.search(body):
        return False
    said = _cut_own_words(body)
    if _SMALL_TALK.search(said[:200]) or _BARE_NAME.fullmatch(said):
        return False
    has_words = len(said) >= MIN_CHARS and len(_WORD.findall(said[:2000])) >= MIN_WORDS
    # Eight characters of Chinese, Japanese or Korean already make a request.
    return has_words or len(_CJK.findall(said[:2000])) >= 8


def _cut_own_words(body: str) -> str:
    """What a person typed around pictures and context files.

    >>> _cut_own_words("'/tmp/Screenshot 1.png' why is it blue?")
    'why is it blue?'
    """
    return _PICTURE.sub(" ", _BLOCK.sub(" ", body[:20_000])).strip()
