"""Find what an answer does: a command, an edit or a tool call, outside and inside code fences."""

import re
from collections.abc import Iterator, Sequence

from rewards.words import Sentence

_PROGRAMS = (
    r"(?:npm|npx|pnpm|yarn|bun|node|deno|python3?|pytest|pip|uv|cargo|go|make|git|bash|sh|cat|ls"
    r"|grep|rg|sed|mkdir|chmod|cp|mv|docker|tsc|ruff|mypy)"
)
_COMMAND = re.compile(
    rf"call:\w+\{{|<tool_call>|\"(?:command|path|name)\"\s*:|`{_PROGRAMS}\b[^`]*`|^\$ \S"
)
_FENCED_COMMAND = re.compile(rf"\s*(?:\$ )?{_PROGRAMS}\b")
_EDIT = re.compile(r"^[+-]\s*\S.*[(={;]")
_FENCED_CODE = re.compile(r"[(={;]")


def actions(parts: Sequence[Sentence]) -> Iterator[tuple[Sentence, bool]]:
    """Yield the parts that act and are not copied, and whether each is a command."""
    fenced = False
    for part in parts:
        if part.text.lstrip().startswith("```"):
            fenced = not fenced
        elif any(word.own for word in part.words):
            command = bool(
                _COMMAND.search(part.text) or (fenced and _FENCED_COMMAND.match(part.text))
            )
            code = _EDIT.search(part.text) or (fenced and _FENCED_CODE.search(part.text))
            if command or code:
                yield part, command
