"""The files as an answer leaves them: calls that write or edit, else a diff, else blocks of code.

Calls are those of `write`, `write_file` and `create_file` with a whole file, and of `edit`,
`edit_file` and `str_replace` with the old and the new text, one pair or a list `edits` of pairs, in
the formats of `rewards.answers`. A call that never closes does not count.

The file of a block is named by its fence (```python m.py), by its first line (# m.py) or by the
line before it (**m.py**, `m.py`:, File: m.py). Only paths of known files count.

A block of code replaces the whole of the file it names, or of the only Python file that may be
written. If it holds only some of the file's functions and classes, it replaces those and the rest
of the file stays.
"""

import ast
import functools
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import islice, takewhile
from typing import Any, NamedTuple

from pimono_sdpo.replay.calls import find_path, read_edits
from rewards.answers import Fenced, fenced, find_calls
from rewards.verifiers.candidate import Candidate, Refusal, changed_files, files_of, refused_path
from rewards.verifiers.patches import HINTS, apply_patch, has_diff, lines_of, without_delimiter

_TOKEN = re.compile(r"[\s:={}\"',]+")
_PATH = r"[`*_\"']*(?P<path>[\w./-]*\w\.\w+)[`*_\"']*"
_WORD = r"(?:file(?:name)?|path|in|updated|new)\b"
_BEFORE = re.compile(rf"[\s>#*+\d.)-]*(?:\*\*)?(?:{_WORD}[\s:*]*)?{_PATH}[\s:*]*$", re.IGNORECASE)
_FIRST = re.compile(rf"(?:#+|//)\s*(?:{_WORD}[\s:]*)?{_PATH}\s*$", re.IGNORECASE)
MAX_LABEL = 200
LANGUAGES = ("", "python", "py", "python3")
WRITES = ("write", "write_file", "create_file")
EDITS = ("edit", "edit_file", "str_replace")
_CONTENTS = ("content", "contents", "file_text", "text")
MAX_TIMES = 3  # a file may be drafted, not repeated to fill an answer
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def candidate_of(completion: str, spec: Mapping[str, Any]) -> Candidate:
    """Return the files as the completion leaves them.

    Raises Refusal, also for what only takes the code away, and BadSpec for a spec without files.
    """
    files_of(spec)
    if changes := list(read_changes(completion)):
        found = from_calls(changes, spec)
    else:
        found = (apply_patch if _has_diff(completion) else from_code)(completion, spec)
    for path in found.changed:
        before, after = found.before.get(path, ""), found.files.get(path)
        # To delete a file is a change; to take all of its code away is not.
        if after is None or not _has_code(path, before) or _has_code(path, after):
            return found
    raise Refusal("no_code", f"The answer leaves no code in {found.changed[0]}; write all of it.")


def _has_code(path: str, text: str) -> bool:
    tree = parsed(text) if path.endswith((".py", ".pyi")) else None
    if tree is None:
        return bool(text.strip())
    return any(not (_is_text(node) or isinstance(node, ast.Pass)) for node in tree.body)


def _has_diff(completion: str) -> bool:
    """Tell whether a diff begins outside of code: a docstring may have lines like those of one."""
    lines = lines_of(completion)
    if _names("\n".join(lines)):
        return False
    outside: list[str] = []
    for part in fenced(lines):
        if isinstance(part, str):
            outside.append(part)
        elif part.info.lower() in HINTS:
            return True
        elif part.open or not _names(part.text):
            outside += part.lines
    return has_diff(outside)


def label(block: Fenced, known: Collection[str]) -> str | None:
    """Return the path of the file that a block names, None if it names none.

    >>> label(Fenced("python", "**m.py**", ("x = 1",), False), ["src/m.py"])
    'src/m.py'
    """
    names = _TOKEN.split(block.info[:MAX_LABEL])
    for pattern, line in ((_FIRST, next(iter(block.lines), "")), (_BEFORE, block.before)):
        if len(line) <= MAX_LABEL and (match := pattern.match(line)):
            names.append(match["path"])
    for name in filter(None, (name.removeprefix("./") for name in names)):
        ending = [name] if name in known else [path for path in known if path.endswith(f"/{name}")]
        if len(ending) == 1:
            return ending[0]
    return None


def from_code(completion: str, spec: Mapping[str, Any]) -> Candidate:
    """Return the files with the code of a completion in its file, or in the files it names; raises Refusal."""
    blocks = _blocks(without_delimiter(completion.removesuffix(spec.get("end", ""))), spec)
    may = [p for p in spec["files"] if p.endswith(".py") and refused_path(p, spec) is None]
    labeled = [(label(block, spec["files"]), block) for block in blocks]
    after = dict(spec["files"])
    for path in may:
        drafts = [one.text for name, one in labeled if name == path or (not name and len(may) == 1)]
        names = _names(after[path])
        fitting = [draft for draft in drafts if _names(draft) & names]
        if len(fitting) > MAX_TIMES:
            raise Refusal("ambiguous", f"The answer gives the file {len(fitting)} times; write it once, whole.")
        if drafts:
            after[path] = merged(after[path], (fitting or drafts)[-1])
    named = [name for name, _ in labeled if name]
    if (len(may) == 1 and len(named) < len(labeled)) or set(named) & set(may):
        return changed_files(spec["files"], after)
    if named and (refused := refused_path(named[-1], spec)):
        raise refused
    raise Refusal(
        "no_patch",
        f"The answer is code, but {len(may)} files could be meant; write a diff, call the write "
        "tool, or put the path of its file on the line before each block.",
    )


