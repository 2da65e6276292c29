"""Repeat a recorded command on the files a session knows, in the sandbox, to know them after it.

    predictions(trace.events, trace.cwd, trace.harness, rerun)

| what the command changes files with | on which files it is repeated |
|---|---|
| mv, cp, rm | all that are known, also in parts |
| sed -i and perl -pi, lone substitutions | all that are known: each line is changed alone |
| cat, echo, tee into files; other sed; python in the line | those known as a whole |

What stands behind the last of these is not run. The command has to end and to print as it was
recorded; otherwise, and where it may look at what nobody has seen, all it may have changed is
stale. `sed -i ''` is macOS's: its expressions are repeated where GNU's mean the same.
"""

import json
import sys
from typing import Any
from uuid import uuid4

from pimono_sdpo.replay.commands import changes_of
from pimono_sdpo.replay.files import File
from pimono_sdpo.replay.workspace import Workspace
from pimono_sdpo.traces.events import Event
from rewards.sandbox import Limits, run
from rewards.verifiers.recorded import Recorded, recorded

LIMITS = Limits(cpu_seconds=5, wall_seconds=30)
MAX_BYTES = 8_000_000
# Lays the files out below a folder, and puts that folder before every path of the recorder's.
START = """
import json, os, re, subprocess, sys
given = json.load(sys.stdin)
root = os.path.join(os.getcwd(), "w")
places = re.compile("|".join(map(re.escape, given["places"])))
there = lambda text: places.sub(lambda found: root + found[0], text)
for folder in given["folders"]:
    os.makedirs(root + folder, exist_ok=True)
for path, text in given["files"].items():
    os.makedirs(os.path.dirname(root + path), exist_ok=True)
    with open(root + path, "w", newline="") as file:
        file.write(there(text))
done = subprocess.run(["bash", "-c", there(given["command"])], cwd=root + given["cwd"],
                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
after = {}
for folder, _, names in os.walk(root):
    for name in names:
        path = os.path.join(folder, name)
        if os.path.islink(path):
            sys.exit("a link")
        with open(path, newline="") as file:
            after[path[len(root):]] = file.read().replace(root, "")
output = done.stdout.decode().replace(root, "")
json.dump({"code": done.returncode, "output": output, "after": after}, sys.stdout)
"""


def rerun(workspace: Workspace, command: str, result: Event) -> bool:
    """Repeat a command that has run; False where it is not to be repeated, and nothing is changed.

    Raises SandboxError when no sandbox holds here.
    """
    what = recorded(command, workspace.cwd)
    if what is None or _may_change(what.rest, result.text):
        return False
    mark = f"#{uuid4().hex}"
    known = {path: file for path, file in workspace.files.items() if _is_sent(file, what)}
    sent = {path: _sent(file, mark) for path, file in known.items()}
    for name in what.names:
        # A file that nobody has seen stands there all the same.
        sent.setdefault(workspace.absolute(name), mark)
    if sum(map(len, sent.values())) > MAX_BYTES or not all(map(what.has_place, sent)):
        return False
    answer = _answer(what, workspace.cwd, sent)
    if answer is None or not _ended_alike(what, answer, result):
        return False
    _take(workspace, known, sent, answer["after"], mark)
    return True


def _may_change(rest: str, output: str) -> bool:
    changes = changes_of(rest, output)
    return changes.anything or changes.formats or bool(changes.names)


def _is_sent(file: File, what: Recorded) -> bool:
    if not file.is_known or file.doubtful or file.otherwise is not None:
        return False
    return file.whole is not None or what.kind != "whole"


def _sent(file: File, mark: str) -> str:
    """The text of a file; that of parts has marks between them."""
    return file.whole if file.whole is not None else f"\n{mark}\n".join([mark, *_lines_of(file)])


def _lines_of(file: File) -> list[str]:
    """The parts of a file without lines that may be seen in part."""
    return [
        piece if piece in file.placed else "\n".join(piece.split("\n")[1:-1])
        for piece in file.pieces
        if piece in file.placed or piece.count("\n") > 1
    ]


def _answer(what: Recorded, cwd: str, sent: dict[str, str]) -> dict[str, Any] | None:
    given = {
        "cwd": cwd,
        "places": what.places,
        "folders": [cwd, *what.folders],
        "files": sent,
        "command": what.command,
    }
    ran = run(
        [sys.executable, "-I", "-S", "-c", START],
        stdin=json.dumps(given).encode("utf-8", "replace"),
        limits=Limits(
            cpu_seconds=LIMITS.cpu_seconds,
            wall_seconds=LIMITS.wall_seconds,
            output=4 * MAX_BYTES,
        ),
    )
    if ran.exit_code != 0:
        return None
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def _ended_alike(what: Recorded, answer: dict[str, Any], result: Event) -> bool:
    shown, printed = result.text.strip(), answer["output"].strip()
    shown = "" if shown == "(no output)" else shown
    if answer["code"] != 0 or (result.is_error and not what.rest):
        return False
    return shown.startswith(printed) if what.rest else shown == printed


def _take(
    workspace: Workspace,
    known: dict[str, File],
    sent: dict[str, str],
    after: dict[str, str],
    mark: str,
) -> None:
    """Take over what has become of the files."""
    by_text = {sent[path]: file for path, file in known.items()}
    for path in sent:
        if path not in after:
            workspace.files.pop(path, None)
    for path, text in after.items():
        if text == sent.get(path):
            continue
        if text in by_text:
            workspace.files[path] = by_text[text].copy()
        elif mark not in text:
            file = workspace.file(path)
            before = (file.whole or "").split("\n")
            fresh = [line for line in text.split("\n") if line not in set(before)]
            edited = [*file.edited, "\n".join(fresh)]
            file.see(text, is_whole=True)
            file.edited = edited
        elif path in known and text.startswith(mark):
            file = workspace.files[path]
            pieces = text.removeprefix(mark).split(f"\n{mark}\n")
            edited = [*file.edited, "\n".join(pieces)]
            file.forget()
            file.pieces, file.edited = [piece for piece in pieces if piece.strip()], edited
        else:
            workspace.file(path).is_stale = True
