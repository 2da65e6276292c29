"""Containers that an object of the answer holds, as the tests get them: copies, not to be changed.

A change would stay on the tests' side, and a right answer would fail. Runs inside the sandbox.
"""

import collections
from collections.abc import Callable
from typing import Any, NoReturn

Refuse = Callable[[str], NoReturn]
CHANGES = """append appendleft extend extendleft insert pop popleft popitem remove clear sort
    reverse rotate update setdefault add discard difference_update intersection_update
    subtract move_to_end symmetric_difference_update __setitem__ __delitem__ __iadd__
    __imul__ __ior__ __iand__ __isub__ __ixor__ __missing__""".split()  # fmt: skip


class Unjudged(BaseException):
    """The tests do what cannot be done between two processes."""


def _copy(kind: type) -> Callable[[Refuse], type]:
    def made(refuse: Refuse) -> type:
        def change(self: Any, *arguments: Any, **named: Any) -> NoReturn:
            refuse(
                f"the tests change a {kind.__name__} that they read from an object or a module of "
                "the code under test, of which they have a copy; have the code change it"
            )

        names = [name for name in CHANGES if hasattr(kind, name)]
        methods: dict[str, Any] = dict.fromkeys(names, change)
        # What `copy` makes of it may be changed.
        methods["__reduce_ex__"] = lambda self, _: (kind, (kind(self),))
        return type(kind.__name__, (kind,), methods)

    return made


COPIES = {kind.__name__: _copy(kind) for kind in (list, dict, set, collections.deque, bytearray)}
