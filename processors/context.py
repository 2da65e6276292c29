"""Write the teacher's context: the weightiest failures first, then the corrections.

reads   request, findings, tools
writes  privileged_context
"""

import re
from collections.abc import Sequence
from typing import Any

from datasets import Features, Value

from pimono_sdpo.failures import CATEGORIES, find_rules
from pimono_sdpo.schema import Finding
from pimono_sdpo.shell import list_stages
from pimono_sdpo.stage import Map, Row
from pimono_sdpo.text import shorten, shorten_around, shorten_at_paragraphs, shorten_line
from processors.grade import WEIGHTS
from processors.outcome import is_command

MAX_DIAGNOSTICS = 6
MAX_CORRECTIONS = 4
DIAGNOSTIC_CHARS = 1600
CORRECTION_CHARS = 800
ANSWER_CHARS = 600
TARGET_CHARS, CHANGE_CHARS = 300, 600
LINE_CHARS = 150
# A longer line is minified code, which nobody reads.
LONG_LINE = 400
# The sentence about a mistake for each fault of `processors.outcome`.
FAULTS = {
    "code": "The agent's own code does not parse or run.",
    "call": "The program does not take a call of this form.",
    "work": "It is about what the agent has changed.",
}
_PLAIN = re.compile(r"\A[a-z][\w:-]*\Z")
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:ms|s)?")


def write_context(row: Row) -> dict[str, Any]:
    """Render the weightiest failures and the first corrections of the request, numbered."""
    blocks = [
        f"Tool/environment diagnostic {number} ({', '.join(_rank(item))}):\n" + _render_failure(item, row["tools"])
        for number, item in enumerate(select_failures(row), start=1)
    ]
    blocks += [
        f"Later user correction {number}:\n" + _render_correction(item)
        for number, item in enumerate(select_corrections(row), start=1)
    ]
    return {"privileged_context": "\n\n".join(blocks)}


def _render_failure(item: Finding, tools: Sequence[str]) -> str:
    """Return a hint, which call failed, what it said, and what resolved it or came next.

    The call is described and not quoted: a teacher that reads a failed command is likelier to repeat it.
    """
    hints = [*(CATEGORIES[name].sentence for name in _rank(item)[:1]), FAULTS.get(item["fault"], "")]
    after = f"Next: {item['next']}" if item["next"] else ""
    end = "" if item["next"].partition(" ")[0] in tools else "Nothing after it resolved this."
    if item["resolved_at"] is not None:
        after, end = "", f"Resolved by: {shorten(item['resolved_by'], CHANGE_CHARS)}"
    said = f"{_describe_call(item)} reported:\n{_shorten_diagnostic(item['text'])}"
    return "\n".join(filter(None, (" ".join(filter(None, hints)), said, after, end)))


def _describe_call(item: Finding) -> str:
    """Return the program with its subcommand, or the tool with the name of its file."""
    if not is_command(item["tool"], item["target"]):
        name = re.split(r"[/\\]", item["target"].rstrip("/\\"))[-1]
        file = f" of {name}" if name and not name.startswith("{") else ""
        return shorten_line(f"A call of `{item['tool']}`{file}", TARGET_CHARS)
    stages = [stage for stage in list_stages(item["target"]) if stage.role == "runs"]
    named = [" ".join((stage.program, *_PLAIN.findall(" ".join(stage.arguments[:1])))) for stage in stages[-1:]]
    return shorten_line(f"`{named[0]}`" if named else "A command", TARGET_CHARS)


def _render_correction(item: Finding) -> str:
    """Return what the user said, the answer before it, and what the agent did next."""
    said = shorten(item["text"], CORRECTION_CHARS)
    about = f"The agent had said: {shorten_at_paragraphs(item['target'], ANSWER_CHARS)}" if item["target"] else ""
    after = f"Next: {item['next']}" if item["next"] else ""
    return "\n".join(filter(None, (said, about, after)))


def _shorten_diagnostic(text: str) -> str:
    """Cut the middle of long lines and of the text, but keep what shows the failure."""
    if len(text) <= DIAGNOSTIC_CHARS:
        return text
    lines = (
        f"{line[:LINE_CHARS]} [...] {line[-LINE_CHARS:]}"
        if len(line) >= LONG_LINE and not any(rule.pattern.search(line) for rule in find_rules(line))
        else line
        for line in text.split("\n")
    )
    text = "\n".join(lines)
    # Where the weightiest matching rules first find the failure.
    found = [
        (-WEIGHTS[rule.category], match.start()) for rule in find_rules(text) if (match := rule.pattern.search(text))
    ]
    return shorten_around(text, DIAGNOSTIC_CHARS, min(found, default=(0, 0))[1])


def select_failures(row: Row) -> list[Finding]:
    """Return the distinct failures of most weight, the earliest of equal ones."""
    items = _select_own(row, "failure")
    # Of repeats, which differ in times, counts and addresses, the last says how it ended.
    distinct = list({_VARIES.sub("0", item["text"]): item for item in items}.values())
    ranked = sorted(distinct, key=lambda item: -sum(WEIGHTS[name] for name in item["categories"]))
    return ranked[:MAX_DIAGNOSTICS]


def select_corrections(row: Row) -> list[Finding]:
    """Return the first distinct corrections."""
    items = reversed(_select_own(row, "correction"))
    return list({item["text"]: item for item in items}.values())[::-1][:MAX_CORRECTIONS]


def _select_own(row: Row, kind: str) -> list[Finding]:
    """Return the telling evidence of a kind that belongs to the row's request."""
    return [
        item
        for item in row["findings"]
        if item["kind"] == kind and item["request"] == row["request"] and not item["excuse"]
    ]


def _rank(item: Finding) -> list[str]:
    return sorted(item["categories"], key=lambda name: (-WEIGHTS[name], name))


STAGE = Map(
    write_context, reads=("request", "findings", "tools"), writes=Features({"privileged_context": Value("string")})
)
