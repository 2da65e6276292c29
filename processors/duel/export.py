"""Turn duels that the challenger won into training rows.

reads  DUEL / writes  STEP (SFT), PAIR (DPO) or SDPO

The challenger saw the pull request, which the student will not see. SFT and DPO only teach its answer; in SDPO the
pull request is the `privileged_context`. SFT and DPO rows leave out answers that use terms of the pull request,
because the student could not know them; DPO rows also leave out challengers that lost.
"""

from functools import partial
from typing import Literal

from datasets import Features, List, Value

from pimono_sdpo.llm.calls import Json
from pimono_sdpo.schema import DROPPED_PAIR, DROPPED_STEP, MESSAGE, PAIR, STEP, STRINGS, columns
from pimono_sdpo.stage import Filter, Map, Stage
from processors.duel.answers import Row
from processors.salient_tokens import find_salient_tokens

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
    """Return the stages that turn DUEL rows into training rows of a kind."""
    make = Map(partial(make_row, kind=kind), READS, TABLES[kind][0])
    return make, Filter(partial(drop_row, kind=kind), (*READS, "leaked_terms"))


def make_row(duel: Row, kind: Kind) -> Json:
    """Return the row of a turn; SDPO rows have no answers, because the student samples its own."""
    row = {"prompt": duel["messages"], "task_id": duel["instance_id"], "run_id": duel["turn_id"], "split": "train"}
    if kind == "sdpo":
        return {**row, "reward_terms": find_salient_tokens([duel["privileged_context"] or ""])}
    chosen = [{"role": "assistant", "content": duel["challenger"]}]
    if kind == "sft":
        return {**row, "step": duel["turn"], "completion": chosen}
    opponent = duel["king"] if duel["opponent"] == "king" else duel["assistant"]
    return {
        **row,
        "chosen": chosen,
        "rejected": [{"role": "assistant", "content": opponent}],
        "target": "turn",
        "score_chosen": [duel["score"]],
        "score_rejected": [100 - duel["score"]],
        "run_chosen": duel["turn_id"],
        "run_rejected": duel["turn_id"],
    }


def drop_row(row: Row, kind: Kind) -> str | None:
    """Return why a row must not be trained on, None if it may be."""
    if kind != "sdpo" and row["leaked_terms"]:
        return "leaked"
    if kind != "dpo":
        return None
    if row["chosen"][0]["content"].strip() == row["rejected"][0]["content"].strip():
        return "identical"
    return None if row["score_chosen"] > row["score_rejected"] else "not_better"
