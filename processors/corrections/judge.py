"""Ask a model which later messages correct the agent; the offline decision is the default."""

from collections.abc import Sequence

from processors.corrections.features import Turn
from processors.judge import MESSAGE_OPTIONS, Judge, Question
from processors.redact import redact_text

SENT_CHARS = 4000
TASK = "You read a conversation between a user and a coding agent, and decide about the user's LAST message."
QUESTION = Question("message", "What does the last message of the user say?", MESSAGE_OPTIONS)


def judge_turns(judge: Judge, turns: Sequence[Turn]) -> list[dict[str, float] | None]:
    """Return the probability of each kind of message, None for an answer that cannot be read."""
    answers = judge.decide(TASK, [show_turn(turn) for turn in turns], (QUESTION,))
    return [None if answer is None else answer[QUESTION.name] for answer in answers]


def show_turn(turn: Turn) -> dict[str, str]:
    """Return what is sent about a turn."""
    did = "interrupted" if turn.aborted else "edited files" if turn.edited else "no edit"
    texts = (turn.before, turn.said, turn.text)
    before, said, text = (redact_text(part, "")[0][-SENT_CHARS:] for part in texts)
    return {"user": before, f"agent, {did}": said, "last message of the user": text}
