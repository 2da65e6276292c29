"""Turn duels that the challenger won into rows to train on.

reads  DUEL / writes  STEP (SFT), PAIR (DPO) or SDPO

The challenger saw what the student will not see. SFT and DPO teach its answer alone; in SDPO the hidden pull
request is the `privileged_context`. Answers with terms that only the pull request has are not imitated, because
no blind agent could give them, and a challenger that lost is not preferred.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from datasets import Features, List, Value

from pimono_sdpo.schema import DROPPED_PAIR, DROPPED_STEP, MESSAGE, PAIR, STEP, STRINGS, columns
from pimono_sdpo.stage import Filter, Map, Stage
from processors.salient_tokens import find_salient_tokens

Json = dict[str, Any]
Row = Mapping[str, Any]
Kind = Literal["sft", "dpo", "sdpo"]
SDPO = Features(
    {
        "prompt": List(MESSAGE),
        "privileged_context": Value("string"),
        "reward_terms": STRINGS,
        **columns(float64="score", string="task_id run_id split"),
    }
)
_ABOUT = {name: SDPO[name] for name in ("task_id", "run_id", "score", "split")}
READS = (
    "turn_id", "instance_id", "turn", "messages", "challenger", "king", "assistant", "opponent",
    "score", "privileged_context",
)  # fmt: skip
TABLES: dict[Kind, tuple[Features, Features]] = {
    "sft": (STEP, DROPPED_STEP),
    "dpo": (PAIR, DROPPED_PAIR),
    "sdpo": (SDPO, Features({**_ABOUT, **columns(string="drop_reason detail")})),
}


def build_stages(kind: Kind) -> tuple[Stage, ...]:
    """Return the stages that make rows of a kind of DUEL rows."""
    made = Map(partial(make_row, kind=kind), READS, TABLES[kind][0])
    return made, Filter(partial(drop_row, kind=kind), (*READS, "leaked_terms"))


def make_row(duel: Row, kind: Kind) -> Json:
    """Return the row of a turn; for SDPO without answers: the student samples its own."""
    about = {"prompt": duel["messages"], "task_id": duel["instance_id"], "split": "train"}
    about["run_id"] = duel["turn_id"]
    if kind == "sdpo":
        return {**about, "reward_terms": find_salient_tokens([duel["privileged_context"] or ""])}
    chosen = [{"role": "assistant", "content": duel["challenger"]}]
    if kind == "sft":
        return {**about, "step": duel["turn"], "completion": chosen}
    other = duel["king"] if duel["opponent"] == "king" else duel["assistant"]
    return {
        **about,
        "chosen": chosen,
        "rejected": [{"role": "assistant", "content": other}],
        "target": "turn",
        "score_chosen": [duel["score"]],
        "score_rejected": [100 - duel["score"]],
        "run_chosen": duel["turn_id"],
        "run_rejected": duel["turn_id"],
    }


def drop_row(row: Row, kind: Kind) -> str | None:
    """Return why a row is not for training, None if it is."""
    if kind == "sdpo":
        return None
    if row["leaked_terms"]:
        return "leaked"
    if kind == "sft":
        return None
    if row["chosen"][0]["content"].strip() == row["rejected"][0]["content"].strip():
        return "identical"
    return None if row["score_chosen"] > row["score_rejected"] else "not_better"
