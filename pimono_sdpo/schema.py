"""Define the columns of all parquet files that this project reads or writes.

Open-ended values (tool arguments, verifier specs) are `Json` or JSON text, so that the schema of a
shard never depends on its content.

In a duel, two players answer the same turn of a recorded trajectory: the king without a hint, the challenger
with the pull request that solved the task. A panel of judges compares the answers in both orders.
"""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
from datasets import Features, Json, List, Value


def columns(**kinds: str) -> dict[str, Any]:
    """Return columns of these types, in order: `columns(string="role content", int64="seed")`."""
    return {name: Value(kind) for kind, names in kinds.items() for name in names.split()}


STRINGS = List(Value("string"))
SESSION = Features(columns(string="harness session_id source", large_binary="trace", int64="bytes_not_utf8"))
MESSAGE = columns(string="role content")
# A failure that the environment reported, or a later user message that corrects the agent.
FINDING = {
    **columns(string="kind", int32="event_index request"),
    **columns(string="tool target status text"),
    "categories": STRINGS,
    **columns(string="next", int32="resolved_at"),
    **columns(string="resolved_by excuse fault rule", float64="probability"),
    **columns(string="span"),
}
CORRECTION = {name: FINDING[name] for name in ("event_index", "rule", "probability", "span")}
COUNTS = columns(
    int64="events user_messages tool_calls tool_errors unanswered_calls abandoned_branches"
    " lines_parsed lines_repaired lines_skipped bytes_repaired bytes_skipped bytes_not_utf8"
)
EVIDENCE = Features(
    {
        **columns(string="harness session_id source", int32="episode"),
        "cwd": Value("string"),
        # The names to redact, see processors.identity; null to keep them.
        "identity": STRINGS,
        # Secrets that the user stated anywhere in the session.
        "secrets": STRINGS,
        "history": List(MESSAGE),
        **columns(string="prompt", int32="request"),
        "findings": List(FINDING),
        "continued": Value("bool"),
        # The definitions of tools as JSON texts.
        "tools": STRINGS,
        "problem": Value("string"),
        "worth": Value("float64"),
        # The answers of the model of `--judge`: the probability of each option of each question.
        "judged": List(columns(string="question option", float64="probability")),
        "counts": COUNTS,
        # Not among the counts of a row, because the layouts of an export format the same JSON differently.
        "volume": columns(int64="bytes_parsed"),
        # Counts of entries and calls that the reader understood, by harness, version and measure (`traces.drift`).
        "drift": List(columns(string="name", int64="count")),
        "fingerprints": List(Value("int64")),
    }
)
GRADE = Features(
    {
        "categories": STRINGS,
        "score": Value("float64"),
        "score_terms": List(columns(string="term", float64="value")),
        "reward_terms": STRINGS,
    }
)
SDPO_ROW = Features(
    {
        "prompt": List(MESSAGE),
        "privileged_context": Value("string"),
        "worth": EVIDENCE["worth"],
        **{name: GRADE[name] for name in ("reward_terms", "score", "score_terms", "categories")},
        "corrections": List(CORRECTION),
        "judged": EVIDENCE["judged"],
        **columns(string="session_id source harness", int32="episode"),
        **columns(string="split verifier_spec"),
        # One JSON text for the whole list: polars cannot write a list of JSON.
        "tools": Json(),
        "counts": COUNTS,
    }
)
# Stored with each row during a run, to find duplicates.
PRINT = Features({"evidence": Value("int64"), "fingerprints": List(Value("int64"))})
REJECT = Features(
    {
        **columns(string="session_id source", int32="episode"),
        **columns(string="stage drop_reason detail", float64="worth"),
        "counts": COUNTS,
    }
)

_TYPES = {"string": str, "large_binary": bytes, "bool": bool, "float64": float, "int32": int, "int64": int}
_NULLABLE = frozenset({"identity", "problem", "resolved_at", "verifier_spec"})


