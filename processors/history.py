"""Gather the earlier turns of a conversation in front of a request."""

from collections.abc import Sequence

from pimono_sdpo.schema import Message
from pimono_sdpo.traces.events import Event


def gather_history(events: Sequence[Event], stop: int, limit: int) -> list[Message]:
    """Return the last turns before event `stop` within `limit` characters, whole.

    Roles alternate, from a user's turn to an assistant's. Tool calls and results are left out: the
    assistant's text says what matters of them. Turns are shortened later, after redaction, which
    would not recognise half a secret.
    """
    kept: list[Message] = []
    turns: list[tuple[str, list[str]]] = []
    size = 0
    for index in range(stop - 1, -1, -1):
        if size > limit or not limit:
            break
        event = events[index]
        text = event.text.strip()
        if not text or not _is_said(event):
            continue
        if turns and turns[-1][0] == event.kind:
            turns[-1][1].append(text)
        elif turns or event.kind == "assistant":
            # A user's turn right before the request was never answered.
            turns.append((event.kind, [text]))
        size += len(text) if turns else 0
    while turns and (turns[-1][0] == "assistant" or _count_chars(turns) > limit):
        turns.pop()
    for role, texts in turns:
        kept.append(Message(role=role, content="\n\n".join(reversed(texts))))
    return kept[::-1]


def _is_said(event: Event) -> bool:
    """Check for a message of the user or the agent; a failed turn holds an error message."""
    is_turn = event.kind == "user" or (
        event.kind == "assistant" and event.stop_reason not in {"aborted", "error"}
    )
    return is_turn and event.on_active_branch


def _count_chars(turns: list[tuple[str, list[str]]]) -> int:
    return sum(len(text) for _, texts in turns for text in texts)
