"""Write the training row that TRL's SDPO trainer reads, and drop all other columns.

reads   the columns of the row, history, findings, fingerprints
writes  the SDPO row: `prompt` as a conversation ending in a user turn
"""

import json
from typing import Any

from datasets import Features

from pimono_sdpo.schema import CORRECTION, EVIDENCE, PRINT, SDPO_ROW
from pimono_sdpo.stage import Map, Row
from pimono_sdpo.text import shorten
from pimono_sdpo.text import shorten_at_paragraphs as cut
from pimono_sdpo.traces.harness import find_harness
from processors.evidence import ANSWER_CHARS, TURN_CHARS

PROMPT_CHARS = 6000
MADE_HERE = frozenset({"prompt", "corrections", "verifier_spec", "tools"})


def write_row(row: Row) -> dict[str, Any]:
    """Return the columns of a training row."""
    sizes = [TURN_CHARS] * (len(row["history"]) - 1) + [ANSWER_CHARS]
    return {
        "prompt": [
            *(
                {**turn, "content": cut(turn["content"], size)}
                for turn, size in zip(row["history"], sizes, strict=False)
            ),
            {"role": "user", "content": cut(row["prompt"], PROMPT_CHARS)},
        ],
        "verifier_spec": write_verifier_spec(row),
        "tools": [json.loads(tool) for tool in row["tools"]],
        "evidence": len(row["findings"]),
        "fingerprints": row["fingerprints"],
        "corrections": [
            {name: item[name] for name in CORRECTION} for item in row["findings"] if item["kind"] == "correction"
        ],
        **{name: row[name] for name in SDPO_ROW if name in row and name not in MADE_HERE},
    }


COMMAND_CHARS = 2000


def write_verifier_spec(row: Row) -> str:
    """Write a row's `verifier_spec` as JSON; the column `tools` has the tools.

    harness      the harness that has tools of its own among them
    failed_call  `tool` and `command` (or path) of the first call that failed and can teach
    """
    harness = find_harness(row["harness"])
    spec: dict[str, object] = {"harness": harness.name} if harness.tools else {}
    for item in row["findings"]:
        if item["kind"] == "failure" and item["tool"] and not item["excuse"]:
            command = shorten(item["target"], COMMAND_CHARS)
            spec["failed_call"] = {"tool": item["tool"], "command": command}
            break
    return json.dumps(spec, ensure_ascii=False, sort_keys=True)


STAGE = Map(
    write_row,
    reads=(
        *(name for name in SDPO_ROW if name not in {"verifier_spec", "corrections"}),
        *("history", "findings", "fingerprints"),
    ),
    writes=Features({**SDPO_ROW, **PRINT}),
    drops=(*(name for name in EVIDENCE if name not in {*SDPO_ROW, *PRINT}), "redactions"),
)
