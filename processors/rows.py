"""Lay out the training row TRL's SDPO trainer reads; everything else is dropped.

reads   prompt, privileged_context, reward_terms, score, score_terms, categories, session_id,
        source, harness, episode, counts
writes  the SDPO row: `prompt` as a conversation ending in a user turn
"""

from typing import Any

from pimono_sdpo.schema import EVIDENCE, SDPO_ROW
from pimono_sdpo.stage import Map, Row
from pimono_sdpo.text import shorten

PROMPT_CHARS = 6000


def rows(row: Row) -> dict[str, Any]:
    """Return the columns of a training row; `verifier_spec` is null: no verifier is attached."""
    return {
        "prompt": [{"role": "user", "content": shorten(row["prompt"], PROMPT_CHARS)}],
        "split": "train",
        "verifier_spec": None,
        **{name: row[name] for name in SDPO_ROW if name in row and name != "prompt"},
    }


STAGE = Map(
    rows,
    reads=tuple(name for name in SDPO_ROW if name not in {"split", "verifier_spec"}),
    writes=SDPO_ROW,
    drops=(*(name for name in EVIDENCE if name not in SDPO_ROW), "redactions"),
)
