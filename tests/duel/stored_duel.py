"""Stored answers and judgments of a synthetic duel."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features

from pimono_sdpo.duel.stages import Duel
from pimono_sdpo.llm.settings import Settings, load_settings
from pimono_sdpo.schema import ANSWER, DUEL_METRICS, DUEL_TURN, JUDGMENT
from processors.duel.judge import choose_seats

USAGE = {"prompt_tokens": 900, "completion_tokens": 30, "cost": 0.001}
JUDGES = ("lab/strict", "lab/kind", "lab/odd")
# Of turn, judge and order: the two scores, or None for what could not be read.
Panel = Callable[[int, str, int], tuple[int, int] | None]


def answer(turn: int, tasks: int, **changed: Any) -> dict[str, Any]:
    """One answered turn."""
    row = {
        "turn_id": f"turns-00000_{turn + 1}",
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


def settings(**gate: Any) -> Settings:
    """Settings with the judges of these duels."""
    prices = {name: {"input": 1.0, "output": 2.0} for name in (*JUDGES, "lab/gen")}
    return load_settings(duel={"model": "lab/gen"}, judge={"models": JUDGES}, gate=gate, prices=prices)


def judgment(turn: int, tasks: int, judge: str, order: int, panel: Panel) -> dict[str, Any]:
    """The row of one call."""
    scores = panel(turn, judge, order)
    ours, theirs = scores or (0, 0)
    return {
        "turn_id": f"turns-00000_{turn + 1}",
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


def write_stage(folder: Path, name: str, rows: list[dict[str, Any]], features: Features) -> None:
    """Write the only shard of a stage."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, features.arrow_schema)
    pq.write_table(table, folder / name / f"{name}-00000.parquet")


def write_duel(folder: Path, turns: int, tasks: int, panel: Panel, repos: int = 1, **gate: Any) -> Settings:
    """Write what the stages before the score do, and return the settings of the duel.

    The whole panel has read every turn; one further turn has no answer of the king.
    """
    answers = [answer(turn, tasks, repo=f"lab/tool{turn % repos}") for turn in range(turns)]
    last = {"drop_reason": "king_format", "king": None, "king_ok": False, "repo": "lab/tool0"}
    answers.append(answer(turns, turns + 1, **last))
    names = list(DUEL_TURN)
    write_stage(folder, "turns", [{name: row[name] for name in names} for row in answers], DUEL_TURN)
    (folder / "turns.json").write_text('{"request": "made"}\n')
    write_stage(folder, "answers", answers, ANSWER)
    given = settings(**gate)
    seed = given.duel.seed
    Duel(folder, given).register()
    single = [
        judgment(turn, tasks, judge, order, panel)
        for turn in range(turns)
        for judge, order in choose_seats(f"turns-00000_{turn + 1}", JUDGES, seed)
    ]
    write_stage(folder, "gate", single, JUDGMENT)
    write_panel(folder, "judgments", turns, tasks, panel)
    take_all_looks(Duel(folder, given))
    return given


def take_all_looks(duel: Duel) -> None:
    """Look until there is a conclusion."""
    while duel.take_look(duel.register())["conclusion"] == "open":
        pass


def write_panel(folder: Path, name: str, turns: int, tasks: int, panel: Panel) -> None:
    """Write the judgments of every judge in both orders."""
    rows = [
        judgment(turn, tasks, judge, order, panel) for turn in range(turns) for judge in JUDGES for order in (0, 1)
    ]
    write_stage(folder, name, rows, JUDGMENT)
