"""Check whether the files that a completion changes still parse, without a sandbox.

spec   as in `rewards.verifiers.candidate`
score  the share of the changed files that parse

| file | parser |
|---|---|
| `.py`, `.pyi` | the compiler of the running Python |
| `.json`, `.toml`, `.yaml`, `.yml` | their parsers; no object is constructed |
| `.ts`, `.tsx`, `.js`, `.jsx`, `.mts`, `.cjs` and so on | tree-sitter, from the extra `verify` |

A file that did not parse before is ignored unless it has more errors than before.
"""

import importlib
import json
import tomllib
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import yaml

from rewards.verifiers.answer import read_candidate
from rewards.verifiers.candidate import Candidate, Refusal
from rewards.verifiers.rubric import VerifierResult, failed, passed, skipped

NAME = "syntax"
MAX_CHARS = 1_000_000
MAX_YAML_CHARS = 100_000  # its parser is slow
MAX_SHOWN = 5
Problem = tuple[int, str]  # the line, counted from 1, and the message

_TYPESCRIPT = ("tree_sitter_typescript", "language_typescript")
_JAVASCRIPT = ("tree_sitter_javascript", "language")
_GRAMMARS = {
    **dict.fromkeys(("ts", "mts", "cts"), _TYPESCRIPT),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    **dict.fromkeys(("js", "mjs", "cjs", "jsx"), _JAVASCRIPT),
}


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Parse the files that the completion changes; partial credit is the share of files that parse."""
    try:
        return verify_candidate(read_candidate(completion, spec))
    except Refusal as refused:
        return failed(NAME, "malformed_output", f"There is nothing to parse. {refused}")


def verify_candidate(candidate: Candidate) -> VerifierResult:
    """Parse the changed files of a candidate; metrics: `files` parsed."""
    checked = broken = 0
    lines: list[str] = []
    reasons: list[str] = []
    for path in candidate.changed:
        after = find_problems(path, candidate.files[path]) if path in candidate.files else ""
        before = find_problems(path, candidate.before[path]) if path in candidate.before else []
        if isinstance(after, str):
            reasons.append(after)
        elif after and len(after) <= (0 if isinstance(before, str) else len(before)):
            reasons.append(f"{path} did not parse before either.")
        else:
            checked += 1
            broken += bool(after)
            lines += [_format_problem(path, candidate.files[path], problem) for problem in after[:MAX_SHOWN]]
    if not checked:
        return skipped(NAME, " ".join(dict.fromkeys(filter(None, reasons))) or "No file was written.")
    if not broken:
        return passed(NAME, files=float(checked))
    share = (checked - broken) / checked
    return failed(NAME, "build_lint_compile", "\n".join(lines[:MAX_SHOWN]), share, files=float(checked))


def find_problems(path: str, text: str) -> list[Problem] | str:
    """Return the syntax errors of a file, or a sentence if this kind of file cannot be checked.

    >>> find_problems("a.py", "x = (1")
    [(1, "'(' was never closed")]
    """
    kind = PurePosixPath(path).suffix.lower().removeprefix(".")
    if kind not in _GRAMMARS and kind not in _CHECKS:
        return f"There is no parser for {path}."
    limit = MAX_YAML_CHARS if kind in ("yaml", "yml") else MAX_CHARS
    if len(text) > limit:
        return f"{path} is longer than {limit} characters."
    if kind in _GRAMMARS:
        language = _load_grammar(*_GRAMMARS[kind])
        if language is None:
            return f"{path} needs tree-sitter; install the extra `verify`."
        return _find_tree_problems(language, text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _CHECKS[kind](text)
    except (RecursionError, MemoryError):  # the parsers raise these for deep nesting
        return [(1, "too deeply nested to be parsed")]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        return [(mark.line + 1 if mark else 1, error.problem or "not YAML")]
    except (SyntaxError, ValueError, yaml.YAMLError) as error:  # also null bytes, surrogates, too many digits, TOML
        return [(getattr(error, "lineno", None) or 1, getattr(error, "msg", None) or str(error).split("\n")[0])]
    return []


_CHECKS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("py", "pyi"), lambda text: compile(text, "<file>", "exec", dont_inherit=True)),
    "json": json.loads,
    "toml": tomllib.loads,
    **dict.fromkeys(("yaml", "yml"), lambda text: list(yaml.compose_all(text, Loader=yaml.SafeLoader))),
}


@cache
def _load_grammar(module: str, name: str) -> Any:
    """Return a language of tree-sitter, None if it is not installed."""
    try:
        language = importlib.import_module("tree_sitter").Language
        return language(getattr(importlib.import_module(module), name)())
    except ModuleNotFoundError:
        return None


def _find_tree_problems(language: Any, text: str) -> list[Problem]:
    # A new parser for each call, because verifiers run in threads.
    parser = importlib.import_module("tree_sitter").Parser(language)
    tree = parser.parse(text.encode("utf-8", errors="replace"))
    errors: list[Problem] = []
    pending = [tree.root_node] if tree.root_node.has_error else []
    while pending:
        node = pending.pop()
        line = node.start_point[0] + 1
        if node.is_missing:
            errors.append((line, f"`{node.type}` is missing"))
        elif node.is_error:
            errors.append((line, "this does not parse"))
        pending += [child for child in node.children if child.has_error or child.is_missing]
    return sorted(errors)


def _format_problem(path: str, text: str, problem: Problem) -> str:
    line, message = problem
    lines = text.split("\n")
    source = lines[line - 1].strip()[:120] if 0 < line <= len(lines) else ""
    return f"{path}:{line}: {message}" + (f": `{source}`" if source else "")
