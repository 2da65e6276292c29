"""Check whether a completion adds linter findings to the files that it changes.

spec   as in `rewards.verifiers.candidate`, and optionally `lint`, an object with
       select: rules of ruff (default: SELECT, code that is broken); biome: rules of biome (default:
       BIOME); javascript: "biome", "esbuild" or "tree-sitter" (default: the best one installed)
score  the share of the changed files without new findings

| files | linter | finds |
|---|---|---|
| Python | ruff | syntax errors, and the rules of `select` |
| JavaScript, TypeScript | biome, when on the PATH | syntax errors, and `BIOME` |
| | esbuild, when on the PATH | syntax errors |
| | tree-sitter, of the extra `verify` | syntax errors, in process |

A finding is new if the changed files have more findings with its rule and message than before, on
whatever line. Findings other than syntax errors count only in files that parsed before. Files are
parsed, never run. Settings of the workspace are not read, and directives that silence a linter
lose their first letter to `_`, which keeps lines and columns as they are.
"""

import json
import os
import platform
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from pimono_sdpo.text import shorten
from rewards import sandbox
from rewards.sandbox import Limits, Ran, SandboxError
from rewards.verifiers.answer import candidate_of
from rewards.verifiers.candidate import Candidate, Refusal
from rewards.verifiers.rubric import BadSpec, VerifierResult, error, failed, passed, skipped
from rewards.verifiers.syntax import MAX_CHARS, problems

# A hyphen or an `@` makes these unambiguous, wherever they stand, also in lines of a block.
_ANYWHERE = re.compile(
    r"@ts-(?:nocheck|ignore|expect-error)|(?:es|ox|ts)lint[-:](?:disable|enable)|biome-ignore|"
    r"deno-lint-ignore|prettier-ignore|jshint\s{1,9}ignore|@(?:no)?flow\b",
    re.IGNORECASE,
)
_LEAD = re.compile(r"#|//")
_AFTER_LEAD = re.compile(
    r"\b(?:noqa\b|nosec\b|type:\s{0,9}ignore|isort:\s{0,9}\w|"
    r"(?:ruff|flake8|mypy|pyright|pyre|pylint|ty|pytype)(?:-\w{1,20}){0,2}\s{0,9}:)",
    re.IGNORECASE,
)
_OF_THE_FILE = re.compile(r"@ts-nocheck|lint[-:]disable(?!-)|ignore-all|ignore-file", re.IGNORECASE)
Key = tuple[str, str]


def without(text: str) -> str:
    """Return the text without any directive.

    >>> without("x = y  # noqa: F821")
    'x = y  # _oqa: F821'
    """
    return "\n".join(map(_blunt, text.split("\n")))


def without_new(before: str, after: str) -> str:
    """Return the text without the directives that the earlier text does not have.

    A directive for the next line is also new if that line is.
    """
    known = Counter(key for _, key in _directives(before.split("\n")))
    lines = after.split("\n")
    for at, key in _directives(lines):
        if known[key]:
            known[key] -= 1
        else:
            lines[at] = _blunt(lines[at])
    return "\n".join(lines)


def _directives(lines: list[str]) -> list[tuple[int, Key]]:
    found = []
    for at, line in enumerate(lines):
        if _blunt(line) != line:
            after = lines[at + 1] if at + 1 < len(lines) else ""
            # Such as `@ts-ignore`, which would also silence a new line below.
            of_the_next = _ANYWHERE.search(line) and not _OF_THE_FILE.search(line)
            found.append((at, (line.strip(), after.strip() if of_the_next else "")))
    return found


def _blunt(line: str) -> str:
    line = _ANYWHERE.sub(_first_letter, line)
    lead = _LEAD.search(line)
    if lead is None:
        return line
    return line[: lead.end()] + _AFTER_LEAD.sub(_first_letter, line[lead.end() :])


def _first_letter(found: re.Match[str]) -> str:
    return "_" + found[0][1:]


# One thread each: a stack per core would count as memory, and many runs go on at once.
ENVIRONMENT = {
    "RAYON_NUM_THREADS": "1",
    "TOKIO_WORKER_THREADS": "1",
    "GOMAXPROCS": "1",
    "NO_COLOR": "1",
}
# Packages of npm start these through Node, which costs ten times as much; the program is beside.
_BESIDE = {"biome": "@biomejs/cli-linux-*/biome", "esbuild": "@esbuild/linux-*/bin/esbuild"}


