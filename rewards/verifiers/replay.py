"""Check proposed reads, edits and writes against what the session knew of its files.

spec   workspace: the files as they stood when the request was made, as the filter writes them and
       `pimono_sdpo.replay.workspace` shows; tools: what may be called, as for `tool_calls`
score  1.0 if every call that can be decided works; an edit whose text is not found 0.2, is found
       more than once 0.4, changes nothing or cannot be read 0.0; a change that breaks the syntax of a file 0.6

| call | verdict |
|---|---|
| read a file that the session has seen | passed |
| edit: each old text occurs once in the file, and something changes | passed |
| edit: a text does not occur, occurs more than once, or is replaced by itself | failed |
| apply_patch: the lines of each hunk follow each other in the file, or do not | passed or failed |
| apply_patch: a hunk that is empty, or has a line that begins with none of space, + and - | failed |
| write something new | passed |
| write what the file contains already | failed |
| edit or write: the file parsed before and no longer does | failed |
| anything else, or a file that may have changed since it was seen | skipped |

The first call that fails decides; each call sees the changes of those before it.
"""

import difflib
from collections.abc import Callable
from typing import Any

from pimono_sdpo.replay.calls import apply_in_turn, find_path, read_edits, read_patch
from pimono_sdpo.replay.files import Edit, File, Outcome, normalise_line_ends
from pimono_sdpo.replay.workspace import Workspace, load_workspace
from pimono_sdpo.text import shorten
from rewards.verifiers.call_formats import Call
from rewards.verifiers.rubric import BadSpec, VerifierResult, failed, passed, skipped
from rewards.verifiers.syntax import problems
from rewards.verifiers.tool_calls import calls_of

NAME = "replay"
MAX_FEEDBACK = 1200
NEAR_CHARS = 300
MIN_ALIKE = 0.6
# A wrong text may be a slip; changing nothing is not an attempt.
SCORES: dict[Outcome, float] = {"not_found": 0.2, "multiple": 0.4, "no_change": 0.0, "invalid": 0.0}
BROKEN = 0.6


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Judge the calls of a completion, decoded with its special tokens."""
    if not spec.get("workspace"):
        return skipped(NAME, "The row knows no files.")
    try:
        workspace = load_workspace(spec["workspace"])
    except (KeyError, TypeError, AttributeError) as found:
        raise BadSpec(f"`workspace` of the spec cannot be read ({type(found).__name__}).") from found
    decided = 0
    for call in calls_of(completion, spec):
        verdict = CHECKS.get(call.name, _other)(workspace, call) if isinstance(call.arguments, dict) else None
        if isinstance(verdict, VerifierResult):
            return verdict
        decided += verdict is True
    return passed(NAME, calls=decided) if decided else skipped(NAME, "The session does not show how this would end.")


CallVerdict = VerifierResult | bool | None


def _read(workspace: Workspace, call: Call) -> CallVerdict:
    known = workspace.files.get(workspace.absolute(find_path(call.arguments)))
    # A file that the session has not seen may exist nevertheless.
    return True if known and (known.whole is not None or known.pieces) else None


def _patch(workspace: Workspace, call: Call) -> CallVerdict:
    patches = read_patch(call.arguments)
    outcome = workspace.predict_patch(patches)
    if outcome == "ok":
        workspace.apply_patch(patches)
        return True
    names = ", ".join(patch.path for patch in patches)
    problem = "read the patch of" if outcome == "invalid" else "find the expected lines of the patch in"
    return outcome and _fail(f"Failed to {problem} {names}.", SCORES[outcome])


def _edit(workspace: Workspace, call: Call) -> CallVerdict:
    if read_patch(call.arguments):
        return _patch(workspace, call)
    edits = read_edits(call.arguments)
    path = find_path(call.arguments)
    file = workspace.files.get(workspace.absolute(path))
    outcome = file.predict(edits, apply_in_turn(call.arguments)) if file and edits else None
    if file is None or outcome is None:
        return None
    if outcome == "ok":
        before = file.whole
        file.apply(edits)
        return _broken(path, before, file.whole) or True
    return _fail(_describe(outcome, path, edits, file), SCORES[outcome])


def _write(workspace: Workspace, call: Call) -> CallVerdict:
    content, path = call.arguments.get("content"), find_path(call.arguments)
    file = workspace.files.get(workspace.absolute(path))
    if file is None or not isinstance(content, str) or not file.is_known:
        return None
    before = file.whole
    file.write(content)
    if before == content:
        return _fail(f"{path} holds exactly this already.", 0.0)
    return _broken(path, before, content) or True


def _other(workspace: Workspace, call: Call) -> CallVerdict:
    """A command or an unknown tool may do anything to the files."""
    workspace.observe_unanswered(call.name, call.arguments)
    return None


def _broken(path: str, before: str | None, after: str | None) -> VerifierResult | None:
    """Return a failure if the file parsed before and no longer does."""
    if before is None or after is None or problems(path, before) != []:
        return None
    found = problems(path, after)
    if not found or isinstance(found, str):
        return None
    line, what = found[0]
    return _fail(f"{path} would not parse any more. Line {line}: {what}", BROKEN, "build_lint_compile")


def _fail(feedback: str, score: float, category: str = "tool_schema_validation") -> VerifierResult:
    return failed(NAME, category, shorten(feedback, MAX_FEEDBACK), score)


CHECKS: dict[str, Callable[[Workspace, Call], CallVerdict]] = {
    "read": _read,
    "edit": _edit,
    "apply_patch": _patch,
    "write": _write,
}


def _describe(outcome: Outcome, path: str, edits: list[Edit], file: File) -> str:
    """Describe the failure as the harness does, with the nearest lines of the file."""
    if outcome == "no_change":
        return f"No changes made to {path}. The replacement produced identical content."
    if outcome == "multiple":
        return (
            f"Found more than one occurrence of the text in {path}. The text must be unique. "
            "Please provide more context to make it unique."
        )
    text = file.whole or ""
    missing = next((edit.old for edit in edits if normalise_line_ends(edit.old) not in text), edits[0].old)
    near = _nearest(missing, text)
    hint = f" The nearest lines are:\n{near}" if near else ""
    return (
        f"Could not find the exact text in {path}. The old text must match exactly including all "
        f"whitespace and newlines.{hint}"
    )


def _nearest(missing: str, text: str) -> str:
    lines, wanted = text.split("\n"), missing.strip("\n").split("\n")
    stripped = [line.strip() for line in lines]
    alike = difflib.get_close_matches(wanted[0].strip(), stripped, 1, MIN_ALIKE)
    at = stripped.index(alike[0]) if alike else len(lines)
    return shorten("\n".join(lines[at : at + len(wanted)]), NEAR_CHARS)
