"""Which tools change no file, by the words of their names."""

import re

_KNOWN = re.compile(
    r"read|grep|find|glob|ls|multi_grep|Todo\w*|todo\w*|Web\w*|web\w*|ToolSearch|AskUser\w*|Skill"
    r"|LSP|ListMcp\w*|ReadMcp\w*|update_plan|view_image|think|BashOutput|TaskOutput|KillShell"
    r"|ExitPlanMode|EnterPlanMode"
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LOOKS = frozenset("search fetch lookup get list status read find query show view".split())
_CHANGES = frozenset(
    """set update write patch edit delete remove create forget rid move rename apply insert replace
    save add put append modify change fix format run exec execute sync commit checkout restore reset
    upload download install generate copy make revert undo merge budget and then or""".split()
)


def is_harmless(name: str) -> bool:
    """Tell whether a tool changes no file: a word of its name looks, and none changes.

    >>> [is_harmless(name) for name in ("getStatus", "set_target", "get_rid_of", "mcp__fs__list")]
    [True, False, False, True]
    """
    if _KNOWN.fullmatch(name):
        return True
    words = [word.lower() for word in _WORD.findall(name)]
    return not _CHANGES.intersection(words) and not _LOOKS.isdisjoint(words)
