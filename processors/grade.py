"""Score a row by how concrete and how varied its failure evidence is.

reads   request, findings, continued
writes  categories, score (sum of the weights of `score_terms`), score_terms, reward_terms
"""

from functools import partial
from keyword import kwlist
from typing import Any

from pimono_sdpo.failures import CATEGORIES
from pimono_sdpo.schema import GRADE
from pimono_sdpo.stage import Map, Row
from processors.salient_tokens import find_names, find_salient_tokens, select_messages

CONTINUED = 1.5
# The most concrete ones; the last ones of a long dump are names of its format.
MAX_OWN_TERMS = 12
CALL_CHARS = 120
# The weightiest first, as a row lists them. The scale is the reference card's: the six categories
# of its best sample plus continued work add up to 19.5.
WEIGHTS: dict[str, float] = dict(
    sorted(
        [*((c.name, c.weight) for c in CATEGORIES.values()), ("continued", CONTINUED)],
        key=lambda weighted: -weighted[1],
    )
)


def grade(row: Row, reference_terms: bool = False) -> dict[str, Any]:
    """Add up the weights of the categories seen, each once, and of work continued after them.

    `reference_terms` puts the categories among the terms and reads the texts of the whole row, as
    the reference run did; otherwise the terms are concrete tokens of the request's own evidence,
    as far as it can teach.
    """
    seen = {category for item in row["findings"] for category in item["categories"]}
    earned = seen | ({"continued"} if seen and row["continued"] else set())
    terms = [{"term": name, "value": WEIGHTS[name]} for name in WEIGHTS if name in earned]
    tokens = find_salient_tokens(item["text"] for item in row["findings"]) if reference_terms else _find_terms(row)
    return {
        "categories": sorted(seen),
        "score": sum(WEIGHTS[name] for name in earned),
        "score_terms": terms,
        "reward_terms": [*sorted(seen), *tokens] if reference_terms else tokens,
    }


def _find_terms(row: Row) -> list[str]:
    """Return the tokens of the messages and the files of what came next, else of the calls."""
    own = [i for i in row["findings"] if i["request"] == row["request"] and not i["excuse"]]
    messages = (select_messages(item["text"], all_lines=bool(item["rule"])) for item in own)
    # What the agent did next on a correction is what the correction was about.
    after = (item["resolved_by"] or (item["next"] if item["rule"] else "") for item in own)
    files = find_names(map(_cut, after))
    terms = [*dict.fromkeys([*find_salient_tokens(messages, MAX_OWN_TERMS), *files])][:MAX_OWN_TERMS]
    terms = terms or find_names(_cut(item["target"]) for item in own if item["kind"] == "failure")
    # The folder or the stem of a file that is named, too, says nothing more, nor does its longer path.
    redundant = set(kwlist)
    for term in terms:
        name = term.rpartition("/")[2]
        redundant |= {term.partition("/")[0], name.partition(".")[0], name.rpartition(".")[0]} - {term}
        redundant |= {other for other in terms if "/" in term and other.endswith(f"/{term}")}
    return [term for term in terms if term not in redundant]


def _cut(call: str) -> str:
    """Return the start of a call: the end of a long one is mostly the content of a file."""
    return call if len(call) <= CALL_CHARS else call[:CALL_CHARS].rpartition(" ")[0]


def stage(reference_terms: bool) -> Map:
    """Build the stage with or without the reference run's terms."""
    return Map(
        partial(grade, reference_terms=reference_terms), reads=("request", "findings", "continued"), writes=GRADE
    )
