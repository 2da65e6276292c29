"""Columns of task suites and of what agents made of them: tasks, rollouts, steps, pairs.

Arguments of tools and other open-ended values are `Json`, which parquet keeps as text: the schema
never depends on what a model wrote.
"""

from typing import Any, Literal, NotRequired, TypedDict

from datasets import Features, Json, List, Value

Protocol = Literal["json", "native"]
TestPolicy = Literal["on_write", "on_final", "never"]
StepKind = Literal["tool_call", "final", "parse_error", "loop"]

# What TRL takes as one turn; a column that a turn does not need is null.
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
    # Of this rollout's `messages`, how many the model had read, and what tests said after the step.
    "n_context": Value("int32"),
    "tests_ok": Value("bool"),
    # What a lenient reader mended, or why the turn could not be read; null for one in good form.
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
        # Null when tests never ran: policy `never`, no tests, or a fault of ours (`error`).
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

# A step that was not kept, or a whole run (then there is no step), and why. What the model had read
# is in the run.
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
        # Of prompt and the longer one of both.
        "n_tokens": Value("int32"),
        "split": Value("string"),
    }
)

# A pair that was not kept: the same columns, and why.
DROPPED_PAIR = Features({**PAIR, "drop_reason": Value("string"), "detail": Value("string")})


class Turn(TypedDict):
    """One turn of a conversation with tools."""

    role: str
    content: str | None
    tool_calls: NotRequired[list[dict[str, Any]] | None]
    tool_call_id: NotRequired[str | None]
    name: NotRequired[str | None]
