"""Score a row by how concrete and how varied its failure evidence is.

reads   diagnostics, corrections, continued
writes  categories, score (sum of the weights of `score_terms`), score_terms, reward_terms
"""

from typing import Any

from pimono_sdpo.schema import GRADE
from pimono_sdpo.stage import Map, Row
from processors.salient_tokens import concrete_terms

# A category counts once per row. The scale is the reference card's: the six categories of its best
# sample plus continued work add up to 19.5.
WEIGHTS: dict[str, float] = {
    "test_or_assertion": 4.0,
    "runtime_exception": 3.5,
    "build_lint_compile": 3.5,
    "user_feedback": 3.0,
    "tool_schema_validation": 2.5,
    "command_error": 2.0,
    "missing_file_or_command": 2.0,
    "permission_auth": 1.5,
    "continued": 1.5,
    "other_marked_error": 1.0,
    "policy_block": 0.5,
}


def grade(row: Row) -> dict[str, Any]:
    """Add up the weight of every category seen, and of work that went on after the evidence."""
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
        "reward_terms": [*sorted(seen), *concrete_terms(texts)],
    }


STAGE = Map(grade, reads=("diagnostics", "corrections", "continued"), writes=GRADE)
