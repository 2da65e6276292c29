"""The files as an answer leaves them: a diff, a whole file, edits, or blocks of code.

The file of a block is named by its fence (```python m.py), by its first line (# m.py) or by the
line before it (**m.py**, `m.py`:, File: m.py). Only paths of known files count.

A block of code replaces the whole of the file it names, or of the only Python file that may be
written. If it holds only some of the file's functions and classes, it replaces those and the rest
of the file stays.

Calls of an edit tool are `edit`, `edit_file` and `str_replace` with the old and the new text, one
pair or a list `edits` of pairs, in the formats of `rewards.answers`.
"""

import ast
import functools
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

from rewards.answers import Fenced, fenced, find_calls
from rewards.verifiers.candidate import Candidate, Refusal, changed_files, files_of, refused_path
from rewards.verifiers.last_write import MAX_TIMES, PATHS, find_text, last_write, writes
from rewards.verifiers.patches import HINTS, apply_patch, has_diff, has_envelope, lines_of, without_delimiter
from rewards.verifiers.rubric import BadSpec

_TOKEN = re.compile(r"[\s:={}\"',]+")
_PATH = r"[`*_\"']*(?P<path>[\w./-]*\w\.\w+)[`*_\"']*"
_WORD = r"(?:file(?:name)?|path|in|updated|new)\b"
_BEFORE = re.compile(rf"[\s>#*+\d.)-]*(?:\*\*)?(?:{_WORD}[\s:*]*)?{_PATH}[\s:*]*$", re.IGNORECASE)
_FIRST = re.compile(rf"(?:#+|//)\s*(?:{_WORD}[\s:]*)?{_PATH}\s*$", re.IGNORECASE)
MAX_LABEL = 200
LANGUAGES = ("", "python", "py", "python3")
TOOLS = ("edit", "edit_file", "str_replace")
_OLD = ("oldText", "old_text", "old_str", "old_string")
_NEW = ("newText", "new_text", "new_str", "new_string")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def candidate_of(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files as the completion leaves them.

    spec["answer"] is "patch" (default), "write", "edit", "code", or "any": then calls that write
    or edit count first, then a diff, then code. What only takes the code away is refused.
    Raises BadSpec for anything else.
    """
    files_of(spec)
    answer = spec.get("answer", "patch")
    if answer == "any":
        # Of writes and edits, the later one.
        calls = [
            *((edit.at, "edit") for edit in edits(completion)),
            *((one.at, "write") for one in writes(completion)),
        ]
        otherwise = "patch" if not calls and _has_diff(completion) else "code"
        answer = max(calls, default=(0, otherwise))[1]
    read = {"patch": apply_patch, "write": last_write, "edit": edited, "code": from_code}.get(str(answer))
    if read is None:
        raise BadSpec(f"`answer` of the spec is {answer!r}; write 'any', 'patch', 'write', 'edit' or 'code'.")
    found = read(completion, spec)
    if isinstance(found, Refusal):
        return found
    for path in found.changed:
        before, after = found.before.get(path, ""), found.files.get(path)
        # To delete a file is a change; to take all of its code away is not.
        if after is None or not _has_code(path, before) or _has_code(path, after):
            return found
    return Refusal("no_code", f"The answer leaves no code in {found.changed[0]}; write all of it.")


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
    return has_envelope("\n".join(outside)) or has_diff(outside)


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


def from_code(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files with the code of a completion in its file, or in the files it names."""
    blocks = _blocks(without_delimiter(completion.removesuffix(spec.get("end", ""))), spec)
    if isinstance(blocks, Refusal):
        return blocks
    may = [p for p in spec["files"] if p.endswith(".py") and refused_path(p, spec) is None]
    labeled = [(label(block, spec["files"]), block) for block in blocks]
    after = dict(spec["files"])
    for path in may:
        drafts = [one.text for name, one in labeled if name == path or (not name and len(may) == 1)]
        names = _names(after[path])
        fitting = [draft for draft in drafts if _names(draft) & names]
        if len(fitting) > MAX_TIMES:
            return Refusal("ambiguous", f"The answer gives the file {len(fitting)} times; write it once, whole.")
        if drafts:
            after[path] = merged(after[path], (fitting or drafts)[-1])
    named = [name for name, _ in labeled if name]
    if (len(may) == 1 and len(named) < len(labeled)) or set(named) & set(may):
        return changed_files(spec["files"], after)
    if named and (refused := refused_path(named[-1], spec)):
        return refused
    return Refusal(
        "no_patch",
        f"The answer is code, but {len(may)} files could be meant; write a diff, call the write "
        "tool, or put the path of its file on the line before each block.",
    )


def _blocks(text: str, spec: Mapping[str, Any]) -> list[Fenced] | Refusal:
    """Return the blocks of Python; a text without fences is one when it is code."""
    lines = lines_of(text.removesuffix("\n"))
    fences = [part for part in fenced(lines) if isinstance(part, Fenced)]
    blocks = [block for block in fences if _is_python(block, spec["files"])]
    whole = [block for block in blocks if not block.open]
    is_cut = bool(blocks) and blocks[-1].open and any(map(str.strip, blocks[-1].lines))
    if is_cut or (not whole and (spec.get("truncated") or (fences and fences[-1].open))):
        return Refusal("truncated", "The answer ends inside a block of code; write it shorter, to its end.")
    if not fences and _names("\n".join(lines)):
        whole = [Fenced("", "", tuple(lines), False)]
    return whole or Refusal("no_patch", "The answer has no code; write the whole file in one ```python block.")


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


class Edit(NamedTuple):
    """A text to be replaced, and where in the completion the call stands."""

    at: int
    path: str
    old: str
    new: str


def edits(completion: str) -> Iterator[Edit]:
    """Yield every complete replacement, in order of the calls."""
    for call in sorted(find_calls(completion), key=lambda call: call.at):
        pairs, path = call.arguments.get("edits", [call.arguments]), find_text(call.arguments, PATHS)
        if call.name not in TOOLS or path is None or not isinstance(pairs, list):
            continue
        for pair in pairs:
            old, new = (find_text(pair, names) if isinstance(pair, dict) else None for names in (_OLD, _NEW))
            if old is not None and new is not None:
                yield Edit(call.at, path.removeprefix("./"), old, new)


def edited(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files after every edit, or why one of them fails."""
    files = dict(spec["files"])
    found = list(edits(completion))
    if not found:
        return Refusal("no_patch", "The answer calls no edit tool with an old and a new text.")
    for _, path, old, new in found:
        if refused := refused_path(path, spec):
            return refused
        if path not in files:
            return Refusal("file_unknown", f"There is no file {path}; name one that is there.")
        times = files[path].count(old) if old else 0
        if times == 0:
            why = f"Could not find the exact text in {path}; copy it from the file as it is."
            return Refusal("context_not_found", why)
        if times > 1:
            return Refusal("ambiguous", f"Found {times} occurrences of the text in {path}; give more of its lines.")
        files[path] = files[path].replace(old, new)
    return changed_files(spec["files"], files)
