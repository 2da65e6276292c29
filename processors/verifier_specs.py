"""Write a row's `verifier_spec`: the tools an answer may call, the failed call, the known files.

columns  harness, tools, diagnostics, cwd, workspace / text: JSON for `verifier_spec`, or None

| key | what |
|---|---|
| `tools` | the harness's own tools, and others that the session has called |
| `harness` | whose tools they are; Pi's without it |
| `failed_call` | `tool` and `command` of the first call that failed |
| `workspace` | `cwd` and `files` at the request, redacted; left out when none are known |

The completion answers the request, so the files are those at that time: the ones seen in earlier
turns, and those that the recorded answer read before it may have changed them.
"""

import json
from collections import Counter
from typing import Any

from pimono_sdpo.stage import Row
from pimono_sdpo.text import shorten
from pimono_sdpo.traces.harness import find_harness, pi

COMMAND_CHARS = 2000


def write_verifier_spec(row: Row) -> str | None:
    """Write the spec; None for a harness whose tools have no schemas here."""
    harness = find_harness(row["harness"])
    if not harness.tools:
        return None
    spec: dict[str, object] = {"tools": sorted({*harness.tools, *row["tools"]} - {""})}
    if harness.tools is not pi.TOOLS:
        spec["harness"] = harness.name
    failed = next(iter(row["diagnostics"]), None)
    if failed:
        call = {"tool": failed["tool_name"], "command": shorten(failed["command"], COMMAND_CHARS)}
        spec["failed_call"] = call
    workspace = {"cwd": row["cwd"], "files": _list_files(row["workspace"])}
    if workspace["files"]:
        spec["workspace"] = workspace
    return json.dumps(spec, ensure_ascii=False, sort_keys=True)


def _list_files(known: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the files as `replay.workspace` loads them, without paths that became equal."""
    paths = Counter(file["path"] for file in known)
    return {
        file["path"]: {
            "whole": file["texts"][0] if file["whole"] else None,
            "pieces": [] if file["whole"] else file["texts"],
            "stale": False,
        }
        for file in known
        if paths[file["path"]] == 1
    }
