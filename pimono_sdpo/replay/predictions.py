"""Predict how a session's edits end, each before its result is looked at."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pimono_sdpo.harness.blocks import is_refusal
from pimono_sdpo.harness.event import Event
from pimono_sdpo.replay.files import Outcome
from pimono_sdpo.replay.workspace import Rerun, Workspace
from pimono_sdpo.trace import match_results


class Prediction(NamedTuple):
    """How an edit was expected to end, None where the session does not tell, and how it ended."""

    event_index: int
    expected: Outcome | None
    failed: bool


def predictions(
    events: Sequence[Event], cwd: str, harness: str = "pi", rerun: Rerun | None = None
) -> Iterator[Prediction]:
    """Predict every answered edit of a session before its result is looked at."""
    workspace = Workspace(cwd, harness=harness, rerun=rerun)
    matched = match_results(tuple(events))
    for event in events:
        if event.kind != "tool_call":
            workspace.hear(event)
        elif event.index in matched:
            result = events[matched[event.index]]
            if not event.on_active_branch:
                # The files may have been brought back since.
                workspace.lose(event)
                continue
            if event.tool_name == "edit" and not is_refusal(result.text):
                yield Prediction(event.index, workspace.predict(event), result.is_error)
            workspace.observe(event, result)
        elif event.tool_name in {"edit", "write", "bash"}:
            # Broken off, it may have been done all the same.
            workspace.lose(event)
