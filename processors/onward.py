"""Duels that the challenger won, as rows to train on.

reads  DUEL of the bucket `final` / writes  one row each for SFT, DPO and SDPO

The challenger saw what the student will not: in SFT and DPO its answer teaches alone, in SDPO the
hidden pull request is the `privileged_context`. Answers that use terms only the pull request holds
are left out, because nobody who is blind could have given them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from datasets import Features, List, Value

from pimono_sdpo.schema import MESSAGE

Row = Mapping[str, Any]
ABOUT = {
    "turn_id": Value("string"),
    "instance_id": Value("string"),
    "repo": Value("string"),
    "score": Value("float64"),
}
SFT = Features({"prompt": List(MESSAGE), "completion": List(MESSAGE), **ABOUT})
DPO = Features(
    {"prompt": List(MESSAGE), "chosen": List(MESSAGE), "rejected": List(MESSAGE), **ABOUT}
)
SDPO = Features({"prompt": List(MESSAGE), "privileged_context": Value("string"), **ABOUT})


def sft_row(duel: Row) -> Iterator[dict[str, Any]]:
    """Yield the challenger's answer as the completion."""
    if teaches(duel):
        yield {**_about(duel), "completion": _said(duel["challenger"])}


def dpo_row(duel: Row) -> Iterator[dict[str, Any]]:
    """Yield the challenger's answer over its opponent's, unless they are the same."""
    opponent = duel["king"] if duel["opponent"] == "king" else duel["assistant"]
    if teaches(duel) and opponent.strip() != duel["challenger"].strip():
        both = {"chosen": _said(duel["challenger"]), "rejected": _said(opponent)}
        yield {**_about(duel), **both}


def sdpo_row(duel: Row) -> Iterator[dict[str, Any]]:
    """Yield the turn with the pull request as what only the teacher sees.

    The answers do not count here: a student samples its own, and the teacher may know more.
    """
    if duel["bucket"] == "final" and duel["privileged_context"]:
        yield {**_about(duel), "privileged_context": duel["privileged_context"]}


def teaches(duel: Row) -> bool:
    """Whether the challenger's answer may be imitated."""
    return duel["bucket"] == "final" and not duel["leaked_terms"]


def _about(duel: Row) -> dict[str, Any]:
    return {"prompt": duel["messages"], **{name: duel[name] for name in ABOUT}}


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]
