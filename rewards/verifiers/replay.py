"""Check reads, edits and writes against the known content of the session's files.

spec   workspace: the files at the time of the request, as the filter writes them and
       `pimono_sdpo.replay.workspace` reads them; tools: the tools that may be called, as for `tool_calls`
score  1.0 if every call that can be decided works; an edit whose text is not found 0.2, is found
       more than once 0.4, changes nothing or is invalid 0.0; a change that breaks the syntax of a file 0.6

| call | verdict |
|---|---|
| read a file that the session has seen | passed |
| edit: each old text occurs once in the file, and something changes | passed |
| edit: a text does not occur, occurs more than once, or is replaced by itself | failed |
| apply_patch: the lines of each hunk are consecutive lines of the file | passed |
| apply_patch: they are not | failed |
| apply_patch: a hunk is empty, or a line does not begin with a space, + or - | failed |
| write new content | passed |
| write the current content of the file | failed |
| edit or write: the file parsed before and no longer does | failed |
| anything else, or a file that may have changed since it was seen | skipped |

The first call that fails decides; each call sees the changes of the calls before it.
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
from rewards.verifiers.syntax import find_problems
from rewards.verifiers.tool_calls import parse_calls

NAME = "replay"
MAX_FEEDBACK = 1200
NEAR_CHARS = 300
MIN_SIMILARITY = 0.6
# A wrong text may be an oversight; changing nothing is no attempt at all.
SCORES: dict[Outcome, float] = {"not_found": 0.2, "multiple": 0.4, "no_change": 0.0, "invalid": 0.0}
BROKEN_SYNTAX = 0.6


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Check the calls of a completion, which was decoded with its special tokens."""
    if not spec.get("workspace"):
        return skipped(NAME, "The row knows no files.")
    try:
        workspace = load_workspace(spec["workspace"])
    except (KeyError, TypeError, AttributeError) as error:
        raise BadSpec(f"`workspace` of the spec cannot be read ({type(error).__name__}).") from error
    decided = 0
    for call in parse_calls(completion, spec):
        verdict = CHECKS.get(call.name, _check_other)(workspace, call) if isinstance(call.arguments, dict) else None
        if isinstance(verdict, VerifierResult):
            return verdict
        decided += verdict is True
    if not decided:
        return skipped(NAME, "The result of this call is not known from the session.")
    return passed(NAME, calls=decided)


# A failure, True if the call works, None if that is not known.
CallVerdict = VerifierResult | bool | None


def _check_read(workspace: Workspace, call: Call) -> CallVerdict:
    known = workspace.files.get(workspace.absolute(find_path(call.arguments)))
    # A file that the session has not seen may still exist.
    return True if known and (known.whole is not None or known.pieces) else None


def _check_patch(workspace: Workspace, call: Call) -> CallVerdict:
    patches = read_patch(call.arguments)
    outcome = workspace.predict_patch(patches)
    if outcome == "ok":
        workspace.apply_patch(patches)
        return True
    names = ", ".join(patch.path for patch in patches)
    problem = "read the patch of" if outcome == "invalid" else "find the expected lines of the patch in"
    return outcome and _fail(f"Failed to {problem} {names}.", SCORES[outcome])


def _check_edit(workspace: Workspace, call: Call) -> CallVerdict:
    if read_patch(call.arguments):
        return _check_patch(workspace, call)
    edits = read_edits(call.arguments)
    path = find_path(call.arguments)
    file = workspace.files.get(workspace.absolute(path))
    outcome = file.predict(edits, apply_in_turn(call.arguments)) if file and edits else None
    if file is None or outcome is None:
        return None
    if outcome == "ok":
        before = file.whole
        file.apply(edits)
        return _check_syntax(path, before, file.whole) or True
    return _fail(_describe(outcome, path, edits, file), SCORES[outcome])


def _check_write(workspace: Workspace, call: Call) -> CallVerdict:
    content, path = call.arguments.get("content"), find_path(call.arguments)
    file = workspace.files.get(workspace.absolute(path))
    if file is None or not isinstance(content, str) or not file.is_known:
        return None
    before = file.whole
    file.write(content)
    if before == content:
        return _fail(f"{path} already has this content.", 0.0)
    return _check_syntax(path, before, content) or True


def _check_other(workspace: Workspace, call: Call) -> CallVerdict:
    """Forget the files that a command or an unknown tool may change."""
    workspace.observe_unanswered(call.name, call.arguments)
    return None


def _check_syntax(path: str, before: str | None, after: str | None) -> VerifierResult | None:
    """Return a failure if the file parsed before and no longer does."""
    if before is None or after is None or find_problems(path, before) != []:
        return None
    new_problems = find_problems(path, after)
    if not new_problems or isinstance(new_problems, str):
        return None
    line, message = new_problems[0]
    return _fail(f"{path} would no longer parse. Line {line}: {message}", BROKEN_SYNTAX, "build_lint_compile")


def _fail(feedback: str, score: float, category: str = "tool_schema_validation") -> VerifierResult:
    return failed(NAME, category, shorten(feedback, MAX_FEEDBACK), score)


CHECKS: dict[str, Callable[[Workspace, Call], CallVerdict]] = {
    "read": _check_read,
    "edit": _check_edit,
    "apply_patch": _check_patch,
    "write": _check_write,
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
    near = _find_nearest(missing, text)
    hint = f" The nearest lines are:\n{near}" if near else ""
    return (
        f"Could not find the exact text in {path}. The old text must match exactly including all "
        f"whitespace and newlines.{hint}"
    )


def _find_nearest(missing: str, text: str) -> str:
    lines, missing_lines = text.split("\n"), missing.strip("\n").split("\n")
    stripped = [line.strip() for line in lines]
    matches = difflib.get_close_matches(missing_lines[0].strip(), stripped, 1, MIN_SIMILARITY)
    at = stripped.index(matches[0]) if matches else len(lines)
    return shorten("\n".join(lines[at : at + len(missing_lines)]), NEAR_CHARS)
