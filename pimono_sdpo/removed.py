"""What earlier versions had, and what to use instead; an entry is deleted after one release."""

from collections.abc import Sequence
from itertools import pairwise

from pimono_sdpo.errors import PimonoError

_ONLY = "give each machine `--only I/N` with the same --out, then run the command once without it"
# A command, an option of a command, or a value of an option.
REMOVED = {"filter --shard": _ONLY, "filter --merge": _ONLY}


def refuse_removed(name: str, words: Sequence[str] = ()) -> None:
    """Raise PimonoError for something removed: a command, or one of its options among `words`.

    >>> refuse_removed("filter", ["traces", "--shard=1/2"])
    Traceback (most recent call last):
    pimono_sdpo.errors.PimonoError: `filter --shard` was removed; give each machine `--only I/N` with the same ...
    """
    given = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    given = [word.replace("_", "-") if word.startswith("--") else word for word in given]
    values = [f"{option} {value}" for option, value in pairwise(given)]
    for used in (name, *(f"{name} {word}" for word in (*given, *values))):
        if used in REMOVED:
            raise PimonoError(f"`{used}` was removed; {REMOVED[used]}.")
