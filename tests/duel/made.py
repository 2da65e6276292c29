"""Stored answers and judgments of a made-up duel."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.schema import ANSWER, DUEL_METRICS, JUDGMENT

USAGE = {"prompt_tokens": 900, "completion_tokens": 30, "cost": 0.001}
JUDGES = ("lab/strict", "lab/kind", "lab/odd")
# Of turn, judge and order: the two scores, or None for what could not be read.
Panel = Callable[[int, str, int], tuple[int, int] | None]


def answer(turn: int, tasks: int, **changed: Any) -> dict[str, Any]:
    """One answered turn."""
    row = {
        "turn_id": f"run_{turn + 1}",
        "instance_id": f"task-{turn % tasks}",
        "repo": "lab/tool",
        "messages": [{"role": "user", "content": f"Mend number {turn}."}],
        "assistant": "THOUGHT: look\n```bash\nls\n```",
        "turn": turn,
        "action_style": "inspect",
        "king": "THOUGHT: list\n```bash\nls -la\n```",
        "challenger": "THOUGHT: mend\n```bash\nsed -i s/a/b/ tool.py\n```",
        "king_ok": True,
        "challenger_ok": True,
        "leaked_terms": ["hidden_name"] if turn % 5 == 0 else [],
        "privileged_context": "diff --git a/tool.py b/tool.py",
        "king_model": "lab/gen",
        "challenger_model": "lab/gen",
        "usage": USAGE,
        "drop_reason": None,
        "error": None,
    }
    return row | changed


def write_duel(folder: Path, turns: int, tasks: int, panel: Panel, name: str = "judgments") -> None:
    """Write answers and judgments as the stages before the score do."""
    answers = [answer(turn, tasks) for turn in range(turns)]
    answers.append(answer(turns, tasks, drop_reason="king_format", king=None, king_ok=False))
    said = []
    for turn in range(turns):
        for judge in JUDGES:
            for order in (0, 1):
                scores = panel(turn, judge, order)
                ours, theirs = scores or (0, 0)
                said.append(
                    {
                        "turn_id": f"run_{turn + 1}",
                        "instance_id": f"task-{turn % tasks}",
                        "judge": judge,
                        "order": order,
                        "opponent": "king",
                        "scores_challenger": dict.fromkeys(DUEL_METRICS, ours),
                        "scores_opponent": dict.fromkeys(DUEL_METRICS, theirs),
                        "verdict": "A" if ours > theirs else "tie",
                        "reason": f"{ours} to {theirs}",
                        "parsed": scores is not None,
                        "raw": "{}",
                        "usage": USAGE,
                        "error": None,
                    }
                )
    for kind, rows, features in (("answers", answers, ANSWER), (name, said, JUDGMENT)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(rows, features.arrow_schema)
        pq.write_table(table, folder / kind / f"{kind}-00000.parquet")
