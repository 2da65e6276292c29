"""What a linter finds in files, of Python by ruff, of JavaScript and TypeScript by the best there.

| files | linter | finds |
|---|---|---|
| Python | ruff | what does not parse, and the rules of `select` |
| JavaScript, TypeScript | biome, when on the PATH | what does not parse, and `BIOME` |
| | esbuild, when on the PATH | what does not parse |
| | tree-sitter, of the extra `verify` | what does not parse, in process |

No settings of the workspace are read: the files alone are given, under names of ours. Directives
that would silence a linter are taken out of them.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

from pimono_sdpo.text import shorten
from rewards.sandbox import Limits, Ran, SandboxError
from rewards.verifiers.suppressions import without
from rewards.verifiers.syntax import problems
from rewards.verifiers.tools import Tool, program

SELECT = ("E9", "F63", "F7", "F82")
BIOME = (
    "correctness/noConstAssign", "correctness/noInvalidConstructorSuper",
    "correctness/noUnreachableSuper", "suspicious/noClassAssign",
    "suspicious/noDuplicateClassMembers", "suspicious/noDuplicateParameters",
    "suspicious/noFunctionAssign", "suspicious/noImportAssign",
)  # fmt: skip
# Newer syntax than that of the oldest Python a project supports is none of a linter's business.
TARGET = "py314"
LIMITS = Limits(cpu_seconds=10, wall_seconds=60, memory=1 << 30, output=16 << 20, open_files=512)
SYNTAX = "syntax"
MAX_SAID = 300
PYTHON = ("py", "pyi")
SCRIPTS = ("ts", "mts", "cts", "tsx", "js", "mjs", "cjs", "jsx")
_DECLARES = re.compile(r"\.d\.[mc]?ts$", re.IGNORECASE)
_ESBUILD = re.compile(
    r"^✘ \[ERROR\] (?P<text>[^\n]*)\n\n    (?P<path>\d+/[\w.]+):(?P<line>\d+):(?P<column>\d+):$",
    re.MULTILINE,
)

Linter = Literal["ruff", "biome", "esbuild", "tree-sitter"]
Files = Mapping[str, str]


class Finding(NamedTuple):
    """What a linter says of a place; `rule` is SYNTAX when the file does not parse."""

    path: str
    line: int
    column: int  # from 1; 0 when nobody knows
    rule: str
    message: str


class Trouble(NamedTuple):
    """The linter did not come to an end, or not to a report."""

    category: str
    why: str


def linter_of(path: str, wanted: str | None = None) -> Linter | None:
    """Return the linter of a file; `wanted` names that of JavaScript.

    Raises SandboxError when the one that is needed is not there.
    """
    kind = PurePosixPath(path).suffix.lower().removeprefix(".")
    if kind in PYTHON:
        return "ruff"
    if kind not in SCRIPTS:
        return None
    best: Sequence[Linter] = ("biome", "esbuild", "tree-sitter")
    for name in best:
        if wanted in (None, name) and (name == "tree-sitter" or program(name)):
            return name
    raise SandboxError(f"`{wanted}` is not on the PATH; install it or leave `javascript` out")


def findings(
    linter: Linter, files: Files, rules: Sequence[str], tool: Tool
) -> list[Finding] | Trouble:
    """Lint files; raises SandboxError when the linter could not be started."""
    if linter == "tree-sitter":
        return _parsed(files)
    itself = program(linter)
    if itself is None:
        raise SandboxError(f"{linter} is not installed beside this package; install it")
    names = {f"{number}/{_name(path)}": path for number, path in enumerate(files)}
    texts: dict[str, bytes | str] = {
        name: without(files[path]).encode() for name, path in names.items()
    }
    command, read = _COMMANDS[linter]
    ran = tool([itself, *command(rules, list(names))], texts, LIMITS, [itself])
    if ran.exit_code == 127:
        raise SandboxError(f"{linter} could not be started; see that everybody may read {itself}")
    if ran.stopped in ("cpu", "wall"):
        return Trouble(ran.stopped, f"{linter} did not end in its time")
    if ran.stopped or ran.exit_code not in (0, 1):
        how = f"too much of {ran.stopped}" if ran.stopped else _ending(ran)
        return Trouble("build_lint_compile", f"{linter} broke down: {how}")
    found = read(ran)
    if isinstance(found, Trouble):
        return found
    return [one._replace(path=names[one.path.removeprefix("./")]) for one in found]


def _name(path: str) -> str:
    """A name that keeps what linters go by, and cannot be read as an option or a pattern."""
    pure = PurePosixPath(path)
    if pure.name == "__init__.py":
        return pure.name
    declares = _DECLARES.search(path)
    return f"module{(declares[0] if declares else pure.suffix).lower()}"


def _ending(ran: Ran) -> str:
    how = f"signal {ran.signal}" if ran.signal else f"exit code {ran.exit_code}"
    said = ran.stderr.decode(errors="replace").strip()
    said = shorten(" ".join(said.split()), MAX_SAID)
    return f"{how}, {said}" if said else how


def _parsed(files: Files) -> list[Finding] | Trouble:
    found: list[Finding] = []
    for path, text in files.items():
        told = problems(path, text)
        if isinstance(told, str):
            raise SandboxError(told)
        found += [Finding(path, line, 0, SYNTAX, what) for line, what in told]
    return found


def _ruff(rules: Sequence[str], names: Sequence[str]) -> list[str]:
    options = ["--isolated", "--no-cache", "--ignore-noqa", "--quiet", "--target-version", TARGET]
    select = ",".join(rules or SELECT)
    return ["check", *options, "--output-format", "json", "--select", select, "--", *names]


def _of_ruff(ran: Ran) -> list[Finding] | Trouble:
    told = _json(ran)
    if not isinstance(told, list):
        return Trouble("build_lint_compile", "ruff found more than can be read")
    return [
        Finding(
            "/".join(PurePosixPath(one["filename"]).parts[-2:]),
            one["location"]["row"],
            one["location"]["column"],
            SYNTAX if one["code"] in (None, "invalid-syntax") else one["code"],
            one["message"],
        )
        for one in told
    ]


def _biome(rules: Sequence[str], names: Sequence[str]) -> list[str]:
    only = [f"--only={rule}" for rule in rules or BIOME]
    reported = ["--reporter=rdjson", "--max-diagnostics=none", "--diagnostic-level=error"]
    return ["lint", *only, *reported, f"--files-max-size={LIMITS.file_size}", "--", *names]


def _of_biome(ran: Ran) -> list[Finding] | Trouble:
    told = _json(ran)
    if not isinstance(told, dict) or "diagnostics" not in told:
        return Trouble("build_lint_compile", "biome gave no report that can be read")
    found = []
    for one in told["diagnostics"]:
        code, start = one["code"]["value"], one["location"]["range"]["start"]
        rule = SYNTAX if code == "parse" else code
        where = one["location"]["path"]
        found.append(Finding(where, start["line"], start["column"], rule, one["message"]))
    return found


def _esbuild(_: Sequence[str], names: Sequence[str]) -> list[str]:
    options = ["--log-limit=0", "--log-level=error", "--color=false", "--target=esnext"]
    return [*options, "--loader:.js=jsx", "--outdir=../tmp/out", *(f"./{name}" for name in names)]


def _of_esbuild(ran: Ran) -> list[Finding] | Trouble:
    said = ran.stderr.decode(errors="replace")
    found = [
        Finding(one["path"], int(one["line"]), int(one["column"]) + 1, SYNTAX, one["text"])
        for one in _ESBUILD.finditer(said)
    ]
    if ran.exit_code and not found:
        return Trouble("build_lint_compile", f"esbuild broke down: {_ending(ran)}")
    return found


def _json(ran: Ran) -> Any:
    try:
        return json.loads(ran.stdout)
    except ValueError:  # cut, when there is too much of it
        return None


_COMMANDS: dict[
    str,
    tuple[
        Callable[[Sequence[str], Sequence[str]], list[str]],
        Callable[[Ran], list[Finding] | Trouble],
    ],
] = {
    "ruff": (_ruff, _of_ruff),
    "biome": (_biome, _of_biome),
    "esbuild": (_esbuild, _of_esbuild),
}
