"""The harnesses whose sessions are read; to add one, add its `HARNESS` to the list here.

A trace belongs to the first harness that recognises one of its lines.
"""

from pimono_sdpo.traces.harness import claude_code, codex, droid, pi, simple
from pimono_sdpo.traces.harness.base import Harness

HARNESSES: tuple[Harness, ...] = (
    claude_code.HARNESS,
    codex.HARNESS,
    droid.HARNESS,
    simple.HARNESS,
    pi.HARNESS,
)  # fmt: skip
_BY_NAME = {harness.name: harness for harness in HARNESSES}


def find_harness(name: str) -> Harness:
    """Return a harness by its name; any other name was given by a trace in the simple format."""
    return _BY_NAME.get(name, simple.HARNESS)
