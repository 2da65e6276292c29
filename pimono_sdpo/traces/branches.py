"""Find where the user went back and took another way: an abandoned branch beside the one kept.

What replaced a branch is a correction of it; both make a preference pair, abandoned = rejected.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from pimono_sdpo.traces.events import Event


@dataclass(frozen=True)
class Branch:
    """An abandoned branch and where the active path goes on beside it, as indexes of events.

    `fork` is the last event that both share, or -1; `kept` is the first event of the active path
    after it, or None when the session ends at the fork.
    """

    fork: int
    abandoned: tuple[int, ...]
    kept: int | None


def find_branches(events: Sequence[Event]) -> list[Branch]:
    """Return the abandoned branches in the order they begin, without the work of subagents."""
    parent_of = {event.id: event.parent_id for event in events if event.id}
    last_active = {event.id: event.index for event in events if event.on_active_branch}
    active = [event.index for event in events if event.on_active_branch]
    first_of: dict[str, str] = {}
    abandoned: dict[str, list[int]] = {}
    for event in events:
        if event.on_active_branch or event.is_subagent or not event.id:
            continue
        first = _climb_to_branch(event.id, parent_of, last_active, first_of)
        abandoned.setdefault(first, []).append(event.index)
    branches = []
    for first, indexes in abandoned.items():
        parent = parent_of.get(first, "")
        if parent and parent not in last_active:
            # The beginning of the branch is lost, so its fork is unknown.
            continue
        fork = last_active.get(parent, -1)
        after = bisect_right(active, fork)
        kept = active[after] if after < len(active) else None
        branches.append(Branch(fork, tuple(indexes), kept))
    return branches


def _climb_to_branch(
    start: str, parent_of: dict[str, str], active: dict[str, int], known: dict[str, str]
) -> str:
    """Climb from an event to the first one of its branch, visiting every event only once."""
    climbed: dict[str, None] = {}
    step = start
    while step not in known and step not in climbed:
        climbed[step] = None
        parent = parent_of.get(step, "")
        if parent not in parent_of or parent in active:
            known[step] = step
        else:
            step = parent
    # A cycle of parents has no first event; take the one where it was entered.
    first = known.get(step, step)
    known.update(dict.fromkeys(climbed, first))
    return first
