"""Tell whether a completion adds to what linters complain of in the files it changes.

spec  as in `rewards.verifiers.candidate`, and lint, which may be left out:
      select: rules of ruff (default: SELECT, code that is broken); biome: rules of biome (default:
      BIOME); javascript: "biome", "esbuild" or "tree-sitter" instead of the best one there is

What was there before is nobody's fault: a finding counts when there are more of its rule and
message in the changed files than before, on whatever line. Directives that silence a linter are
taken out of both, and no settings of the workspace are read, so that neither buys anything. Files
are only parsed, never run. Findings beyond syntax need a file that parsed before: nobody knows
what else was wrong with it.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pimono_sdpo.text import shorten
from rewards.sandbox import SandboxError
from rewards.sandbox.warm import Server
from rewards.verifiers.answer import candidate_of
from rewards.verifiers.candidate import Candidate, Refusal
from rewards.verifiers.linters import SYNTAX, Finding, Linter, Trouble, findings, linter_of
from rewards.verifiers.result import BadSpec, VerifierResult, error, failed, passed, skipped
from rewards.verifiers.syntax import MAX_CHARS
from rewards.verifiers.tools import Tool, cold, in_server

NAME = "lint"
MAX_FEEDBACK = 1200
MAX_SHOWN = 120
TOLD = 8
TIMEOUT = "timeout"
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_RULE = re.compile(r"[A-Z]+[0-9]*")
_BIOME_RULE = re.compile(r"[a-z0-9]+/[A-Za-z0-9]+")


def verify(completion: str, spec: dict[str, Any], tool: Tool = cold) -> VerifierResult:
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
        return judge(candidate, spec, tool)
    except SandboxError as trouble:
        return error(NAME, str(trouble))


def warm(server: Server) -> Callable[[str, dict[str, Any]], VerifierResult]:
    """Return `verify` for many runs from one warm interpreter."""
    return functools.partial(verify, tool=in_server(server))


def judge(candidate: Candidate, spec: Mapping[str, Any], tool: Tool = cold) -> VerifierResult:
    """Lint the changed files of a candidate; metrics: `files` judged, `findings` that are new.

    Raises SandboxError when nothing can be said.
    """
    rules = _rules(spec.get("lint", {}))
    groups: dict[Linter, list[str]] = {}
    for path in candidate.changed:
        linter = linter_of(path, spec.get("lint", {}).get("javascript"))
        if linter is not None:
            groups.setdefault(linter, []).append(path)
    judged, new = 0, dict[str, list[Finding]]()
    for linter, paths in groups.items():
        after = {path: candidate.files[path] for path in paths if path in candidate.files}
        before = {path: candidate.before[path] for path in paths if path in candidate.before}
        compared = _compare(linter, before, after, rules.get(linter, ()), tool)
        judged += len(compared)
        new |= {path: found for path, found in compared.items() if found}
    if not judged:
        return skipped(NAME, "No file was written that a linter could judge.")
    counts = {"files": float(judged), "findings": float(sum(map(len, new.values())))}
    if not new:
        return passed(NAME, **counts)
    every = [one for path in new for one in new[path]]
    lines = [_line(one, candidate.files[one.path]) for one in every[:TOLD]]
    more = [f"... and {len(every) - TOLD} more"] if len(every) > TOLD else []
    text = shorten("\n".join([*lines, *more]), MAX_FEEDBACK)
    category = "timeout" if any(one.rule == TIMEOUT for one in every) else "build_lint_compile"
    return failed(NAME, category, text, (judged - len(new)) / judged, **counts)


def _compare(
    linter: Linter,
    before: dict[str, str],
    after: dict[str, str],
    rules: tuple[str, ...],
    tool: Tool,
) -> dict[str, list[Finding]]:
    """Return what is new in every file that could be judged."""
    told: dict[str, list[Finding]] = {}
    for path in [path for path in after if _unreadable(after[path])]:
        # Whose file was like that before is not to blame for it.
        if not _unreadable(before.get(path, "")):
            told[path] = [Finding(path, 1, 0, SYNTAX, _unreadable(after[path]))]
        del after[path]
    if not after:
        return told
    found = findings(linter, after, rules, tool)
    if not found:
        return told | {path: [] for path in after}
    before = {path: text for path, text in before.items() if not _unreadable(text)}
    known = findings(linter, before, rules, tool) if before else []
    if isinstance(known, Trouble):
        # It cannot read what was there either: a fault of the linter.
        raise SandboxError(known.why)
    if isinstance(found, Trouble):
        if found.category == "wall":
            raise SandboxError(f"{found.why}, by the clock and not by its CPU seconds")
        rule = TIMEOUT if found.category == "cpu" else SYNTAX
        return told | {path: [Finding(path, 1, 0, rule, found.why)] for path in after}
    for path in after:
        told[path] = []
    for one in _new(known, found):
        told[one.path].append(one)
    return told


def _unreadable(text: str) -> str:
    """Say why no linter is given a text, "" when one is."""
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
    # What went from one file to another is no new finding.
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
    said = f"{where}: {rule} {one.message}"
    return said + (f"\n    {shorten(shown, MAX_SHOWN)}" if shown else "")


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
