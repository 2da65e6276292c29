"""Ask a chat model which later messages correct the agent; the offline decision is the default."""

import re
from collections.abc import Sequence

from processors.corrections.features import Turn
from processors.judge import Judge, Messages, frame, strip_drafts
from processors.redact import redact_text

SENT_CHARS = 4000
QUESTION = """\
You read a conversation between a user and a coding agent. Decide about the user's LAST message. \
Answer `yes` when it says or implies that something the agent did, said, assumed or was about to \
do is wrong, missing or not wanted, or when it reports that the result fails. Answer `no` for a \
new wish, an answer to a question of the agent, an approval, thanks, or a message that a program \
wrote. Answer with one word."""


def judge_turns(judge: Judge, turns: Sequence[Turn]) -> list[bool | None]:
    """Return whether each message is a correction, None for an answer that is neither yes nor no."""
    return judge.ask([write_question(turn) for turn in turns], read_answer)


def write_question(turn: Turn) -> Messages:
    """Return the messages that ask about a turn."""
    did = "interrupted" if turn.aborted else "edited files" if turn.edited else "no edit"
    texts = (turn.before, turn.said, turn.text)
    before, said, text = (redact_text(part, "")[0][-SENT_CHARS:] for part in texts)
    parts = {"user": before, f"agent, {did}": said, "last message of the user": text}
    return frame(QUESTION, parts)


def read_answer(text: str) -> bool | None:
    """Return what an answer says, None when it is neither yes nor no.

    >>> read_answer(" **Yes**."), read_answer("Answer: no"), read_answer("Possibly"), read_answer("I must say yes")
    (True, False, None, None)
    """
    found = re.fullmatch(r"(?:answer:)?\s*(yes|no)[.!]?", re.sub(r"[*_`\"']", "", strip_drafts(text)).strip().lower())
    return found and found[1] == "yes"
