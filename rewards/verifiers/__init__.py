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
own is named `module:name` instead, with its module in the current folder or installed.
"""
