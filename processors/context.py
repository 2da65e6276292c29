"""Write what the teacher may see: the diagnostics, the most telling first, then the corrections.

reads   diagnostics, corrections
writes  privileged_context
"""

from typing import Any

from datasets import Features, Value

from pimono_sdpo.schema import Correction, Diagnostic
from pimono_sdpo.stage import Map, Row
from pimono_sdpo.text import shorten
from processors.grade import WEIGHTS

MAX_DIAGNOSTICS = 6
MAX_CORRECTIONS = 4
DIAGNOSTIC_CHARS = 1600
CORRECTION_CHARS = 800


def context(row: Row) -> dict[str, Any]:
    """Render the most telling diagnostics and the first corrections as numbered blocks."""
    blocks = [
        f"Tool/environment diagnostic {number} ({', '.join(_by_weight(item['categories']))}):\n"
        + shorten(item["text"], DIAGNOSTIC_CHARS)
        for number, item in enumerate(_telling(row["diagnostics"]), start=1)
    ]
    blocks += [
        f"Later user correction {number}:\n" + shorten(item["text"], CORRECTION_CHARS)
        for number, item in enumerate(_first(row["corrections"]), start=1)
    ]
    return {"privileged_context": "\n\n".join(blocks)}


def _telling(items: list[Diagnostic]) -> list[Diagnostic]:
    """The distinct diagnostics of most weight; of equal ones the one that happened first."""
    distinct = list({item["text"]: item for item in reversed(items)}.values())[::-1]
    ranked = sorted(distinct, key=lambda item: -sum(WEIGHTS[name] for name in item["categories"]))
    return ranked[:MAX_DIAGNOSTICS]


def _first(items: list[Correction]) -> list[Correction]:
    return list({item["text"]: item for item in reversed(items)}.values())[::-1][:MAX_CORRECTIONS]


def _by_weight(categories: list[str]) -> list[str]:
    return sorted(categories, key=lambda name: (-WEIGHTS[name], name))


STAGE = Map(
    context,
    reads=("diagnostics", "corrections"),
    writes=Features({"privileged_context": Value("string")}),
)
