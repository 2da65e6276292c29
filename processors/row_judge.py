"""With `--judge`, ask a model three questions about each row.

reads   prompt, history, privileged_context
writes  judged: the probability of each option; empty if the answer cannot be read
"""

from functools import partial
from typing import Any

from datasets import Features

from pimono_sdpo.schema import EVIDENCE
from pimono_sdpo.stage import Map, Row
from pimono_sdpo.text import shorten, shorten_at_paragraphs
from processors.judge import MESSAGE_OPTIONS, Judge, Question

PROMPT_CHARS, TURN_CHARS, CONTEXT_CHARS = 4000, 800, 8000
LAST_TURNS = 6
TASK = """\
You select training data. You see one request to a coding agent, the turns before it, and what went wrong while \
the agent worked on it: failures that tools reported and messages of the user ("The agent had said" is the \
answer that a message is about, "Next" what the agent did then)."""
QUESTIONS = (
    Question(
        "prompt_alone",
        "Can one tell from the request and the turns before it what is asked?",
        {"yes": "a careful reader knows what to do", "no": "it points at something that is not shown"},
    ),
    Question(
        "message",
        "What does the user's message among what went wrong say?",
        {**MESSAGE_OPTIONS, "none": "there is no such message"},
    ),
    Question(
        "own_fault",
        "Could a competent agent have avoided what went wrong?",
        {
            "yes": "a wrong call, path or flag, code that does not run, a test it broke, a wrong assumption",
            "no": "a test meant to fail, a refused permission, a missing service, a slip put right at once",
        },
    ),
)


def judge_row(row: Row, judge: Judge) -> dict[str, Any]:
    """Return the answers about a row, whose texts are already redacted."""
    turns = [
        f"{turn['role'].upper()}: {shorten(turn['content'], TURN_CHARS)}" for turn in row["history"][-LAST_TURNS:]
    ]
    parts = {
        **({"turns before": "\n\n".join(turns)} if turns else {}),
        "request": shorten_at_paragraphs(row["prompt"], PROMPT_CHARS),
        "what went wrong": shorten(row["privileged_context"], CONTEXT_CHARS),
    }
    (answers,) = judge.decide(TASK, [parts], QUESTIONS)
    return {
        "judged": [
            {"question": question, "option": option, "probability": round(probability, 4)}
            for question, options in (answers or {}).items()
            for option, probability in options.items()
        ]
    }


def stage(judge: Judge) -> Map:
    """Build the stage that asks a model."""
    return Map(
        partial(judge_row, judge=judge),
        reads=("prompt", "history", "privileged_context"),
        writes=Features({"judged": EVIDENCE["judged"]}),
    )
