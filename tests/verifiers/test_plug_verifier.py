"""A new verifier is one file, and missing parts of its docstring are named."""

from pathlib import Path

import pytest

from docs.generate import VerifierDoc, list_verifiers
from tests.plug import copy_project, run_python

TOY = '''
"""Check that no to-do is left in the completion.

spec   allowed_todos: how many may stay (default 0)
score  1.0 if there are no more than allowed, else 0.0
"""

from typing import Any

from rewards.verifiers.rubric import VerifierResult, failed, passed


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    found = completion.count("TODO")
    if found <= spec.get("allowed_todos", 0):
        return passed("todo")
    return failed("todo", "test_or_assertion", f"{found} to-dos are left.")
'''


def missing_parts(verifier: VerifierDoc) -> list[str]:
    """Name what the documentation of a verifier lacks: nothing else tells its author."""
    parts = {
        "a first line": verifier.summary,
        "a paragraph `spec` (what it reads)": verifier.spec,
        "a paragraph `score` (what it gives)": verifier.score,
    }
    return [name for name, text in parts.items() if not text]


@pytest.mark.parametrize("verifier", list_verifiers(), ids=lambda verifier: verifier.name)
def test_no_part_of_a_verifier_is_missing(verifier: VerifierDoc) -> None:
    missing = missing_parts(verifier)
    assert not missing, f"the docstring of {verifier.name} lacks {'; '.join(missing)}"


def plug_in(folder: Path, source: str) -> Path:
    project = copy_project(folder, "docs/generate.py", "tests/plug.py", "tests/verifiers/test_plug_verifier.py")
    (project / "rewards/verifiers/todo.py").write_text(source)
    return project


SCORE = """
from rewards.verifiers.rubric import build_rubric
rubric = build_rubric(["todo"], [])
for text in ("TODO", "TODO TODO"):
    result = rubric(text, {"allowed_todos": 1})
    print(result.passed, result.feedback())
"""


def test_a_new_verifier_is_found_by_its_name(tmp_path: Path) -> None:
    done = run_python(plug_in(tmp_path / "p", TOY), "-c", SCORE)
    assert done.stdout.splitlines() == ["True ", "False 2 to-dos are left."], done.stderr


def test_missing_parts_of_a_new_verifier_are_named(tmp_path: Path) -> None:
    project = plug_in(tmp_path, TOY[TOY.index("from typing") :])
    options = ("--noconftest", "-p", "no:cacheprovider", "-k", "missing and todo")
    failed = run_python(project, "-m", "pytest", "-q", *options, "tests/verifiers/test_plug_verifier.py")
    assert failed.returncode == 1, failed.stdout
    assert "the docstring of todo lacks a first line; a paragraph `spec`" in failed.stdout
