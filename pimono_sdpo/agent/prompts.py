"""The texts for the agent: the system prompt of each protocol, the goal, the driver's notes."""

import json

from pimono_sdpo.agent.protocol import Action
from pimono_sdpo.schema import Protocol, TestPolicy
from rewards.verifiers.tool_schemas import definitions

_TASK = """\
You mend a code repository. You see it through tools only, and all paths are relative to its \
top folder. Find the cause of the problem, change as little as needed, and leave everything else \
as it is. Look at the files before you write one; write_file replaces the whole file, so give all \
of it."""
_JSON = """\
Every answer is exactly one JSON object and nothing else: no text around it, no code fence. \
Either call one tool:
{"type": "tool_call", "name": "read_file", "args": {"rel_path": "src/main.py"}}
or finish, when the work is done:
{"type": "final", "summary": "what was wrong and what you changed", \
"changes": [{"path": "src/main.py", "description": "what changed there"}]}

Results come back as messages that begin with [tool_result]. The tools, as JSON Schemas of `args`:
"""
_NATIVE = """\
Call one tool at a time. When the work is done, answer without a tool call: say what was wrong and \
what you changed."""
_TESTS: dict[TestPolicy, str] = {
    "on_write": "After each file you write, the tests are run for you; their result stands below "
    "that of the tool, after [TESTS PASS] or [TESTS FAIL]. You cannot run anything yourself.",
    "on_final": "Tests are run once you have finished. You cannot run anything yourself.",
    "never": "You cannot run anything.",
}
_AGAIN = {
    "json": 'Answer with exactly one JSON object, {"type": "tool_call", "name": ..., "args": '
    '{...}} or {"type": "final", "summary": ...}, and nothing else.',
    "native": "Call one of the tools, or answer with a plain text when the work is done.",
}


def system_prompt(protocol: Protocol, test_policy: TestPolicy) -> str:
    """Return the first message of every run, which does not depend on the task."""
    if protocol == "native":
        return "\n\n".join((_TASK, _NATIVE, _TESTS[test_policy]))
    tools = "\n".join(
        json.dumps(
            {"name": one["name"], "description": one["description"], "args": one["parameters"]}
        )
        for one in (tool["function"] for tool in definitions("repo_agent"))
    )
    return "\n\n".join((_TASK, _JSON + tools, _TESTS[test_policy]))


def goal_prompt(goal: str) -> str:
    """Return the second message of a run."""
    return f"GOAL:\n{goal}"


def render_parse_note(action: Action, protocol: Protocol) -> str:
    """Return the note on an answer that could not be read."""
    return f"[driver] Your last answer could not be read: {action.malformed}. {_AGAIN[protocol]}"


def render_malformed_note(action: Action) -> str:
    """Return the note on an answer that was accepted although it was malformed."""
    return f"[driver] Your last answer was not as wanted: {action.malformed}."


LOOP = (
    "Loop detected: you made this same call before and nothing has changed since, so it was not "
    "run again. Look at something else, or change your approach."
)
