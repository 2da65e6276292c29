"""Verify a completion by what it does; each verifier is a module with `verify(completion, spec)`.

To add one, write a module here. `--gate NAME` and `--grade NAME=WEIGHT` use the name of the module:

    \"\"\"Check that no to-do is left in the completion.

    spec   allowed_todos: the number of to-dos that are allowed (default 0)
    score  1.0 if there are no more than that, else 0.0
    \"\"\"

    from typing import Any

    from rewards.verifiers.rubric import VerifierResult, failed, passed


    def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
        found = completion.count("TODO")
        if found <= spec.get("allowed_todos", 0):
            return passed("todo")
        return failed("todo", "test_or_assertion", f"{found} to-dos are left.")

The documentation of a verifier is the docstring of its module: a first line, then the paragraphs
`spec`, the keys of the row's `verifier_spec` that it reads, and `score`. Your own function is named
`module:name` instead; its module is in the current folder or installed.
"""
