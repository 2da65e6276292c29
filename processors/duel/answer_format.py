"""Check and classify answers of the form THOUGHT plus one bash block.

Models wrote the texts, so every check takes time linear in the text.
"""

import re
import zlib
from itertools import pairwise
from typing import Literal

from pimono_sdpo.shell import parse_command

Style = Literal["search", "read", "edit", "test", "run", "git", "submit", "other", "none"]

_FENCE = re.compile(r"^[ \t]*(```+)[ \t]*([\w+-]*)[ \t]*$", re.MULTILINE)
_SHELL_TAGS = frozenset({"bash", "sh", "shell", "mswea_bash_command"})
# Tool calls in a model's own tokens, some with full-width bars; this protocol has no such calls.
_TOKENS = re.compile(
    r"<\|[\w./-]{1,64}\|>|<\uff5c[\w\u2581]{1,64}\uff5c>|</?tool_call>|<function=|\[TOOL_CALLS\]"
)
_THINK_END = "</think>"
_SUBMIT = ("COMPLETE_TASK_AND_SUBMIT", "MINI_SWE_AGENT_FINAL_OUTPUT")
_TESTS = re.compile(
    r"\b(?:pytest|py\.test|unittest|tox|nox|jest|vitest|mocha|rspec|phpunit|ctest)\b"
)
_TEST_VERBS = frozenset({"test", "t", "check"})
_BUILDERS = frozenset("npm pnpm yarn bun go cargo make mvn gradle dotnet mix sbt".split())
_SEARCHES = frozenset("grep rg egrep fgrep ag ack find fd ls tree locate".split())
_READS = frozenset("cat head tail less more nl wc awk bat jq sed".split())
_EDITORS = frozenset("patch apply_patch tee touch mkdir rm mv cp ed".split())
_INTERPRETERS = frozenset("python python3 node ruby perl php java bash sh".split())
# An answer loops when its lines mostly repeat, or when it compresses far better than text.
LOOP_LINES = 12
LOOP_SHARE = 0.5
LOOP_IN_A_ROW = 4
LOOP_CHARS = 1_500
LOOP_RATIO = 20


def strip_reasoning(text: str) -> str:
    """Remove the reasoning that some servers leave in front of an answer."""
    return text.rpartition(_THINK_END)[2].strip()


def find_blocks(text: str) -> tuple[list[tuple[str, str]], bool]:
    """Return the fenced blocks as (tag, content), and whether the last one is not closed."""
    blocks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence[2] and len(fence[1]) >= len(opened[1]):
            blocks.append((opened[2].lower(), text[opened.end() + 1 : max(fence.start() - 1, 0)]))
            opened = None
    return blocks, opened is not None


def find_command(text: str) -> str | None:
    """Return the command of the only bash block, None when there is not exactly one."""
    commands = [content for tag, content in find_blocks(text)[0] if tag in _SHELL_TAGS]
    return commands[0].strip() if len(commands) == 1 else None


def check_format(text: str) -> str | None:
    """Say why an answer is not THOUGHT plus one bash block; None when it is.

    >>> check_format("THOUGHT: look.\\n\\n```bash\\nls\\n```")
    >>> check_format("```bash\\nls\\n```")
    'no_thought'
    """
    if not text.strip():
        return "empty"
    if _TOKENS.search(text):
        return "special_tokens"
    blocks, unclosed = find_blocks(text)
    if unclosed:
        return "unclosed_block"
    commands = [content for tag, content in blocks if tag in _SHELL_TAGS]
    if len(commands) != 1:
        return "several_actions" if commands else "no_action"
    if not commands[0].strip():
        return "empty_action"
    before = text[: _FENCE.search(text).start()]  # type: ignore[union-attr]
    return None if before.replace("THOUGHT", "").strip(" \t\r\n:*#") else "no_thought"


def is_looping(text: str) -> bool:
    """Whether an answer repeats itself over and over.

    >>> is_looping("I will look.\\n" * 20), is_looping("I will look.")
    (True, False)
    """
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 3]
    in_a_row = 1
    for before, line in pairwise(lines):
        in_a_row = in_a_row + 1 if line == before else 1
        if in_a_row >= LOOP_IN_A_ROW and len(line) > 20:
            return True
    if len(lines) >= LOOP_LINES and 1 - len(set(lines)) / len(lines) >= LOOP_SHARE:
        return True
    packed = text.encode("utf-8", "replace")
    return len(packed) >= LOOP_CHARS and len(packed) / len(zlib.compress(packed)) >= LOOP_RATIO


def classify_action(text: str) -> Style:
    """Classify what the only command mainly does, by its programs.

    >>> classify_action("Look.\\n```bash\\ncd src && grep -rn flag . | head\\n```")
    'search'
    """
    command = find_command(text)
    if not command:
        return "none"
    if any(mark in command for mark in _SUBMIT):
        return "submit"
    styles: list[Style] = []
    for pipeline in parse_command(command):
        first = pipeline.stages[0] if pipeline.stages else None
        if first is not None:
            written = any(not target.startswith(("/dev/", "&")) for target in first.targets)
            styles.append("edit" if written else _classify_program(first.program, first.arguments))
    order: tuple[Style, ...] = ("test", "edit", "git", "run", "search", "read")
    return next((style for style in order if style in styles), "other")


def _classify_program(program: str, arguments: tuple[str, ...]) -> Style:
    words = " ".join((program, *arguments[:4]))
    if _TESTS.search(words):
        return "test"
    if program in _BUILDERS:
        return "test" if _TEST_VERBS & {word.partition(":")[0] for word in arguments[:2]} else "run"
    in_place = any(word.startswith("-i") or word == "--in-place" for word in arguments)
    if program in _EDITORS or (program in ("sed", "perl") and in_place):
        return "edit"
    if program == "git":
        return "edit" if arguments[:1] == ("apply",) else "git"
    if program in _SEARCHES:
        return "search"
    if program in _READS:
        return "read"
    return "run" if program in _INTERPRETERS else "other"