def run_tool(
    command: Sequence[str],
    files: Mapping[str, bytes | str],
    limits: Limits,
    read: Sequence[str] = (),
    env: Mapping[str, str] = ENVIRONMENT,
) -> Ran:
    """Run a command on untrusted files in the sandbox; raises SandboxError if it cannot be run."""
    return sandbox.run(command, files=files, limits=limits, read=read, env=env)


def program(name: str) -> str | None:
    """Return where the native program of that name is: beside Python, on PATH, or in its package.

    A script, such as those npm puts on the PATH, is only followed to the program that it starts.
    """
    where = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = shutil.which(name, path=where)
    if found is None:
        return None
    itself = Path(found).resolve()
    if _native(itself):
        return str(itself)
    machine = "arm64" if platform.machine() == "aarch64" else "x64"
    for parent in itself.parents:
        if parent.name == "node_modules" and name in _BESIDE:
            for beside in sorted(parent.glob(_BESIDE[name])):
                if machine in str(beside.relative_to(parent)) and _native(beside):
                    return str(beside)
    return None


def _native(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


SELECT = ("E9", "F63", "F7", "F82")
BIOME = (
    "correctness/noConstAssign", "correctness/noInvalidConstructorSuper",
    "correctness/noUnreachableSuper", "suspicious/noClassAssign",
    "suspicious/noDuplicateClassMembers", "suspicious/noDuplicateParameters",
    "suspicious/noFunctionAssign", "suspicious/noImportAssign",
)  # fmt: skip
# Whether the oldest Python that a project supports has the syntax is not checked.
TARGET = "py314"
LIMITS = Limits(cpu_seconds=10, wall_seconds=60, memory=1 << 30, output=16 << 20, open_files=512)
SYNTAX = "syntax"
MAX_STDERR = 300
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
    """A finding of a linter; `rule` is SYNTAX when the file does not parse."""

    path: str
    line: int
    column: int  # from 1; 0 if unknown
    rule: str
    message: str


class Trouble(NamedTuple):
    """The linter did not finish, or gave no report."""

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


def findings(linter: Linter, files: Files, rules: Sequence[str]) -> list[Finding] | Trouble:
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
    ran = run_tool([itself, *command(rules, list(names))], texts, LIMITS, [itself])
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
    """Return a name with the same meaning for linters, which is never an option or a pattern."""
    pure = PurePosixPath(path)
    if pure.name == "__init__.py":
        return pure.name
    declares = _DECLARES.search(path)
    return f"module{(declares[0] if declares else pure.suffix).lower()}"


def _ending(ran: Ran) -> str:
    how = f"signal {ran.signal}" if ran.signal else f"exit code {ran.exit_code}"
    stderr = ran.stderr.decode(errors="replace").strip()
    stderr = shorten(" ".join(stderr.split()), MAX_STDERR)
    return f"{how}, {stderr}" if stderr else how


def _parsed(files: Files) -> list[Finding] | Trouble:
    found: list[Finding] = []
    for path, text in files.items():
        problems_or_reason = problems(path, text)
        if isinstance(problems_or_reason, str):
            raise SandboxError(problems_or_reason)
        found += [Finding(path, line, 0, SYNTAX, what) for line, what in problems_or_reason]
    return found


def _ruff(rules: Sequence[str], names: Sequence[str]) -> list[str]:
    options = ["--isolated", "--no-cache", "--ignore-noqa", "--quiet", "--target-version", TARGET]
    select = ",".join(rules or SELECT)
    return ["check", *options, "--output-format", "json", "--select", select, "--", *names]


def _of_ruff(ran: Ran) -> list[Finding] | Trouble:
    report = _json(ran)
    if not isinstance(report, list):
        return Trouble("build_lint_compile", "ruff found more than can be read")
    return [
        Finding(
            "/".join(PurePosixPath(one["filename"]).parts[-2:]),
            one["location"]["row"],
            one["location"]["column"],
            SYNTAX if one["code"] in (None, "invalid-syntax") else one["code"],
            one["message"],
        )
        for one in report
    ]


def _biome(rules: Sequence[str], names: Sequence[str]) -> list[str]:
    only = [f"--only={rule}" for rule in rules or BIOME]
    reported = ["--reporter=rdjson", "--max-diagnostics=none", "--diagnostic-level=error"]
    return ["lint", *only, *reported, f"--files-max-size={LIMITS.file_size}", "--", *names]


def _of_biome(ran: Ran) -> list[Finding] | Trouble:
    report = _json(ran)
    if not isinstance(report, dict) or "diagnostics" not in report:
        return Trouble("build_lint_compile", "biome gave no report that can be read")
    found = []
    for one in report["diagnostics"]:
        code, start = one["code"]["value"], one["location"]["range"]["start"]
        rule = SYNTAX if code == "parse" else code
        where = one["location"]["path"]
        found.append(Finding(where, start["line"], start["column"], rule, one["message"]))
    return found


def _esbuild(_: Sequence[str], names: Sequence[str]) -> list[str]:
    options = ["--log-limit=0", "--log-level=error", "--color=false", "--target=esnext"]
    return [*options, "--loader:.js=jsx", "--outdir=../tmp/out", *(f"./{name}" for name in names)]


def _of_esbuild(ran: Ran) -> list[Finding] | Trouble:
    stderr = ran.stderr.decode(errors="replace")
    found = [
        Finding(one["path"], int(one["line"]), int(one["column"]) + 1, SYNTAX, one["text"])
        for one in _ESBUILD.finditer(stderr)
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


NAME = "lint"
MAX_FEEDBACK = 1200
MAX_SHOWN = 120
MAX_FINDINGS = 8
TIMEOUT = "timeout"
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_RULE = re.compile(r"[A-Z]+[0-9]*")
_BIOME_RULE = re.compile(r"[a-z0-9]+/[A-Za-z0-9]+")


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Lint what the completion changes; partial credit is the share of files without new findings.

    Raises ValueError for a spec whose rules are none.
    """
    if "files" not in spec:
        return skipped(NAME, "The row has no files.")
    candidate = candidate_of(completion, spec)
    if isinstance(candidate, Refusal):
        why = f"There is nothing to lint. {candidate.failure}: {candidate.why}"
        return failed(NAME, "malformed_output", why)
    try:
        return verify_candidate(candidate, spec)
    except SandboxError as trouble:
        return error(NAME, str(trouble))


def verify_candidate(candidate: Candidate, spec: Mapping[str, Any]) -> VerifierResult:
    """Lint the changed files of a candidate; metrics: `files` linted, new `findings`.

    Raises SandboxError when there can be no verdict.
    """
    rules = _rules(spec.get("lint", {}))
    groups: dict[Linter, list[str]] = {}
    for path in candidate.changed:
        linter = linter_of(path, spec.get("lint", {}).get("javascript"))
        if linter is not None:
            groups.setdefault(linter, []).append(path)
    checked, new = 0, dict[str, list[Finding]]()
    for linter, paths in groups.items():
        after = {path: candidate.files[path] for path in paths if path in candidate.files}
        before = {path: candidate.before[path] for path in paths if path in candidate.before}
        compared = _compare(linter, before, after, rules.get(linter, ()))
        checked += len(compared)
        new |= {path: found for path, found in compared.items() if found}
    if not checked:
        return skipped(NAME, "No file was written that a linter could judge.")
    counts = {"files": float(checked), "findings": float(sum(map(len, new.values())))}
    if not new:
        return passed(NAME, **counts)
    every = [one for path in new for one in new[path]]
    lines = [_line(one, candidate.files[one.path]) for one in every[:MAX_FINDINGS]]
    more = [f"... and {len(every) - MAX_FINDINGS} more"] if len(every) > MAX_FINDINGS else []
    text = shorten("\n".join([*lines, *more]), MAX_FEEDBACK)
    category = "timeout" if any(one.rule == TIMEOUT for one in every) else "build_lint_compile"
    return failed(NAME, category, text, (checked - len(new)) / checked, **counts)


def _compare(
    linter: Linter,
    before: dict[str, str],
    after: dict[str, str],
    rules: tuple[str, ...],
) -> dict[str, list[Finding]]:
    """Return the new findings of every file that could be linted."""
    new_by_path: dict[str, list[Finding]] = {}
    for path in [path for path in after if _unreadable(after[path])]:
        # A file that was like that before does not count.
        if not _unreadable(before.get(path, "")):
            new_by_path[path] = [Finding(path, 1, 0, SYNTAX, _unreadable(after[path]))]
        del after[path]
    if not after:
        return new_by_path
    found = findings(linter, after, rules)
    if not found:
        return new_by_path | {path: [] for path in after}
    before = {path: text for path, text in before.items() if not _unreadable(text)}
    known = findings(linter, before, rules) if before else []
    if isinstance(known, Trouble):
        # It cannot read the files as they were either: a fault of the linter.
        raise SandboxError(known.why)
    if isinstance(found, Trouble):
        if found.category == "wall":
            raise SandboxError(f"{found.why}, by the clock and not by its CPU seconds")
        rule = TIMEOUT if found.category == "cpu" else SYNTAX
        return new_by_path | {path: [Finding(path, 1, 0, rule, found.why)] for path in after}
    for path in after:
        new_by_path[path] = []
    for one in _new(known, found):
        new_by_path[one.path].append(one)
    return new_by_path


def _unreadable(text: str) -> str:
    """Say why a text cannot be given to a linter, "" if it can."""
    if len(text) > MAX_CHARS:
        return f"the file has more than {MAX_CHARS} characters"
    return "half a character, which no file can hold" if _SURROGATE.search(text) else ""


def _new(known: list[Finding], found: list[Finding]) -> list[Finding]:
    """Return the findings that are more than there were, those of the same file matched first.

    >>> one = Finding("a.py", 3, 1, "F821", "Undefined name `x`")
    >>> _new([one], [one._replace(line=9)]), len(_new([one], [one, one]))
    ([], 1)
    """
    unparsed = {one.path for one in known if one.rule == SYNTAX}
    left = Counter(_key(one) for one in known)
    rest = []
    for one in found:
        if left[_key(one)]:
            left[_key(one)] -= 1
        elif one.rule == SYNTAX or one.path not in unparsed:
            rest.append(one)
    # A finding that moved from one file to another is not new.
    moved = Counter[tuple[str, str]]()
    for (_, rule, message), count in left.items():
        moved[rule, message] += count
    new = []
    for one in rest:
        if one.rule != SYNTAX and moved[one.rule, one.message]:
            moved[one.rule, one.message] -= 1
        else:
            new.append(one)
    return new


def _key(one: Finding) -> tuple[str, str, str]:
    # The words of a parser change with every token around the same mistake.
    return one.path, one.rule, "" if one.rule == SYNTAX else one.message


def _line(one: Finding, text: str) -> str:
    lines = text.split("\n")
    shown = lines[one.line - 1].strip() if 0 < one.line <= len(lines) else ""
    where = f"{one.path}:{one.line}" + (f":{one.column}" if one.column else "")
    rule = "error:" if one.rule in (SYNTAX, TIMEOUT) else one.rule
    return f"{where}: {rule} {one.message}" + (
        f"\n    {shorten(shown, MAX_SHOWN)}" if shown else ""
    )


def _rules(lint: Any) -> dict[str, tuple[str, ...]]:
    """Return the rules that the spec names, by linter."""
    if not isinstance(lint, Mapping):
        raise BadSpec(f"`lint` of the spec is {lint!r}; write an object.")
    if lint.get("javascript") not in (None, "biome", "esbuild", "tree-sitter"):
        raise BadSpec(
            f"`javascript` is {lint['javascript']!r}; write 'biome', 'esbuild' or 'tree-sitter'."
        )
    rules: dict[str, tuple[str, ...]] = {}
    for linter, name, shape in (("ruff", "select", _RULE), ("biome", "biome", _BIOME_RULE)):
        given = lint.get(name, [])
        if not isinstance(given, list) or not all(
            isinstance(one, str) and shape.fullmatch(one) for one in given
        ):
            raise BadSpec(f"`{name}` is {given!r}; write a list of rules of {linter}.")
        rules[linter] = tuple(given)
    return rules
