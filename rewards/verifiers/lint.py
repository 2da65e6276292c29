"""Check whether a completion adds findings of ruff to the Python files that it changes.

spec   as in `rewards.verifiers.candidate`, and optionally `lint`, an object with
       select: rules of ruff (default: SELECT, code that is broken)
score  the share of the changed files without new findings

A finding is new if a file has more findings with its rule and message than before, on whatever
line. Files that did not parse before are left out. Files are parsed in the sandbox, never run;
neither settings of the workspace nor comments that silence ruff count. ruff comes with the extra
`verify`.
"""

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pimono_sdpo.text import shorten
from rewards import sandbox
from rewards.sandbox import Limits, Ran, SandboxError
from rewards.verifiers.answer import candidate_of
from rewards.verifiers.candidate import Candidate, Refusal
from rewards.verifiers.rubric import BadSpec, VerifierResult, error, failed, passed, skipped

NAME = "lint"
SELECT = ("E9", "F63", "F7", "F82")
# Whether the oldest Python that a project supports has the syntax is not checked.
OPTIONS = (
    *("check", "--isolated", "--no-cache", "--ignore-noqa", "--quiet", "--target-version", "py314"),
    *("--output-format", "json", "--select"),
)
# One thread: a stack per core would count as memory.
ENVIRONMENT = {"RAYON_NUM_THREADS": "1"}
LIMITS = Limits(cpu_seconds=10, wall_seconds=60, memory=1 << 30, output=16 << 20, open_files=512)
SYNTAX = "error:"
MAX_FEEDBACK, MAX_SHOWN, MAX_FINDINGS = 1200, 120, 8
_RULE = re.compile(r"[A-Z]+[0-9]*")


class Finding(NamedTuple):
    """A finding of ruff; `rule` is SYNTAX when the file does not parse."""

    path: str
    line: int
    column: int  # from 1
    rule: str
    message: str

    @property
    def key(self) -> tuple[str, ...]:
        """What stays the same when the lines above change."""
        return self.path, self.rule, self.message


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Lint what the completion changes; partial credit is the share of files without new findings.

    Raises BadSpec for invalid rules.
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
    paths = [
        path
        for path in candidate.changed
        if path in candidate.files and PurePosixPath(path).suffix.lower() in (".py", ".pyi")
    ]
    known = _run_ruff({path: candidate.before.get(path, "") for path in paths}, rules)
    if isinstance(known, Ran):  # on the files as they were: not the fault of the answer
        raise SandboxError(_breakdown(known))
    unparsed = {one.path for one in known if one.rule == SYNTAX}
    after = {path: candidate.files[path] for path in paths if path not in unparsed}
    if not after:
        return skipped(NAME, "No file was written that ruff could judge.")
    found = _run_ruff(after, rules)
    if isinstance(found, Ran):
        category = "timeout" if found.stopped == "cpu" else "build_lint_compile"
        return failed(NAME, category, _breakdown(found))
    left, new = Counter(one.key for one in known), []
    for one in found:
        if left[one.key] <= 0:
            new.append(one)
        left[one.key] -= 1
    counts = {"files": float(len(after)), "findings": float(len(new))}
    if not new:
        return passed(NAME, **counts)
    lines = [_line(one, after[one.path]) for one in new[:MAX_FINDINGS]]
    if len(new) > MAX_FINDINGS:
        lines.append(f"... and {len(new) - MAX_FINDINGS} more")
    clean = len(after) - len({one.path for one in new})
    text = shorten("\n".join(lines), MAX_FEEDBACK)
    return failed(NAME, "build_lint_compile", text, clean / len(after), **counts)


def _run_ruff(files: Mapping[str, str], rules: Sequence[str]) -> list[Finding] | Ran:
    """Return the findings, or the run if ruff broke down in it or found too much."""
    if not files:
        return []
    where = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    ruff = shutil.which("ruff", path=where)
    if ruff is None:
        raise SandboxError("ruff is not installed beside this package; install the extra `verify`")
    ruff = os.path.realpath(ruff)
    # Names that mean the same to ruff, and are never an option or a pattern.
    names = {f"{number}/{_bare_name(path)}": path for number, path in enumerate(files)}
    texts = {name: files[path].encode(errors="replace") for name, path in names.items()}
    command = [ruff, *OPTIONS, ",".join(rules or SELECT), "--", *names]
    ran = sandbox.run(command, files=texts, limits=LIMITS, read=[ruff], env=ENVIRONMENT)
    if ran.exit_code == 127:
        raise SandboxError(f"ruff could not be started; see that everybody may read {ruff}")
    if ran.exit_code not in (0, 1):
        return ran
    try:
        report = json.loads(ran.stdout)
    except ValueError:  # cut
        return ran
    return [
        Finding(
            names["/".join(PurePosixPath(one["filename"]).parts[-2:])],
            one["location"]["row"],
            one["location"]["column"],
            SYNTAX if one["code"] in (None, "invalid-syntax") else one["code"],
            one["message"],
        )
        for one in report
    ]


def _bare_name(path: str) -> str:
    pure = PurePosixPath(path)
    return "__init__.py" if pure.name == "__init__.py" else f"module{pure.suffix.lower()}"


def _breakdown(ran: Ran) -> str:
    if ran.exit_code in (0, 1):
        return "ruff found more than can be read"
    why = ran.stderr.decode(errors="replace").split()
    how = f"too much of {ran.stopped}" if ran.stopped else f"{ran.signal or ran.exit_code}"
    return shorten(f"ruff did not finish: {how} {' '.join(why)}", MAX_FEEDBACK).strip()


def _line(one: Finding, text: str) -> str:
    shown = shorten("".join(text.split("\n")[one.line - 1 : one.line]).strip(), MAX_SHOWN)
    said = f"{one.path}:{one.line}:{one.column}: {one.rule} {one.message}"
    return f"{said}\n    {shown}" if shown else said


def _rules(lint: Any) -> Sequence[str]:
    """Return the rules that the spec names."""
    given = lint.get("select", []) if isinstance(lint, Mapping) else None
    if not isinstance(given, list) or not all(
        isinstance(one, str) and _RULE.fullmatch(one) for one in given
    ):
        raise BadSpec(f"`lint` of the spec is {lint!r}; its `select` is a list of rules of ruff.")
    return given
