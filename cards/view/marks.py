"""Cut text into parts for the page: what decided on a category, and the rest.

parts   [[text, category or null], ...]; joined they are the text
"""

import re
from typing import Any

from pimono_sdpo.failures import rules_for

Json = dict[str, Any]
Parts = list[list[str | None]]
MAX_MARKS = 60
_HEADER = re.compile(
    r"^(?:(Tool/environment diagnostic \d+) \(([a-z_, ]*)\)|(Later user correction \d+)):$",
    re.MULTILINE,
)


def marked(text: str, categories: list[str], spans: list[str] | None = None) -> Parts:
    """Mark what the rules of these categories find in a text, and the words of `spans`.

    >>> marked("exit: error TS2322: no", ["build_lint_compile"])
    [['exit: ', None], ['error TS2322', 'build_lint_compile'], [': no', None]]
    """
    found = [
        (match.start(), match.end(), rule.category)
        for rule in rules_for(text)
        if rule.category in categories
        for match in rule.pattern.finditer(text)
    ]
    for span in filter(None, spans or []):
        at = text.find(span)
        if at >= 0:
            found.append((at, at + len(span), "user_feedback"))
    parts: Parts = []
    done = marks = 0
    for start, stop, category in sorted(found):
        if start < done or stop == start or marks == MAX_MARKS:
            continue
        if start > done:
            parts.append([text[done:start], None])
        parts.append([text[start:stop], category])
        done, marks = stop, marks + 1
    if done < len(text):
        parts.append([text[done:], None])
    return parts


def blocks(context: str, spans: list[str]) -> list[Json]:
    """Take a privileged context apart into its numbered blocks.

    title, categories, parts; `spans` are the words by which corrections were told.
    """
    heads = list(_HEADER.finditer(context))
    if not heads or heads[0].start() > 0:
        # Not as the filter writes it: shown as it is.
        return [_block("Context", [], context, spans)] if context else []
    ends = [*(head.start() for head in heads[1:]), len(context)]
    return [
        _block(
            head[1] or head[3],
            head[2].split(", ") if head[1] else ["user_feedback"],
            context[head.end() : end].strip("\n"),
            [] if head[1] else spans,
        )
        for head, end in zip(heads, ends, strict=True)
    ]


def _block(title: str, categories: list[str], text: str, spans: list[str]) -> Json:
    return {"title": title, "categories": categories, "parts": marked(text, categories, spans)}
