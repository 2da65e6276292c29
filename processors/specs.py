"""What a verifier needs to judge an answer to a row: the tools it may call, the call that failed.

columns  harness, tools, diagnostics / text: JSON for `verifier_spec`, or None
"""

import json

from pimono_sdpo.stage import Row
from pimono_sdpo.text import shorten

# The tools that come with Pi; a session's other tools are extensions.
PI_TOOLS = frozenset({"read", "bash", "edit", "write", "grep", "find", "ls"})
PI_HARNESSES = frozenset({"pi", "pi_stream"})
COMMAND_CHARS = 2000


def verifier_spec(row: Row) -> str | None:
    """Write the spec; None for a harness whose tools have no schemas here."""
    if row["harness"] not in PI_HARNESSES:
        return None
    spec: dict[str, object] = {"tools": sorted(PI_TOOLS.union(row["tools"]) - {""})}
    failed = next(iter(row["diagnostics"]), None)
    if failed:
        call = {"tool": failed["tool_name"], "command": shorten(failed["command"], COMMAND_CHARS)}
        spec["failed_call"] = call
    return json.dumps(spec, ensure_ascii=False, sort_keys=True)
