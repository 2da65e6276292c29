"""The program that a completion gives as code: a fenced block, or nothing but code.

The code is the whole of the one Python file that may be written, or some of its functions and
classes: then these take the place of those of the same name, and the rest of the file stays.
"""

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

from rewards.verifiers.candidate import Candidate, Refusal, changed_files, refused_path

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+.-]*)[^\n`]*\n", re.M)
_CLOSE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*$", re.M)
_OPEN = re.compile(r"^[ \t]*(?:`{3,}|~{3,})", re.M)
MAX_TIMES = 3  # a file may be drafted, not repeated to fill an answer
LANGUAGES = ("", "python", "py", "python3", "Python")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def from_code(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files with the code of a completion in its file."""
    paths = [p for p in spec["files"] if p.endswith(".py") and refused_path(p, spec) is None]
    if len(paths) != 1:
        return Refusal(
            "no_patch",
            f"The answer is code, but {len(paths)} files could be meant; write a diff or call the "
            "write tool, which name the file.",
        )
    (path,) = paths
    before = spec["files"][path]
    code = _code(completion, spec, before)
    if isinstance(code, Refusal):
        return code
    return changed_files(spec["files"], {**spec["files"], path: merged(before, code)})


def _code(completion: str, spec: Mapping[str, Any], before: str) -> str | Refusal:
    text = completion.removesuffix(spec.get("end", ""))
    blocks = [code for language, code in _blocks(text) if language in LANGUAGES]
    if blocks:
        names = _names(before)
        fitting = [block for block in blocks if _names(block) & names]
        if len(fitting) > MAX_TIMES:
            why = f"The answer gives the file {len(fitting)} times; write it once, whole."
            return Refusal("ambiguous", why)
        return (fitting or blocks)[-1]
    if spec.get("truncated") or _OPEN.search(text):
        return Refusal(
            "truncated", "The answer ends inside a block of code; write it shorter, to its end."
        )
    if _names(text):
        return text
    return Refusal(
        "no_patch", "The answer has no code; write the whole file in one ```python block."
    )


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield language and code of each closed block, in linear time."""
    closes: dict[str, list[re.Match[str]]] = {}
    for line in _CLOSE.finditer(text):
        closes.setdefault(line[1], []).append(line)
    at = 0
    while found := _FENCE.search(text, at):
        at = found.end()
        ends = closes.get(found[1], [])
        number = bisect_left(ends, at, key=re.Match.start)
        if number < len(ends):
            yield found[2], text[at : ends[number].start()]
            at = ends[number].end()


def merged(before: str, code: str) -> str:
    """Return the file with the code in it; the code alone when it has all that the file has.

    >>> merged("import re\\ndef f(): pass\\ndef g(): pass\\n", "def g(): return 1\\n")
    'import re\\ndef f(): pass\\ndef g(): return 1\\n'
    """
    new, old = parsed(code), parsed(before)
    if new is None or old is None or _names(before) <= _names(code):
        return code
    replaced = {node.name: node for node in old.body if isinstance(node, Definition)}
    lines = before.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
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
    at = _after_future(old)
    return "".join([*lines[:at], *more, *lines[at:]])


def _after_future(tree: ast.Module) -> int:
    """Return the line after the docstring and the imports from `__future__`."""
    at = 0
    for number, node in enumerate(tree.body):
        if (number == 0 and _is_text(node)) or (
            isinstance(node, ast.ImportFrom) and node.module == "__future__"
        ):
            at = node.end_lineno or 0
        else:
            break
    return at


def _span(node: ast.stmt) -> tuple[int, int]:
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return min(
        [node.lineno, *(one.lineno for one in decorators)]
    ) - 1, node.end_lineno or node.lineno


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def parsed(source: str) -> ast.Module | None:
    """Parse a program, None when it is none."""
    try:
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
