"""A workspace as JSON: what a row's `verifier_spec` carries of the session's files.

{"cwd": "/w", "files": {"/w/a.ts": {"whole": "...", "pieces": [...], "stale": false}}}
"""

from typing import Any

from pimono_sdpo.replay.files import File
from pimono_sdpo.replay.workspace import Workspace

Json = dict[str, Any]


def to_json(workspace: Workspace) -> Json:
    """Write down what is known; what a formatter may have changed counts as stale."""
    files = {
        path: {
            "whole": file.whole,
            "pieces": file.pieces,
            "stale": file.is_stale or bool(file.doubtful) or file.otherwise is not None,
        }
        for path, file in sorted(workspace.files.items())
    }
    return {"cwd": workspace.cwd, "files": files}


def from_json(state: Json) -> Workspace:
    """Read it back; raises KeyError or TypeError when it is none."""
    files = {
        path: File(known["whole"], list(known["pieces"]), bool(known["stale"]))
        for path, known in state["files"].items()
    }
    return Workspace(state["cwd"], files)
