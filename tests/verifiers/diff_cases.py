"""Diffs of real and invented edits, and the mistakes of models in diffs."""

import difflib
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

NO_NEWLINE = "\\ No newline at end of file"


class Edit(NamedTuple):
    path: str
    before: str
    after: str


def unified(edit: Edit, context: int = 3) -> str:
    """What `git diff` prints."""

    def lines(text: str) -> list[str]:
        parts = text.split("\n")
        return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])

    out = difflib.unified_diff(lines(edit.before), lines(edit.after), f"a/{edit.path}", f"b/{edit.path}", n=context)
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}\n" for line in out)


def _headers(diff: str, change: Callable[[re.Match[str]], str]) -> str:
    return re.sub(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", change, diff, flags=re.MULTILINE)


def _first_context_dropped(diff: str, rng: random.Random) -> str:
    shorter = re.sub(r"^(@@[^\n]*@@\n) [^\n]*\n", r"\1", diff, flags=re.MULTILINE)
    return f"```diff\n{shorter}```\n"


def _context(diff: str, change: Callable[[str], str]) -> str:
    return "".join(" " + change(line[1:]) if line.startswith(" ") else line for line in diff.splitlines(keepends=True))


def _in_prose(diff: str, rng: random.Random) -> str:
    return f"I change the file as follows.\n\n```diff\n{diff}```\n\n- One line\n+ and no more.\n"


# name: what becomes of the diff
MUTATIONS: dict[str, Callable[[str, random.Random], str]] = {
    "exact": lambda diff, rng: diff,
    "wrong_numbers": lambda diff, rng: _headers(
        diff, lambda m: f"@@ -{int(m[1]) + 7000},{m[2] or 1} +{int(m[3]) + 7000},{m[4] or 1} @@"
    ),
    "wrong_counts_fenced": lambda diff, rng: (
        "```diff\n"
        + _headers(diff, lambda m: f"@@ -{m[1]},{rng.randrange(1, 30)} +{m[3]},{rng.randrange(1, 30)} @@")
        + "```\n"
    ),
    "small_counts": lambda diff, rng: _headers(diff, lambda m: f"@@ -{m[1]},1 +{m[3]},1 @@"),
    "bare_header": lambda diff, rng: _headers(diff, lambda m: "@@ @@"),
    "bare_header_fenced": lambda diff, rng: f"```\n{_headers(diff, lambda m: '@@')}```",
    "no_prefix": lambda diff, rng: diff.replace("--- a/", "--- ").replace("+++ b/", "+++ "),
    "context_tabs_to_spaces": lambda diff, rng: _context(diff, lambda line: line.replace("\t", "    ")),
    "trailing_spaces": lambda diff, rng: _context(diff, lambda line: line.rstrip() + "  \n"),
    "first_context_dropped_fenced": _first_context_dropped,
    "blank_context_stripped": lambda diff, rng: re.sub(r"^ $", "", diff, flags=re.MULTILINE),
    "crlf": lambda diff, rng: diff.replace("\n", "\r\n"),
    "no_final_newline": lambda diff, rng: diff.removesuffix("\n"),
    "fence_and_prose": _in_prose,
    "git_header": lambda diff, rng: "diff --git a/x b/x\nindex 1234567..89abcde 100644\n" + diff,
    "end_token": lambda diff, rng: f"```diff\n{diff}```<turn|>",
}


def cut(diff: str, share: float) -> str:
    return diff[: int(len(diff) * share)]


def real_edits(folder: Path) -> Iterator[Edit]:
    """The edits of recorded Pi sessions on files that were read whole or written before."""
    for session in sorted(folder.glob("*.jsonl")):
        yield from _edits_of(session.read_text(errors="replace").splitlines())


def _edits_of(lines: list[str]) -> Iterator[Edit]:
    files: dict[str, str] = {}
    calls: dict[str, tuple[str, dict[str, Any]]] = {}
    for line in lines:
        try:
            message = json.loads(line).get("message") or {}
        except ValueError:  # recorded sessions have broken lines
            continue
        content = message.get("content")
        for block in content if isinstance(content, list) else []:
            if isinstance(block, dict) and block.get("type") == "toolCall":
                calls[block["id"]] = (block["name"], block["arguments"])
        name, given = calls.get(message.get("toolCallId", ""), ("", {}))
        path = given.get("path", "") if isinstance(given, dict) else ""
        if not isinstance(path, str) or path.startswith("~") or not path or message.get("isError"):
            continue
        short = path.split("pi-mono/")[-1].lstrip("/")
        if name == "write":
            files[short] = given["content"]
        elif name == "read" and not {"offset", "limit"} & set(given) and content:
            text = content[0].get("text", "")
            if "more lines" not in text[-200:] and "Use offset" not in text[-200:] and text:
                files[short] = text
        elif name == "edit" and short in files:
            before = after = files.pop(short)
            pairs = given.get("edits") or [given]
            if not isinstance(pairs, list) or not all(isinstance(p, dict) for p in pairs):
                continue
            for pair in pairs:
                old, new = pair.get("oldText", ""), pair.get("newText", "")
                after = after.replace(old, new, 1) if old and after.count(old) == 1 else after
            if after != before:
                files[short] = after
                yield Edit(short, before, after)
