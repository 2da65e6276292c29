"""Hash the messages of a session to find sessions that share them (forks, snapshots, copies).

Short messages are skipped, because equal ones occur by chance.
"""

from collections.abc import Sequence

import xxhash

from pimono_sdpo.traces.events import Event

MIN_CHARS = {"user": 16, "assistant": 40, "tool_call": 80}


def hash_messages(events: Sequence[Event]) -> list[int]:
    """Return a 64-bit hash for each message that is long enough, in order."""
    said = (
        f"{event.kind}\n{event.text or event.arguments}"
        for event in events
        if len(event.text or event.arguments) >= MIN_CHARS.get(event.kind, 1 << 62)
    )
    return [int.from_bytes(xxhash.xxh3_64_digest(text.encode()), signed=True) for text in said]