def _blocks(text: str, spec: Mapping[str, Any]) -> list[Fenced]:
    """Return the blocks of Python; a text without fences is one when it is code. Raises Refusal without any."""
    lines = lines_of(text.removesuffix("\n"))
    fences = [part for part in fenced(lines) if isinstance(part, Fenced)]
    blocks = [block for block in fences if _is_python(block, spec["files"])]
    whole = [block for block in blocks if not block.open]
    is_cut = bool(blocks) and blocks[-1].open and any(map(str.strip, blocks[-1].lines))
    if is_cut or (not whole and (spec.get("truncated") or (fences and fences[-1].open))):
        raise Refusal("truncated", "The answer ends inside a block of code; write it shorter, to its end.")
    if not fences and _names("\n".join(lines)):
        whole = [Fenced("", "", tuple(lines), False)]
    if not whole:
        raise Refusal("no_patch", "The answer has no code; write the whole file in one ```python block.")
    return whole


def _is_python(block: Fenced, files: Mapping[str, str]) -> bool:
    language, *_ = [*block.info.replace("{", " ").replace(":", " ").split(maxsplit=1), ""]
    named = label(Fenced(block.info, "", (), False), files)
    return language.lower() in LANGUAGES or (named or "").endswith(".py")


def merged(before: str, code: str) -> str:
    """Return the file with the code in it; the code alone when it has all that the file has.

    >>> merged("import re\\ndef f(): pass\\ndef g(): pass\\n", "def g(): return 1\\n")
    'import re\\ndef f(): pass\\ndef g(): return 1\\n'
    """
    new, old = parsed(code), parsed(before)
    if new is None or old is None or _names(before) <= _names(code):
        return code
    replaced = {node.name: node for node in old.body if isinstance(node, Definition)}
    lines = f"{before.removesuffix(chr(10))}\n".splitlines(keepends=True)
    parts = code.splitlines(keepends=True)
    there: list[tuple[int, int, str]] = []
    more: list[str] = []
    for node in new.body:
        first, last = _span(node)
        text = "".join(parts[first:last]).rstrip("\n") + "\n"
        if isinstance(node, Definition) and node.name in replaced:
            there.append((*_span(replaced.pop(node.name)), text))
        elif not _is_text(node):
            more.append(text)
    if not there:
        return code
    for first, last, text in sorted(there, reverse=True):
        lines[first:last] = [text]
    # What is new goes behind the docstring and the imports from `__future__`.
    head = takewhile(lambda node: _is_text(node) or getattr(node, "module", "") == "__future__", old.body)
    at = max((node.end_lineno or 0 for node in head), default=0)
    return "".join([*lines[:at], *more, *lines[at:]])


def _span(node: ast.stmt) -> tuple[int, int]:
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return min([node.lineno, *(one.lineno for one in decorators)]) - 1, node.end_lineno or node.lineno


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


# CPython 3.11 counts the depth of the tree once per interpreter, so threads disturb each other.
_ONE_PARSER = threading.Lock()


@functools.lru_cache(maxsize=32)
def parsed(source: str) -> ast.Module | None:
    """Parse a program, None when it is none; leave the tree as it is."""
    try:
        with _ONE_PARSER:
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a program may be broken
        return None


def _names(source: str) -> set[str]:
    """Return what a program defines or imports at its top, nothing when it is none."""
    tree = parsed(source)
    names: set[str] = set()
    for node in tree.body if tree else []:
        if isinstance(node, Definition):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


class Change(NamedTuple):
    """A file that a call writes, or a text of it that a call replaces: `old` is None for a whole file."""

    path: str
    old: str | None
    new: str
    everywhere: bool = False


def read_changes(completion: str) -> Iterator[Change]:
    """Yield every complete write and replacement, in order of the calls."""
    for call in sorted(find_calls(completion), key=lambda call: call.at):
        given = dict(call.arguments)
        path = find_path(given).removeprefix("./")
        if path and call.name in WRITES:
            contents = (given[name] for name in _CONTENTS if isinstance(given.get(name), str))
            yield from (Change(path, None, text) for text in islice(contents, 1))
        elif path and call.name in EDITS:
            yield from (Change(path, edit.old, edit.new, edit.everywhere) for edit in read_edits(given))


def from_calls(changes: Collection[Change], spec: Mapping[str, Any]) -> Candidate:
    """Return the files after every change; raises Refusal when one of them fails."""
    if spec.get("truncated"):
        raise Refusal("truncated", "The answer was cut off at its maximum length; write less, to its end.")
    (often, times), *_ = Counter(change.path for change in changes if change.old is None).most_common(1) or [("", 0)]
    if times > MAX_TIMES:
        raise Refusal("ambiguous", f"The answer writes {often} {times} times; write the file once, whole.")
    files = dict(spec["files"])
    for path, old, new, everywhere in changes:
        if refused := refused_path(path, spec):
            raise refused
        if old is None:
            files[path] = new
            continue
        if path not in files:
            raise Refusal("file_unknown", f"There is no file {path}; name one that is there.")
        times = files[path].count(old) if old else 0
        if times == 0:
            why = f"Could not find the exact text in {path}; copy it from the file as it is."
            raise Refusal("context_not_found", why)
        if times > 1 and not everywhere:
            raise Refusal("ambiguous", f"Found {times} occurrences of the text in {path}; give more of its lines.")
        files[path] = files[path].replace(old, new)
    return changed_files(spec["files"], files)
