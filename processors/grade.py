"""Score a row by how concrete and how varied its failure evidence is.

reads   diagnostics, corrections, continued
writes  categories, score (sum of the weights of `score_terms`), score_terms, reward_terms
"""

from typing import Any

from pimono_sdpo.failures import CATEGORIES
from pimono_sdpo.schema import GRADE
from pimono_sdpo.stage import Map, Row
from processors.salient_tokens import find_salient_tokens

CONTINUED = 1.5
# The weightiest first, as a row lists them. The scale is the reference card's: the six categories
# of its best sample plus continued work add up to 19.5.
WEIGHTS: dict[str, float] = dict(
    sorted(
        [*((c.name, c.weight) for c in CATEGORIES.values()), ("continued", CONTINUED)],
        key=lambda weighted: -weighted[1],
    )
)


def grade(row: Row) -> dict[str, Any]:
    """Add up the weights of the categories seen, each once, and of work continued after them."""
    seen = {category for item in row["diagnostics"] for category in item["categories"]}
    if row["corrections"]:
        seen.add("user_feedback")
    earned = seen | ({"continued"} if seen and row["continued"] else set())
    terms = [{"term": name, "value": WEIGHTS[name]} for name in WEIGHTS if name in earned]
    texts = [item["text"] for item in (*row["diagnostics"], *row["corrections"])]
    return {
        "categories": sorted(seen),
        "score": sum(WEIGHTS[name] for name in earned),
        "score_terms": terms,
        "reward_terms": [*sorted(seen), *find_salient_tokens(texts)],
    }


STAGE = Map(grade, reads=("diagnostics", "corrections", "continued"), writes=GRADE)
