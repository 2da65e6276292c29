"""Columns of duels: turns, records of pull requests, answers, judgments, duels.

Two players answer the same turn of a recorded trajectory: the king blind, the challenger with the
pull request that solved the task. A panel of judges compares the answers in both orders.
"""

from typing import Literal

from datasets import Features, List, Value

from pimono_sdpo.duel import METRICS
from pimono_sdpo.schema import MESSAGE

Opponent = Literal["king", "reference"]
SCORES = {name: Value("float64") for name in METRICS}
USAGE = {
    "prompt_tokens": Value("int64"),
    "completion_tokens": Value("int64"),
    "cost": Value("float64"),
}

TURN = Features(
    {
        # `<source>_<order>`, order from 1.
        "turn_id": Value("string"),
        "instance_id": Value("string"),
        "repo": Value("string"),
        "messages": List(MESSAGE),
        # What the recorded agent did next.
        "assistant": Value("string"),
        "turn": Value("int32"),
        "action_style": Value("string"),
    }
)

PULL_REQUEST = Features(
    {
        "instance_id": Value("string"),
        "problem_statement": Value("string"),
        "patch": Value("string"),
        "files": List(Value("string")),
        "base_commit": Value("string"),
        "description": Value("string"),
        "pr_chars": Value("int64"),
    }
)

ANSWER = Features(
    {
        **TURN,
        "king": Value("string"),
        "challenger": Value("string"),
        "king_ok": Value("bool"),
        "challenger_ok": Value("bool"),
        # Terms of the challenger's answer that only the hidden pull request holds.
        "leaked_terms": List(Value("string")),
        "privileged_context": Value("string"),
        "king_model": Value("string"),
        "challenger_model": Value("string"),
        "usage": USAGE,
        # Null when both answered; else why there is nothing to judge.
        "drop_reason": Value("string"),
        "error": Value("string"),
    }
)

JUDGMENT = Features(
    {
        "turn_id": Value("string"),
        "instance_id": Value("string"),
        "judge": Value("string"),
        # 0 shows the opponent first, 1 the challenger.
        "order": Value("int8"),
        "opponent": Value("string"),
        "scores_challenger": SCORES,
        "scores_opponent": SCORES,
        "verdict": Value("string"),
        "reason": Value("string"),
        "parsed": Value("bool"),
        "raw": Value("string"),
        "usage": USAGE,
        "error": Value("string"),
    }
)

DUEL = Features(
    {
        **TURN,
        "king": Value("string"),
        "challenger": Value("string"),
        "privileged_context": Value("string"),
        "leaked_terms": List(Value("string")),
        "opponent": Value("string"),
        # 0 to 100 in favour of the challenger; null for a turn without enough votes.
        "score": Value("float64"),
        "metrics": SCORES,
        "per_judge": List({"judge": Value("string"), "score": Value("float64")}),
        "n_votes": Value("int32"),
        "position_consistent": Value("bool"),
        "bucket": Value("string"),
        "reason": Value("string"),
    }
)
