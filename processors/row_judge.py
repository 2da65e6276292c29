"""With `--row-judge`, drop rows that a chat model does not call worth training on.

reads   prompt, history, privileged_context
drops   judged_not_worth_it (the model gives at most WORTH of 100), not_judged (its answer is not a number)
"""

import re
from functools import partial

from pimono_sdpo.stage import Filter, Row
from pimono_sdpo.text import shorten, shorten_at_paragraphs
from processors.judge import Judge, Messages, frame, strip_drafts

WORTH = 50
PROMPT_CHARS, TURN_CHARS, CONTEXT_CHARS = 4000, 800, 8000
LAST_TURNS = 6
QUESTION = """\
You select training data. You see one request to a coding agent, the turns before it, and what went wrong while \
the agent worked on it: failures that tools reported and corrections by the user ("The agent had said" is the \
answer that a correction is about, "Next" what the agent did then). A row is worth training on if all of these hold:
1. One can tell from the request and the turns before it what is asked.
2. What went wrong belongs to this request and is real: a failure that really happened, or a user who corrects \
the agent or reports that its work is wrong. A new wish, a harmless message, a search without a result or an \
outage of a service is not enough.
3. A competent agent could have done better: a wrong call, path or flag, code that does not run, a test broken by \
its change, a wrong assumption, a misunderstood wish. A test that was meant to fail, a refused permission, a \
missing service or a slip put right at once is not enough.
One real mistake among noise is enough. Answer with a number from 0 to 100, the probability that a second \
careful reader calls the row worth training on, and nothing else."""
_SCORE = re.compile(
    r"(?:(?:the |my |final )*(?:answer|probability|rating|score)(?: is)? ?[:=]? ?)?"
    r"(\d{1,3})(?: ?/ ?100| ?%| ?percent)?",
    re.ASCII | re.IGNORECASE,
)
_MARKUP = str.maketrans("", "", "*_`\"'")


def check_row(row: Row, judge: Judge) -> str | None:
    """Return why a row is dropped; None keeps it."""
    (score,) = judge.ask([write_question(row)], read_score)
    if score is None:
        return "not_judged"
    return "judged_not_worth_it" if score <= WORTH else None


def write_question(row: Row) -> Messages:
    """Return the messages that ask about a row, whose texts are already redacted."""
    turns = [
        f"{turn['role'].upper()}: {shorten(turn['content'], TURN_CHARS)}" for turn in row["history"][-LAST_TURNS:]
    ]
    parts = {
        "request": shorten_at_paragraphs(row["prompt"], PROMPT_CHARS),
        "what went wrong": shorten(row["privileged_context"], CONTEXT_CHARS),
    }
    return frame(QUESTION, {"turns before": "\n\n".join(turns), **parts} if turns else parts)


def read_score(text: str) -> int | None:
    """Return the number that an answer gives, perhaps with its name; None without a number from 0 to 100 alone.

    >>> read_score(" 85."), read_score("**Score:** 30/100"), read_score("7/10"), read_score("850")
    (85, 30, None, None)
    >>> read_score("<think>30?</think> Score: 85"), read_score("I was told to say 100")
    (85, None)
    """
    found = _SCORE.fullmatch(" ".join(strip_drafts(text).translate(_MARKUP).split()).rstrip(".! "))
    return int(found[1]) if found and int(found[1]) <= 100 else None


def stage(judge: Judge) -> Filter:
    """Build the filter that asks a model."""
    return Filter(partial(check_row, judge=judge), reads=("prompt", "history", "privileged_context"))