def type_of(kind: Any) -> Any:
    """Return the msgspec type of a row with these columns, or the type of one column."""
    if isinstance(kind, List):
        return list[type_of(kind.feature)]  # type: ignore[misc]
    if isinstance(kind, Mapping):
        types = {name: Literal["train", "test"] if name == "split" else type_of(one) for name, one in kind.items()}
        return msgspec.defstruct("Row", [(n, one | None if n in _NULLABLE else one) for n, one in types.items()])
    return _TYPES[kind.dtype]


def find_mismatch(row: Any, expected: Any) -> str:
    """Return a clause that names the first value of the wrong type in a row, or "".

    >>> find_mismatch({"score": None}, type_of(columns(float64="score")))
    'expected `float`, got `null` in `score`'
    """
    try:
        msgspec.convert(row, expected)
    except msgspec.ValidationError as error:
        message = str(error).replace("Object missing required field", "no value").replace("Invalid enum", "unknown")
        return (message[0].lower() + message[1:]).replace(" - at `$.", " in `")
    return ""


class Finding(TypedDict):
    """One piece of evidence.

    kind         `failure` or `correction`
    event_index  the event that reports it
    request      the event of the request it belongs to, -1 before the first one
    tool         the tool that failed
    target       its command line, path or other main argument; the answer that a correction is about
    status       how it was detected: `flag`, `exit_code`, `text`, `harness` or `user`
    text         the message, cleaned
    categories   what went wrong
    next         what the agent did next
    resolved_at  the event that shows it resolved, None if nothing does
    resolved_by  what the agent did in between
    excuse       why nothing can be learned from it (`processors.outcome`), empty otherwise
    fault        what shows that the agent itself made a mistake (`processors.outcome`)
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
    fault: str
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

# A turn in TRL's form; columns that a turn does not need are null.
TURN = {**columns(string="role content"), "tool_calls": List(Json()), **columns(string="tool_call_id name")}
TASK = Features(
    {
        **columns(string="task_id suite repo goal test_cmd"),
        "hide": STRINGS,
        "metadata": Json(),
        **columns(string="verifier_spec split"),
    }
)
STEP_TAKEN = {
    **columns(int32="index", string="kind name"),
    "args": Json(),
    **columns(bool="ok", string="error"),
    # How many of the rollout's `messages` the model had read, and whether tests passed afterwards.
    **columns(int32="n_context", bool="tests_ok"),
    # What the parser repaired, or why the turn could not be parsed; null if it was well-formed.
    "malformed": Value("string"),
}
ROLLOUT = Features(
    {
        **columns(string="run_id task_id suite", int64="seed"),
        **columns(string="model", float64="temperature"),
        **columns(string="protocol test_policy"),
        "messages": List(TURN),
        "tools": List(Json()),
        "steps": List(STEP_TAKEN),
        # Null if no tests ran: policy `never`, no tests, or a failure of this package (`error`).
        "tests_ok": Value("bool"),
        **columns(string="test_output patch"),
        "files_touched": STRINGS,
        **columns(int32="n_steps n_tool_calls n_test_runs parse_errors loop_detections"),
        **columns(int64="prompt_tokens completion_tokens", float64="cost", string="error"),
        # final, max_iters, loop, parse_errors or error.
        "ended": Value("string"),
    }
)
STEP = Features(
    {
        "prompt": List(TURN),
        "completion": List(TURN),
        "tools": List(Json()),
        **columns(string="task_id run_id", int32="step n_tokens"),
        "split": Value("string"),
    }
)
# A dropped step, or a dropped run (then `step` is null), and the reason. The prompt is in the run.
DROPPED_STEP = Features(
    {**{name: STEP[name] for name in STEP if name not in {"prompt", "tools"}}, **columns(string="drop_reason detail")}
)
PAIR = Features(
    {
        "prompt": List(TURN),
        "chosen": List(TURN),
        "rejected": List(TURN),
        "tools": List(Json()),
        **columns(string="target task_id"),
        "score_chosen": List(Value("float64")),
        "score_rejected": List(Value("float64")),
        **columns(string="run_chosen run_rejected suite model"),
        # `n_tokens` counts the prompt and the longer completion.
        **columns(int64="seed_chosen seed_rejected", int32="n_tokens", string="split"),
    }
)
# A dropped pair: the same columns, and the reason.
DROPPED_PAIR = Features({**PAIR, **columns(string="drop_reason detail")})
# A recovery: `chosen` worked where `rejected`, which may be empty, had failed or was overruled.
RECOVERY = Features(
    {
        **{name: List(TURN) for name in ("prompt", "chosen", "rejected")},
        "tools": List(Json()),
        **columns(string="privileged_context verifier_spec kind at lesson_key", float64="worth"),
        # Events of the session: the one that reports the failure, and the chosen call.
        **columns(string="session_id source harness split", int32="place chosen_place n_tokens"),
        # Equal for the same failed call, chosen call and error.
        "prints": List(Value("int64")),
    }
)
DROPPED_RECOVERY = Features(
    columns(string="session_id source harness kind at", int32="place chosen_place")
    | columns(string="drop_reason detail")
)


class Turn(TypedDict):
    """One turn of a conversation with tools."""

    role: str
    content: str | None
    tool_calls: NotRequired[list[dict[str, Any]] | None]
    tool_call_id: NotRequired[str | None]
    name: NotRequired[str | None]


Opponent = Literal["king", "reference"]
DUEL_METRICS = ("correctness", "grounding", "progress", "protocol", "efficiency")
# The lowest scores of the buckets `refined` and `final`; below `refined` is `defeat`.
PARITY, REFINED_SCORE, FINAL_SCORE = 50.0, 66.0, 80.0
SCORES = {name: Value("float64") for name in DUEL_METRICS}
USAGE = columns(int64="prompt_tokens completion_tokens", float64="cost")
DUEL_TURN = Features(
    {
        # `turn_id` is `<source>_<order>`, with orders from 1.
        **columns(string="turn_id instance_id repo"),
        "messages": List(MESSAGE),
        # The next answer of the recorded agent.
        "assistant": Value("string"),
        **columns(int32="turn", string="action_style"),
    }
)
PULL_REQUEST = Features(
    {
        **columns(string="instance_id problem_statement patch"),
        "files": STRINGS,
        **columns(string="base_commit description", int64="pr_chars"),
    }
)
ANSWER = Features(
    {
        **DUEL_TURN,
        **columns(string="king challenger", bool="king_ok challenger_ok"),
        # Terms in the challenger's answer that occur only in the hidden pull request.
        "leaked_terms": STRINGS,
        **columns(string="privileged_context king_model challenger_model"),
        "usage": USAGE,
        # `drop_reason` is null if both answered; otherwise it says why there is nothing to judge.
        **columns(string="drop_reason error"),
    }
)
JUDGMENT = Features(
    {
        # Order 0 shows the opponent first, 1 the challenger.
        **columns(string="turn_id instance_id judge", int8="order"),
        "opponent": Value("string"),
        "scores_challenger": SCORES,
        "scores_opponent": SCORES,
        **columns(string="verdict reason", bool="parsed"),
        "raw": Value("string"),
        "usage": USAGE,
        "error": Value("string"),
    }
)
DUEL = Features(
    {
        **DUEL_TURN,
        **columns(string="king challenger privileged_context"),
        "leaked_terms": STRINGS,
        # The score is 0 to 100 in favour of the challenger; null for a turn without enough votes.
        **columns(string="opponent", float64="score"),
        "metrics": SCORES,
        "per_judge": List(columns(string="judge", float64="score")),
        **columns(int32="n_votes", bool="position_consistent", string="bucket reason"),
    }
)
