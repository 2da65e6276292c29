"""Find code in a completion: fenced blocks, the file each one is, and the program.

A block is said to be a file by its fence (```python m.py), by its first line (# m.py) or by the
line before it (**m.py**, `m.py`:, File: m.py). Only paths of known files say anything.

The code is the whole of the one Python file that may be written, or of the file that the answer
says it is, or some of its functions and classes: then these take the place of those of the same
name, and the rest of the file stays.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rewards.verifiers.candidate import Candidate, Refusal, changed_files, refused_path
from rewards.verifiers.diffs import lines_of, without_delimiter

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})([^`]*)$")
_TOKEN = re.compile(r"[\s:={}\"',]+")
_PATH = r"[`*_\"']*(?P<path>[\w./-]*\w\.\w+)[`*_\"']*"
_WORD = r"(?:file(?:name)?|path|in|updated|new)\b"
_BEFORE = re.compile(rf"[\s>#*+\d.)-]*(?:\*\*)?(?:{_WORD}[\s:*]*)?{_PATH}[\s:*]*$", re.IGNORECASE)
_FIRST = re.compile(rf"(?:#+|//)\s*(?:{_WORD}[\s:]*)?{_PATH}\s*$", re.IGNORECASE)
MAX_INSIDE = 3  # how much deeper than its opener a fence that closes may stand, as in CommonMark
MAX_LABEL = 200


class Fenced(NamedTuple):
    """What stands between two fences, less the indent of the first; `open` without a last."""

    info: str
    before: str
    lines: tuple[str, ...]
    open: bool

    @property
    def text(self) -> str:
        """The lines, each with its end."""
        return "".join(f"{line}\n" for line in self.lines)


def fenced(lines: Sequence[str]) -> Iterator[Fenced | str]:
    """Yield the blocks of a text, and the lines outside of them, in linear time."""
    at, before = 0, ""
    while at < len(lines):
        opener = _FENCE.match(lines[at])
        at += 1
        if opener is None:
            yield lines[at - 1]
            before = lines[at - 1] if lines[at - 1].strip() else before
            continue
        closer = next((n for n in range(at, len(lines)) if _closes(lines[n], opener)), None)
        inside = [_dedented(line, opener[1]) for line in lines[at:closer]]
        yield Fenced(opener[3].strip(), before, tuple(inside), closer is None)
        at, before = len(lines) if closer is None else closer + 1, ""


def _closes(line: str, opener: re.Match[str]) -> bool:
    fence = _FENCE.match(line)
    if fence is None or not fence[2].startswith(opener[2]) or fence[3].strip():
        return False
    return _width(fence[1]) <= _width(opener[1]) + MAX_INSIDE


def _width(indent: str) -> int:
    return len(indent.expandtabs(4))


def _dedented(line: str, indent: str) -> str:
    if line.startswith(indent):
        return line[len(indent) :]
    return line.lstrip(" \t") if not line[: len(indent)].strip() else line


def label(block: Fenced, known: Collection[str]) -> str | None:
    """Return the path of the file that a block is said to be, None when nothing says it.

    >>> label(Fenced("python", "**m.py**", ("x = 1",), False), ["src/m.py"])
    'src/m.py'
    """
    said = _TOKEN.split(block.info[:MAX_LABEL])
    first = _FIRST.match(_short(block.lines[0])) if block.lines else None
    before = _BEFORE.match(_short(block.before))
    said += [match["path"] for match in (first, before) if match]
    return next((path for name in said if (path := _known(name, known))), None)


def _short(line: str) -> str:
    return line if len(line) <= MAX_LABEL else ""


def _known(name: str, known: Collection[str]) -> str | None:
    name = name.removeprefix("./")
    if name in known:
        return name
    ending = [path for path in known if path.endswith(f"/{name}")]
    return ending[0] if name and len(ending) == 1 else None


_NO_CODE = Refusal(
    "no_patch", "The answer has no code; write the whole file in one ```python block."
)
MAX_TIMES = 3  # a file may be drafted, not repeated to fill an answer
LANGUAGES = ("", "python", "py", "python3")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def from_code(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files with the code of a completion in its file, or in the files it names."""
    text = without_delimiter(completion.removesuffix(spec.get("end", "")))
    blocks = _blocks(text, spec)
    if isinstance(blocks, Refusal):
        return blocks
    may = [p for p in spec["files"] if p.endswith(".py") and refused_path(p, spec) is None]
    said = [(label(block, spec["files"]), block) for block in blocks]
    after = dict(spec["files"])
    for path in may:
        drafts = [one.text for name, one in said if name == path or (not name and len(may) == 1)]
        if not drafts:
            continue
        code = _chosen(drafts, spec["files"][path])
        if isinstance(code, Refusal):
            return code
        after[path] = merged(spec["files"][path], code)
    named = [name for name, _ in said if name]
    if (len(may) == 1 and len(named) < len(said)) or set(named) & set(may):
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
    cut = bool(blocks) and blocks[-1].open and any(map(str.strip, blocks[-1].lines))
    if cut or (not whole and (fences or spec.get("truncated"))):
        if not cut and not spec.get("truncated") and not fences[-1].open:
            return _NO_CODE
        return Refusal(
            "truncated", "The answer ends inside a block of code; write it shorter, to its end."
        )
    if whole:
        return whole
    return [Fenced("", "", tuple(lines), False)] if is_code("\n".join(lines)) else _NO_CODE


def _is_python(block: Fenced, files: Mapping[str, str]) -> bool:
    language = block.info.replace("{", " ").replace(":", " ").split(maxsplit=1)[:1] or [""]
    named = label(Fenced(block.info, "", (), False), files)
    return language[0].lower() in LANGUAGES or (named or "").endswith(".py")


def _chosen(drafts: list[str], before: str) -> str | Refusal:
    names = _names(before)
    fitting = [draft for draft in drafts if _names(draft) & names]
    if len(fitting) > MAX_TIMES:
        why = f"The answer gives the file {len(fitting)} times; write it once, whole."
        return Refusal("ambiguous", why)
    return (fitting or drafts)[-1]


def is_code(text: str) -> bool:
    """Tell whether a text is a program that defines or imports something."""
    return bool(_names(text))


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
