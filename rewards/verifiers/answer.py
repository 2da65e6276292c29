"""Apply the changes of an answer to files: calls that write or edit, else a diff, else code blocks.

Calls are `write`, `write_file` and `create_file` with a whole file, and `edit`, `edit_file` and
`str_replace` with the old and the new text, one pair or a list `edits` of pairs, in the formats of
`rewards.answers`. A call that is not closed does not count.

A block names its file on the fence (```python m.py), in its first line (# m.py) or in the line before
it (**m.py**, `m.py`:, File: m.py). Only paths of known files count.

A code block replaces the file that it names, or the only Python file that may be written. If it
contains only some of the file's functions and classes, it replaces those and keeps the rest of the
file.
"""

import ast
import functools
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import islice, takewhile
from typing import Any, NamedTuple

from pimono_sdpo.edits import find_path, read_edits
from rewards.answers import Fenced, fenced, find_calls
from rewards.verifiers.candidate import Candidate, Refusal, changed_files, get_files, refused_path
from rewards.verifiers.patches import HINTS, apply_patch, drop_delimiter, has_diff, split_lines

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
MAX_TIMES = 3  # drafts of a file are allowed, filling an answer with repetitions is not
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def read_candidate(completion: str, spec: Mapping[str, Any]) -> Candidate:
    """Return the files as the completion leaves them.

    Raises Refusal, also if the answer only removes code, and BadSpec for a spec without files.
    """
    get_files(spec)
    if changes := list(read_changes(completion)):
        candidate = apply_changes(changes, spec)
    else:
        candidate = (apply_patch if _has_diff(completion) else apply_code)(completion, spec)
    for path in candidate.changed:
        before, after = candidate.before.get(path, ""), candidate.files.get(path)
        # Deleting a file is a change; removing all of its code is not.
        if after is None or not _has_code(path, before) or _has_code(path, after):
            return candidate
    raise Refusal("no_code", f"The answer leaves no code in {candidate.changed[0]}; write all of it.")


def _has_code(path: str, text: str) -> bool:
    tree = parse_python(text) if path.endswith((".py", ".pyi")) else None
    if tree is None:
        return bool(text.strip())
    return any(not (_is_constant(node) or isinstance(node, ast.Pass)) for node in tree.body)


def _has_diff(completion: str) -> bool:
    """Whether a diff begins outside of code; a docstring may contain lines that look like a diff."""
    lines = split_lines(completion)
    if _find_names("\n".join(lines)):
        return False
    outside: list[str] = []
    for part in fenced(lines):
        if isinstance(part, str):
            outside.append(part)
        elif part.info.lower() in HINTS:
            return True
        elif part.open or not _find_names(part.text):
            outside += part.lines
    return has_diff(outside)


def find_label(block: Fenced, known: Collection[str]) -> str | None:
    """Return the known file that a block names, None if it names none.

    >>> find_label(Fenced("python", "**m.py**", ("x = 1",), False), ["src/m.py"])
    'src/m.py'
    """
    names = _TOKEN.split(block.info[:MAX_LABEL])
    for pattern, line in ((_FIRST, next(iter(block.lines), "")), (_BEFORE, block.before)):
        if len(line) <= MAX_LABEL and (match := pattern.match(line)):
            names.append(match["path"])
    for name in filter(None, (name.removeprefix("./") for name in names)):
        paths = [name] if name in known else [path for path in known if path.endswith(f"/{name}")]
        if len(paths) == 1:
            return paths[0]
    return None


def apply_code(completion: str, spec: Mapping[str, Any]) -> Candidate:
    """Return the files after the code blocks of a completion replace them; raises Refusal."""
    blocks = _find_blocks(drop_delimiter(completion), spec)
    writable = [p for p in spec["files"] if p.endswith(".py") and refused_path(p, spec) is None]
    labeled = [(find_label(block, spec["files"]), block) for block in blocks]
    after = dict(spec["files"])
    for path in writable:
        drafts = [block.text for label, block in labeled if label == path or (not label and len(writable) == 1)]
        names = _find_names(after[path])
        fitting = [draft for draft in drafts if _find_names(draft) & names]
        if len(fitting) > MAX_TIMES:
            raise Refusal("ambiguous", f"The answer gives the file {len(fitting)} times; write it once, whole.")
        if drafts:
            after[path] = merge_definitions(after[path], (fitting or drafts)[-1])
    labels = [label for label, _ in labeled if label]
    if (len(writable) == 1 and len(labels) < len(labeled)) or set(labels) & set(writable):
        return changed_files(spec["files"], after)
    if labels and (refused := refused_path(labels[-1], spec)):
        raise refused
    raise Refusal(
        "no_patch",
        f"The answer is code, but {len(writable)} files could be meant; write a diff, call the write "
        "tool, or put the path of its file on the line before each block.",
    )


