"""Verify a completion by what it does: each verifier is a module with `verify(completion, spec)`.

To add one, write a module here. Its name is that of `--gate NAME` and `--grade NAME=WEIGHT`:

    \"\"\"Check that no to-do is left in the completion.

    spec   allowed_todos: how many may stay (default 0)
    score  1.0 if there are no more than allowed, else 0.0
    \"\"\"

    from typing import Any

    from rewards.verifiers.rubric import VerifierResult, failed, passed


    def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
        found = completion.count("TODO")
        if found <= spec.get("allowed_todos", 0):
            return passed("todo")
        return failed("todo", "test_or_assertion", f"{found} to-dos are left.")

The documentation of a verifier is the docstring of its module: a first line, then the paragraph
`spec`, what it reads of the row's `verifier_spec`, and `score`, what it gives. A function of your
own package is named `package.module:function` instead.
"""

import ast
from pathlib import Path
from typing import NamedTuple


class VerifierDoc(NamedTuple):
    """What the docstring of a verifier's module says; a part that it lacks is empty."""

    name: str
    summary: str
    spec: str
    score: str
    text: str


def list_verifiers() -> list[VerifierDoc]:
    """Return the verifiers of this package by name, read from their sources without an import."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "verify" for node in tree.body):
            text = ast.get_docstring(tree) or ""
            summary = text.partition("\n")[0]
            parts = (_part(text, "spec"), _part(text, "score"))
            found.append(VerifierDoc(path.stem, summary, *parts, text))
    return found


def _part(text: str, name: str) -> str:
    """Return what stands after a name at the beginning of a line, with the indented lines below.

    >>> _part("Check it.\\n\\nspec   files\\n       and tests\\nscore  1.0", "spec")
    'files and tests'
    """
    lines = iter(text.split("\n"))
    for line in lines:
        if line.startswith(f"{name}  "):
            part = [line.removeprefix(name).strip()]
            for more in lines:
                if not more.startswith("  "):
                    break
                part.append(more.strip())
            return " ".join(part)
    return ""
