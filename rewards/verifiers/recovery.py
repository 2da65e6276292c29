"""Check that a completion makes the call that worked after a recorded failure: imitation of the recorded repair.

spec   recovery: the calls `worked` and `failed` (which may be missing), each with `name` and `arguments`;
       tools, harness, format: as for `tool_calls`
score  1.0 for one call that does what the worked one did: the same tool, target and intent, however it is quoted
       or described; 0.0 for the failed call, an invalid one or none. Any other valid call may be right as well, so
       it gets no verdict. The metric `hit` is 1.0 or 0.0, and `repeated` is 1.0 for the failed call.
"""

from collections.abc import Mapping
from typing import Any

from pimono_sdpo.actions import normalise_action
from rewards.verifiers import tool_calls
from rewards.verifiers.rubric import BadSpec, VerifierResult, failed, passed, skipped

NAME = "recovery"


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Compare the calls of a completion with the recorded ones."""
    recorded = spec.get("recovery")
    if not recorded:
        return skipped(NAME, "The row is not a recovery.")
    worked = _normalise_recorded(recorded, "worked")
    repeated = _normalise_recorded(recorded, "failed") if recorded.get("failed") else None
    if spec.get("tools"):
        checked = tool_calls.verify(completion, {**spec, "call": "required"})
        if checked.status != "passed":
            return failed(NAME, checked.category or "malformed_output", checked.feedback, hit=0.0, repeated=0.0)
    calls = tool_calls.read_calls(completion, {"tools": [], **spec}).calls
    if not calls:
        return failed(NAME, "malformed_output", "The message makes no tool call.", hit=0.0, repeated=0.0)
    made = [normalise_action(call.name, call.arguments) for call in calls if isinstance(call.arguments, Mapping)]
    if repeated in made:
        text = "This call has failed before; making it again fails again."
        return failed(NAME, "command_error", text, hit=0.0, repeated=1.0)
    if made == [worked]:
        return passed(NAME, hit=1.0, repeated=0.0)
    return skipped(NAME, "Another valid call may be right as well.")


def _normalise_recorded(recorded: Any, side: str) -> str:
    call = recorded.get(side) if isinstance(recorded, dict) else None
    name, arguments = (call.get("name"), call.get("arguments")) if isinstance(call, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise BadSpec(f"`recovery.{side}` of the spec is not a call with `name` and `arguments`.")
    return normalise_action(name, arguments)
