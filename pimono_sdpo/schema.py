"""Every column of every parquet file this project reads or writes.

Open-ended values (tool arguments, verifier specs) are `Json` or JSON text, so that the schema of a
shard never depends on its contents.

In a duel, two players answer the same turn of a recorded trajectory: the king without a hint, the
challenger with the pull request that solved the task. A panel of judges compares the answers in
both orders.
"""

from typing import Any, Literal, NotRequired, TypedDict

from datasets import Features, Json, List, Value

Unit = Literal["session", "episode"]
SplitBy = Literal["repository", "session"]

SESSION = Features(
    {
        "harness": Value("string"),
        "session_id": Value("string"),
        "source": Value("string"),
        "trace": Value("large_binary"),
        "bytes_not_utf8": Value("int64"),
    }
)

MESSAGE = {"role": Value("string"), "content": Value("string")}
# A failure that the environment reported, or a later message of the user that corrects the agent.
FINDING = {
    "kind": Value("string"),
    "event_index": Value("int32"),
    "request": Value("int32"),
    "tool": Value("string"),
    "target": Value("string"),
    "status": Value("string"),
    "text": Value("string"),
    "categories": List(Value("string")),
    "next": Value("string"),
    "resolved_at": Value("int32"),
    "resolved_by": Value("string"),
    "excuse": Value("string"),
    "rule": Value("string"),
    "probability": Value("float64"),
    "span": Value("string"),
}
CORRECTION = {name: FINDING[name] for name in ("event_index", "rule", "probability", "span")}
KNOWN_FILE = {
    "path": Value("string"),
    "whole": Value("bool"),
    "texts": List(Value("string")),
}
COUNTS = {
    name: Value("int64")
    for name in (
        "events",
        "user_messages",
        "tool_calls",
        "tool_errors",
        "unanswered_calls",
        "abandoned_branches",
        "lines_parsed",
        "lines_repaired",
        "lines_skipped",
        "bytes_repaired",
        "bytes_skipped",
        "bytes_not_utf8",
    )
}
EVIDENCE = Features(
    {
        "harness": Value("string"),
        "session_id": Value("string"),
        "source": Value("string"),
        "episode": Value("int32"),
        "cwd": Value("string"),
        "history": List(MESSAGE),
        "prompt": Value("string"),
        "request": Value("int32"),
        "findings": List(FINDING),
        "continued": Value("bool"),
        "tools": List(Value("string")),
        "workspace": List(KNOWN_FILE),
        "problem": Value("string"),
        "counts": COUNTS,
        # Not among the counts of a row: the layouts of an export space the same JSON differently.
        "volume": {"bytes_parsed": Value("int64")},
        "fingerprints": List(Value("int64")),
    }
)

GRADE = Features(
    {
        "categories": List(Value("string")),
        "score": Value("float64"),
        "score_terms": List({"term": Value("string"), "value": Value("float64")}),
        "reward_terms": List(Value("string")),
    }
)

SDPO_ROW = Features(
    {
        "prompt": List(MESSAGE),
        "privileged_context": Value("string"),
        "reward_terms": List(Value("string")),
        "score": Value("float64"),
        "score_terms": List({"term": Value("string"), "value": Value("float64")}),
        "categories": List(Value("string")),
        "corrections": List(CORRECTION),
        "session_id": Value("string"),
        "source": Value("string"),
        "harness": Value("string"),
        "episode": Value("int32"),
        "split": Value("string"),
        "verifier_spec": Value("string"),
        "counts": COUNTS,
    }
)

# Kept with a row during a run, to recognise two rows of the same story.
PRINT = Features({"evidence": Value("int64"), "fingerprints": List(Value("int64"))})

REJECT = Features(
    {
        "session_id": Value("string"),
        "source": Value("string"),
        "episode": Value("int32"),
        "stage": Value("string"),
        "drop_reason": Value("string"),
        "detail": Value("string"),
        "counts": COUNTS,
    }
)


class Finding(TypedDict):
    """One piece of evidence.

    kind         `failure` or `correction`
    event_index  the event that reports it
    request      the event of the request it belongs to, -1 before the first one
    tool         the tool that failed
    target       its command line, path or other main argument
    status       what says so: `flag`, `exit_code`, `text`, `harness` or `user`
    text         the message, cleaned
    categories   what went wrong
    next         what the agent did next
    resolved_at  the event that shows it resolved, None if nothing does
    resolved_by  what the agent did in between
    excuse       why it teaches nothing (`processors.relevance`), empty if it does
    rule, probability, span   what decided a correction, and the words that show it
    """

    kind: Literal["failure", "correction"]
    event_index: int
    request: int
    tool: str
    target: str
    status: str
    text: str
    categories: list[str]
    next: str
    resolved_at: int | None
    resolved_by: str
    excuse: str
    rule: str
    probability: float
    span: str


class Correction(TypedDict):
    """A later user message that corrects the agent; `span` quotes the words that show it."""

    text: str
    event_index: int
    rule: str
    probability: float
    span: str


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


