"""Duels that the challenger won, as rows to train on.

reads  DUEL / writes  STEP (SFT), PAIR (DPO) or SDPO

The challenger saw what the student will not: in SFT and DPO its answer teaches alone, in SDPO the
hidden pull request is the `privileged_context`. Answers with terms that only the pull request holds
are not imitated, because nobody who is blind could have given them; nor is one preferred that lost.
"""

from collections.abc import Mapping
from typing import Any, Literal

from datasets import Features, List, Value

from pimono_sdpo.schema import DROPPED_PAIR, DROPPED_STEP, MESSAGE, PAIR, STEP
from pimono_sdpo.stage import Filter, Map, Stage
from processors.salient_tokens import find_salient_tokens

Row = Mapping[str, Any]
Kind = Literal["sft", "dpo", "sdpo"]
SDPO = Features(
    {
        "prompt": List(MESSAGE),
        "privileged_context": Value("string"),
        "reward_terms": List(Value("string")),
        "score": Value("float64"),
        "task_id": Value("string"),
        "run_id": Value("string"),
        "split": Value("string"),
    }
)
REJECTED = {
    **{name: SDPO[name] for name in ("task_id", "run_id", "score", "split")},
    "drop_reason": Value("string"),
    "detail": Value("string"),
}
READS = ("turn_id", "instance_id", "turn", "messages", "challenger")
TABLES: dict[Kind, tuple[Features, Features]] = {
    "sft": (STEP, DROPPED_STEP),
    "dpo": (PAIR, DROPPED_PAIR),
    "sdpo": (SDPO, Features(REJECTED)),
}


def stages(kind: Kind) -> tuple[Stage, ...]:
    """Return the stages that make rows of a kind of DUEL rows."""
    if kind == "sdpo":
        return Map(sdpo, (*READS, "privileged_context", "score"), SDPO), Filter(
            has_context, ("privileged_context",)
        )
    leaks = Filter(may_teach, ("leaked_terms",))
    if kind == "sft":
        return Map(sft, READS, STEP), leaks
    made = Map(dpo, (*READS, "king", "assistant", "opponent", "score"), PAIR)
    won = Filter(wins, ("score_chosen", "score_rejected"))
    return made, leaks, Filter(differs, ("chosen", "rejected")), won


def sft(duel: Row) -> dict[str, Any]:
    """Return the challenger's answer as the completion."""
    about = {"run_id": duel["turn_id"], "step": duel["turn"], "n_tokens": None}
    return {**_about(duel), **about, "completion": _said(duel["challenger"]), "tools": None}


def dpo(duel: Row) -> dict[str, Any]:
    """Return the challenger's answer over its opponent's."""
    other = duel["king"] if duel["opponent"] == "king" else duel["assistant"]
    return {
        **_about(duel),
        "chosen": _said(duel["challenger"]),
        "rejected": _said(other),
        "tools": None,
        "target": "turn",
        "score_chosen": [duel["score"]],
        "score_rejected": [100 - duel["score"]],
        "run_chosen": duel["turn_id"],
        "run_rejected": duel["turn_id"],
    }


def sdpo(duel: Row) -> dict[str, Any]:
    """Return the turn with the pull request as what only the teacher sees.

    The answers do not count: a student samples its own, and the teacher may know more.
    """
    terms = find_salient_tokens([duel["privileged_context"] or ""])
    return {**_about(duel), "run_id": duel["turn_id"], "reward_terms": terms}


def may_teach(row: Row) -> str | None:
    """Drop answers that say what only the pull request holds."""
    return "leaked" if row["leaked_terms"] else None


def differs(row: Row) -> str | None:
    """Drop pairs of equal answers."""
    same = row["chosen"][0]["content"].strip() == row["rejected"][0]["content"].strip()
    return "identical" if same else None


def wins(row: Row) -> str | None:
    """Drop pairs whose challenger did not win, which other buckets than `final` may hold."""
    return None if row["score_chosen"] > row["score_rejected"] else "not_better"


def has_context(row: Row) -> str | None:
    """Drop turns whose pull request is not known."""
    return None if row["privileged_context"] else "no_pull_request"


def _about(duel: Row) -> dict[str, Any]:
    return {"prompt": duel["messages"], "task_id": duel["instance_id"], "split": "train"}


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]
