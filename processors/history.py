"""Gather what was said before a request, as a conversation that a chat template takes."""

from collections.abc import Sequence

from pimono_sdpo.harness.event import Event
from pimono_sdpo.schema import Message
from pimono_sdpo.text import shorten

TURN_CHARS = 1200


def history(events: Sequence[Event], limit: int) -> list[Message]:
    """Return the last turns of user and assistant within `limit` characters.

    Roles alternate, from a user's turn to an assistant's; each turn is shortened on its own. Tool
    calls and results are left out: what they showed is told in what the assistant said.
    """
    turns: list[Message] = []
    for event in events:
        text = event.text.strip()
        if event.kind not in {"user", "assistant"} or not text or not event.on_active_branch:
            continue
        if event.kind == "assistant" and event.stop_reason in {"aborted", "error"}:
            # What stands there is the recorder's message, or half a sentence.
            continue
        if turns and turns[-1]["role"] == event.kind:
            turns[-1]["content"] += "\n\n" + text
        else:
            turns.append({"role": event.kind, "content": text})
    if turns and turns[-1]["role"] == "user":
        # Nobody answered it before the request came.
        turns.pop()
    kept: list[Message] = []
    size = 0
    for assistant, user in zip(turns[::-2], turns[-2::-2], strict=False):
        pair = [
            Message(role=turn["role"], content=shorten(turn["content"], TURN_CHARS))
            for turn in (user, assistant)
        ]
        size += sum(len(turn["content"]) for turn in pair)
        if size > limit:
            break
        kept = [*pair, *kept]
    return kept