def _find_blocks(text: str, spec: Mapping[str, Any]) -> list[Fenced]:
    """Return the Python blocks, or a text without fences if it is code; raises Refusal if there are none."""
    lines = split_lines(text.removesuffix("\n"))
    fences = [part for part in fenced(lines) if isinstance(part, Fenced)]
    blocks = [block for block in fences if _is_python(block, spec["files"])]
    closed = [block for block in blocks if not block.open]
    is_cut = bool(blocks) and blocks[-1].open and any(map(str.strip, blocks[-1].lines))
    if is_cut or (not closed and (spec.get("truncated") or (fences and fences[-1].open))):
        raise Refusal("truncated", "The answer ends inside a code block; write a shorter one and close it.")
    if not fences and _find_names("\n".join(lines)):
        return [Fenced("", "", tuple(lines), False)]
    if not closed:
        raise Refusal("no_patch", "The answer has no code; write the whole file in one ```python block.")
    return closed


def _is_python(block: Fenced, files: Mapping[str, str]) -> bool:
    language, *_ = [*block.info.replace("{", " ").replace(":", " ").split(maxsplit=1), ""]
    path = find_label(Fenced(block.info, "", (), False), files)
    return language.lower() in LANGUAGES or (path or "").endswith(".py")


def merge_definitions(before: str, code: str) -> str:
    """Return the file with the definitions of the code; only the code if it defines everything in the file.

    >>> merge_definitions("import re\\ndef f(): pass\\ndef g(): pass\\n", "def g(): return 1\\n")
    'import re\\ndef f(): pass\\ndef g(): return 1\\n'
    """
    new, old = parse_python(code), parse_python(before)
    if new is None or old is None or _find_names(before) <= _find_names(code):
        return code
    definitions = {node.name: node for node in old.body if isinstance(node, Definition)}
    lines = f"{before.removesuffix(chr(10))}\n".splitlines(keepends=True)
    new_lines = code.splitlines(keepends=True)
    replacements: list[tuple[int, int, str]] = []
    additions: list[str] = []
    for node in new.body:
        first, last = _span(node)
        text = "".join(new_lines[first:last]).rstrip("\n") + "\n"
        if isinstance(node, Definition) and node.name in definitions:
            replacements.append((*_span(definitions.pop(node.name)), text))
        elif not _is_constant(node):
            additions.append(text)
    if not replacements:
        return code
    for first, last, text in sorted(replacements, reverse=True):
        lines[first:last] = [text]
    # Additions follow the docstring and the imports from `__future__`.
    head = takewhile(lambda node: _is_constant(node) or getattr(node, "module", "") == "__future__", old.body)
    at = max((node.end_lineno or 0 for node in head), default=0)
    return "".join([*lines[:at], *additions, *lines[at:]])


def _span(node: ast.stmt) -> tuple[int, int]:
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return min([node.lineno, *(one.lineno for one in decorators)]) - 1, node.end_lineno or node.lineno


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


# CPython 3.11 counts the depth of the tree per interpreter, so threads cannot parse at the same time.
_PARSER_LOCK = threading.Lock()


@functools.lru_cache(maxsize=32)
def parse_python(source: str) -> ast.Module | None:
    """Parse a program; None if it is not valid Python. The tree is cached: do not change it."""
    try:
        with _PARSER_LOCK:
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _find_names(source: str) -> set[str]:
    """Return the names that a program defines or imports at module level; none if it is not valid Python."""
    tree = parse_python(source)
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
    """A file that a call writes, or a text in it that a call replaces; `old` is None for a whole file."""

    path: str
    old: str | None
    new: str
    everywhere: bool = False


def read_changes(completion: str) -> Iterator[Change]:
    """Yield every complete write and replacement, in order of the calls."""
    for call in sorted(find_calls(completion), key=lambda call: call.at):
        arguments = dict(call.arguments)
        path = find_path(arguments).removeprefix("./")
        if path and call.name in WRITES:
            contents = (arguments[name] for name in _CONTENTS if isinstance(arguments.get(name), str))
            yield from (Change(path, None, text) for text in islice(contents, 1))
        elif path and call.name in EDITS:
            yield from (Change(path, edit.old, edit.new, edit.everywhere) for edit in read_edits(arguments))


def apply_changes(changes: Collection[Change], spec: Mapping[str, Any]) -> Candidate:
    """Return the files after every change; raises Refusal when one of them fails."""
    if spec.get("truncated"):
        raise Refusal("truncated", "The answer was cut off at its maximum length; write a shorter one.")
    for path, times in Counter(change.path for change in changes if change.old is None).most_common(1):
        if times > MAX_TIMES:
            raise Refusal("ambiguous", f"The answer writes {path} {times} times; write the file once, whole.")
    files = dict(spec["files"])
    for path, old, new, everywhere in changes:
        if refused := refused_path(path, spec):
            raise refused
        if old is None:
            files[path] = new
            continue
        if path not in files:
            raise Refusal("file_unknown", f"There is no file {path}; name an existing file.")
        times = files[path].count(old) if old else 0
        if times == 0:
            raise Refusal(
                "context_not_found", f"Could not find the exact text in {path}; copy it from the file as it is."
            )
        if times > 1 and not everywhere:
            raise Refusal(
                "ambiguous", f"Found {times} occurrences of the text in {path}; include more lines around it."
            )
        files[path] = files[path].replace(old, new)
    return changed_files(spec["files"], files)
