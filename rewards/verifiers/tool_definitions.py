"""Tools as a chat template declares them to a model, so that it can call what the verifiers know.

The wording is ours; the arguments are those of `tool_schemas.json`, of `edit` the newest.
"""

import json
from typing import Any

from pimono_sdpo.agent.schemas import TOOLS
from rewards.verifiers.tool_schemas import tools_of

DESCRIPTIONS = {
    "read": "Read a file, or `limit` lines of it from line `offset`.",
    "bash": "Run a command in the working directory and return its output.",
    "edit": "Replace texts of a file: each oldText must stand in it exactly once.",
    "write": "Write a file, replacing what it held.",
    "find": "Find files whose names match a pattern.",
    "ls": "List a directory.",
} | {name: tool["description"] for name, tool in TOOLS.items()}


def definitions(name: str) -> list[dict[str, Any]]:
    """Return a set of tools ("pi" or "repo_agent") as OpenAI-style functions, sorted by name.

    >>> [tool["function"]["name"] for tool in definitions("repo_agent")]
    ['grep', 'list_files', 'read_file', 'write_file']
    """
    found = []
    for tool in sorted(tools_of(name).values(), key=lambda tool: tool.name):
        parameters = json.loads(json.dumps(tool.schemas[-1]))
        parameters.pop("additionalProperties", None)
        function = {
            "name": tool.name,
            "description": DESCRIPTIONS[tool.name],
            "parameters": parameters,
        }
        found.append({"type": "function", "function": function})
    return found
