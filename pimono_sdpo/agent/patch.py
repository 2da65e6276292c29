"""Write the changes between two states of files as a diff for `git apply`."""

import difflib
from collections.abc import Iterator, Mapping

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n"}


def unified_diff(before: Mapping[str, bytes | None], after: Mapping[str, bytes]) -> str:
    r"""Return the diff of the files of `after`, in order of paths; None in `before` is a new file.

    >>> print(unified_diff({"a.py": b"x = 1\n"}, {"a.py": b"x = 2\n"}), end="")
    diff --git a/a.py b/a.py
    --- a/a.py
    +++ b/a.py
    @@ -1 +1 @@
    -x = 1
    +x = 2
    """
    return "".join(
        line for path in sorted(after) for line in _file(path, before.get(path), after[path])
    )


def _file(path: str, before: bytes | None, after: bytes) -> Iterator[str]:
    old, new = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    yield f"diff --git {old} {new}\n"
    if before is None:
        yield "new file mode 100644\n"
        old = "/dev/null"
    hunks = difflib.unified_diff(_lines(before or b""), _lines(after), n=3)
    # Names with spaces end in a tab, or `patch` would read only part of them.
    tab = "\t" if " " in path else ""
    for number, line in enumerate(hunks):
        if number == 0:
            yield f"--- {old}{tab if before is not None else ''}\n"
        elif number == 1:
            yield f"+++ {new}{tab}\n"
        elif line.endswith("\n"):
            yield line
        else:
            yield f"{line}\n\\ No newline at end of file\n"


def _lines(content: bytes) -> list[str]:
    """Split at line feeds only: other line separators of Python are characters to git."""
    *whole, rest = content.decode().split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _quoted(path: str) -> str:
    """Quote a path as git does when it has a quote or a backslash."""
    if not any(character in _ESCAPES for character in path):
        return path
    return '"' + "".join(_ESCAPES.get(character, character) for character in path) + '"'
