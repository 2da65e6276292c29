"""Whether an exception that the sandbox tells of is the expected one, or a subclass of it.

What the sandbox says is untrusted. So of one exception only its own name, those of its bases up to
the first built-in one, and that built-in one count; what the built-in one is a subclass of is known
out here. Hence no answer can raise something that is a ValueError and a TypeError at once.
"""

import builtins
from collections.abc import Mapping
from typing import Any

MAX_BASES = 8
# Every failure is one of these, so only these themselves count.
_ANYTHING = (Exception, BaseException)
# What an unfinished program raises is a RuntimeError by name alone.
_UNFINISHED = (NotImplementedError, RecursionError)


def counts_as(line: Mapping[str, Any], expected: str) -> bool:
    """Tell whether a line of the worker, `error` and `bases`, tells of the expected exception.

    >>> counts_as({"error": "JSONDecodeError", "bases": ["ValueError", "Exception"]}, "ValueError")
    True
    >>> counts_as({"error": "Any", "bases": ["ValueError", "TypeError"]}, "TypeError")
    False
    """
    if line["error"] == expected:
        return True
    bases = line.get("bases")
    names = [line["error"], *(bases[:MAX_BASES] if isinstance(bases, list) else ())]
    wanted = _built_in(expected)
    for name in names:
        found = _built_in(name)
        if found is not None:
            return (
                wanted is not None
                and wanted not in _ANYTHING
                and issubclass(found, wanted)
                and issubclass(found, _UNFINISHED) <= issubclass(wanted, _UNFINISHED)
            )
        if name == expected:
            return True
    return False


def _built_in(name: object) -> type[BaseException] | None:
    found = getattr(builtins, name, None) if isinstance(name, str) else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
