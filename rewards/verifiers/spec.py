"""Whether a row's spec can be judged by, told in one sentence before anything is run."""

import math
from collections.abc import Mapping
from typing import Any

from rewards.verifiers.candidate import LISTS, refused_path
from rewards.verifiers.rubric import BadSpec

KINDS = ("value", "output", "pytest")


def check_tests(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tests of a spec; raises BadSpec when they cannot be run."""
    tests = spec["tests"]
    if not isinstance(tests, Mapping):
        raise BadSpec(f"`tests` of the spec is {_told(tests)}; write an object with `kind`.")
    kind = tests.get("kind")
    if kind not in KINDS:
        raise BadSpec(f"`kind` of the tests is {kind!r}; write 'value', 'output' or 'pytest'.")
    seconds = tests.get("seconds", 1)
    if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
        raise BadSpec(f"`seconds` of the tests is {_told(seconds)}; write a number above 0.")
    for name in LISTS["tests"]:
        _check_texts(tests, name)
    if kind == "pytest":
        _check_files(tests.get("files"))
    else:
        _check_module(tests.get("module"), spec)
        _check_cases(tests.get("cases"), kind)
    if kind == "value" and not isinstance(tests.get("entry"), str):
        raise BadSpec(f"`entry` of the tests is {_told(tests.get('entry'))}; name a function.")
    return tests


def _check_module(module: Any, spec: Mapping[str, Any]) -> None:
    if not isinstance(module, str):
        raise BadSpec(f"`module` of the tests is {_told(module)}; write the path of a file.")
    if module not in spec["files"] and refused_path(module, spec):
        raise BadSpec(f"`module` of the tests is {module!r}, which is no file and may not be made.")


def _check_cases(cases: Any, kind: str) -> None:
    wanted = "`expected` or `raises`" if kind == "value" else "`expected`, a text"
    if not isinstance(cases, list) or not cases:
        raise BadSpec(
            f"Every test needs cases, but `cases` is {_told(cases)}; write a list of them."
        )
    for case in cases:
        if not isinstance(case, Mapping):
            raise BadSpec(f"A case of the tests is {_told(case)}; write an object.")
        args = case.get("args", None if kind == "value" else [])
        if not isinstance(args, list) or not isinstance(case.get("kwargs", {}), Mapping):
            raise BadSpec(f"`args` of a case is {_told(args)}; write a list, `kwargs` an object.")
        if kind == "value" and ("expected" in case) == ("raises" in case):
            raise BadSpec(f"Every test needs cases, and each of them either {wanted}.")
        texts = [case.get("stdin", ""), case.get("expected"), *args] if kind == "output" else []
        if not all(isinstance(text, str) for text in texts):
            raise BadSpec(f"Every test needs cases, and each of them {wanted}, `stdin`, `args` so.")


def _check_files(files: Any) -> None:
    if not isinstance(files, Mapping) or not all(isinstance(t, str) for t in files.values()):
        raise BadSpec(f"`files` of the tests is {_told(files)}; give texts by their paths.")


def _check_texts(given: Mapping[str, Any], name: str) -> None:
    listed = given.get(name, [])
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise BadSpec(f"`{name}` of the tests is {_told(listed)}; write a list of texts.")


def _told(value: Any) -> str:
    return "missing" if value is None else repr(value)[:80]