Protocol = Literal["json", "native"]
TestPolicy = Literal["on_write", "on_final", "never"]

# A turn as TRL takes it; columns that a turn does not need are null.
TURN = {
    "role": Value("string"),
    "content": Value("string"),
    "tool_calls": List(Json()),
    "tool_call_id": Value("string"),
    "name": Value("string"),
}

TASK = Features(
    {
        "task_id": Value("string"),
        "suite": Value("string"),
        "repo": Value("string"),
        "goal": Value("string"),
        "test_cmd": Value("string"),
        "hide": List(Value("string")),
        "metadata": Json(),
        "verifier_spec": Value("string"),
        "split": Value("string"),
    }
)

STEP_TAKEN = {
    "index": Value("int32"),
    "kind": Value("string"),
    "name": Value("string"),
    "args": Json(),
    "ok": Value("bool"),
    "error": Value("string"),
    # How many of this rollout's `messages` the model had read, and whether tests passed afterwards.
    "n_context": Value("int32"),
    "tests_ok": Value("bool"),
    # What a lenient reader repaired, or why the turn could not be read; null if it was well formed.
    "malformed": Value("string"),
}

ROLLOUT = Features(
    {
        "run_id": Value("string"),
        "task_id": Value("string"),
        "suite": Value("string"),
        "seed": Value("int64"),
        "model": Value("string"),
        "temperature": Value("float64"),
        "protocol": Value("string"),
        "test_policy": Value("string"),
        "messages": List(TURN),
        "tools": List(Json()),
        "steps": List(STEP_TAKEN),
        # Null when tests never ran: policy `never`, no tests, or a failure of ours (`error`).
        "tests_ok": Value("bool"),
        "test_output": Value("string"),
        "patch": Value("string"),
        "files_touched": List(Value("string")),
        "n_steps": Value("int32"),
        "n_tool_calls": Value("int32"),
        "n_test_runs": Value("int32"),
        "parse_errors": Value("int32"),
        "loop_detections": Value("int32"),
        "prompt_tokens": Value("int64"),
        "completion_tokens": Value("int64"),
        "cost": Value("float64"),
        "error": Value("string"),
        # final, max_iters, loop, parse_errors or error.
        "ended": Value("string"),
    }
)

STEP = Features(
    {
        "prompt": List(TURN),
        "completion": List(TURN),
        "tools": List(Json()),
        "task_id": Value("string"),
        "run_id": Value("string"),
        "step": Value("int32"),
        "n_tokens": Value("int32"),
        "split": Value("string"),
    }
)

# A step that was dropped, or a whole run (then `step` is null), and why. The run holds what the
# model had read.
DROPPED_STEP = Features(
    {
        **{name: STEP[name] for name in STEP if name not in {"prompt", "tools"}},
        "drop_reason": Value("string"),
        "detail": Value("string"),
    }
)

PAIR = Features(
    {
        "prompt": List(TURN),
        "chosen": List(TURN),
        "rejected": List(TURN),
        "tools": List(Json()),
        "target": Value("string"),
        "task_id": Value("string"),
        "score_chosen": List(Value("float64")),
        "score_rejected": List(Value("float64")),
        "run_chosen": Value("string"),
        "run_rejected": Value("string"),
        "suite": Value("string"),
        "model": Value("string"),
        "seed_chosen": Value("int64"),
        "seed_rejected": Value("int64"),
        # Of the prompt and the longer completion.
        "n_tokens": Value("int32"),
        "split": Value("string"),
    }
)

# A pair that was dropped: the same columns, and why.
DROPPED_PAIR = Features({**PAIR, "drop_reason": Value("string"), "detail": Value("string")})


class Turn(TypedDict):
    """One turn of a conversation with tools."""

    role: str
    content: str | None
    tool_calls: NotRequired[list[dict[str, Any]] | None]
    tool_call_id: NotRequired[str | None]
    name: NotRequired[str | None]


Opponent = Literal["king", "reference"]
DUEL_METRICS = ("correctness", "grounding", "progress", "protocol", "efficiency")
# The lowest score of a turn in the buckets `final` and `refined`; below is `defeat`.
PARITY, REFINED_SCORE, FINAL_SCORE = 50.0, 66.0, 80.0
SCORES = {name: Value("float64") for name in DUEL_METRICS}
USAGE = {
    "prompt_tokens": Value("int64"),
    "completion_tokens": Value("int64"),
    "cost": Value("float64"),
}

DUEL_TURN = Features(
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
        **DUEL_TURN,
        "king": Value("string"),
        "challenger": Value("string"),
        "king_ok": Value("bool"),
        "challenger_ok": Value("bool"),
        # Terms of the challenger's answer that occur only in the hidden pull request.
        "leaked_terms": List(Value("string")),
        "privileged_context": Value("string"),
        "king_model": Value("string"),
        "challenger_model": Value("string"),
        "usage": USAGE,
        # Null when both answered; otherwise why there is nothing to judge.
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
        **DUEL_TURN,
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
