"""Write the training row that TRL's SDPO trainer reads, and drop all other columns.

reads   the columns of the row, history, diagnostics, tools, cwd, workspace, fingerprints
writes  the SDPO row: `prompt` as a conversation ending in a user turn
"""

from typing import Any

from datasets import Features

from pimono_sdpo.schema import EVIDENCE, PRINT, SDPO_ROW
from pimono_sdpo.stage import Map, Row
from pimono_sdpo.text import shorten
from processors.verifier_specs import write_verifier_spec

PROMPT_CHARS = 6000
TURN_CHARS = 1200
SPAN_CHARS = 120
MADE_HERE = frozenset({"prompt", "corrections", "verifier_spec"})


def write_row(row: Row) -> dict[str, Any]:
    """Return the columns of a training row."""
    return {
        "prompt": [
            *({**turn, "content": shorten(turn["content"], TURN_CHARS)} for turn in row["history"]),
            {"role": "user", "content": shorten(row["prompt"], PROMPT_CHARS)},
        ],
        "verifier_spec": write_verifier_spec(row),
        "evidence": len(row["diagnostics"]) + len(row["corrections"]),
        "fingerprints": row["fingerprints"],
        "corrections": [
            {
                "event_index": item["event_index"],
                "rule": item["rule"],
                "probability": item["probability"],
                "span": shorten(item["span"], SPAN_CHARS),
            }
            for item in row["corrections"]
        ],
        **{name: row[name] for name in SDPO_ROW if name in row and name not in MADE_HERE},
    }


STAGE = Map(
    write_row,
    reads=(
        *(name for name in SDPO_ROW if name != "verifier_spec"),
        *("history", "diagnostics", "fingerprints", "tools", "cwd", "workspace"),
    ),
    writes=Features({**SDPO_ROW, **PRINT}),
    drops=(*(name for name in EVIDENCE if name not in {*SDPO_ROW, *PRINT}), "redactions"),
)
