"""Every column this project reads or writes, one block per layer.

Open-ended values (tool arguments, verifier specs) travel as JSON text, so that the schema of a
shard never depends on what the shard holds.
"""

from typing import Literal, TypedDict

from datasets import Features, List, Value

Unit = Literal["session", "episode"]

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
DIAGNOSTIC = {
    "categories": List(Value("string")),
    "text": Value("string"),
    "tool_name": Value("string"),
    "command": Value("string"),
    "event_index": Value("int32"),
}
CORRECTION = {
    "text": Value("string"),
    "event_index": Value("int32"),
    "rule": Value("string"),
    "probability": Value("float64"),
    "span": Value("string"),
}
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
        "diagnostics": List(DIAGNOSTIC),
        "corrections": List(CORRECTION),
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
        "corrections": List({k: v for k, v in CORRECTION.items() if k != "text"}),
        "session_id": Value("string"),
        "source": Value("string"),
        "harness": Value("string"),
        "episode": Value("int32"),
        "split": Value("string"),
        "verifier_spec": Value("string"),
        "counts": COUNTS,
    }
)

# Beside a row while a run lasts: what tells that two rows are of the same story.
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


class Diagnostic(TypedDict):
    """One concrete failure the environment reported; `command` is the command line, or empty."""

    categories: list[str]
    text: str
    tool_name: str
    command: str
    event_index: int


class Correction(TypedDict):
    """One later user message that corrects the agent; `span` quotes the words that decided."""

    text: str
    event_index: int
    rule: str
    probability: float
    span: str


class ScoreTerm(TypedDict):
    """One addend of a row's score."""

    term: str
    value: float


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str
