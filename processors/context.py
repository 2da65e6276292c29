"""Write the teacher's context: the weightiest diagnostics first, then the corrections.

reads   diagnostics, corrections
writes  privileged_context
"""

import re
from itertools import groupby
from typing import Any

from datasets import Features, Value

from pimono_sdpo.failures import Rule, find_rules
from pimono_sdpo.schema import Correction, Diagnostic
from pimono_sdpo.stage import Map, Row
from pimono_sdpo.text import shorten, shorten_around
from processors.grade import WEIGHTS

MAX_DIAGNOSTICS = 6
MAX_CORRECTIONS = 4
DIAGNOSTIC_CHARS = 1600
CORRECTION_CHARS = 800
LINE_CHARS = 150
# A longer line is minified code, which nobody reads.
LONG_LINE = 400
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:ms|s)?")


def write_context(row: Row) -> dict[str, Any]:
    """Render the weightiest diagnostics and the first corrections as numbered blocks."""
    blocks = [
        f"Tool/environment diagnostic {number} ({', '.join(_rank(item['categories']))}):\n"
        + _shorten_diagnostic(item["text"])
        for number, item in enumerate(select_diagnostics(row["diagnostics"]), start=1)
    ]
    blocks += [
        f"Later user correction {number}:\n" + shorten(item["text"], CORRECTION_CHARS)
        for number, item in enumerate(select_corrections(row["corrections"]), start=1)
    ]
    return {"privileged_context": "\n\n".join(blocks)}


def _shorten_diagnostic(text: str) -> str:
    """Cut the middle of long lines and of the text, but keep what shows the failure."""
    if len(text) <= DIAGNOSTIC_CHARS:
        return text
    text = "\n".join(_shorten_line(line) for line in text.split("\n"))
    return shorten_around(text, DIAGNOSTIC_CHARS, _find_failure(text))


def _shorten_line(line: str) -> str:
    if len(line) < LONG_LINE or any(rule.pattern.search(line) for rule in find_rules(line)):
        return line
    return f"{line[:LINE_CHARS]} [...] {line[-LINE_CHARS:]}"


def _find_failure(text: str) -> int:
    """Return where the weightiest matching rule finds the failure, 0 without a match."""
    for _, rules in groupby(sorted(find_rules(text), key=_sort_key), _sort_key):
        places = [match.start() for rule in rules if (match := rule.pattern.search(text))]
        if places:
            return min(places)
    return 0


def _sort_key(rule: Rule) -> float:
    return -WEIGHTS[rule.category]


def _mask_variable_parts(item: Diagnostic) -> str:
    """Return a text without times, counts and addresses, to compare runs of one command."""
    return _VARIES.sub("0", item["text"])


def select_diagnostics(items: list[Diagnostic]) -> list[Diagnostic]:
    """Return the distinct diagnostics of most weight, the earliest of equal ones."""
    if len(items) == 1:
        return items
    distinct = list({_mask_variable_parts(item): item for item in reversed(items)}.values())[::-1]
    ranked = sorted(distinct, key=lambda item: -sum(WEIGHTS[name] for name in item["categories"]))
    return ranked[:MAX_DIAGNOSTICS]


def select_corrections(items: list[Correction]) -> list[Correction]:
    """Return the first distinct corrections."""
    return list({item["text"]: item for item in reversed(items)}.values())[::-1][:MAX_CORRECTIONS]


def _rank(categories: list[str]) -> list[str]:
    return sorted(categories, key=lambda name: (-WEIGHTS[name], name))


STAGE = Map(
    write_context,
    reads=("diagnostics", "corrections"),
    writes=Features({"privileged_context": Value("string")}),
)
