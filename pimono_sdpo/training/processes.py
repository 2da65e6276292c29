"""Several processes of one training (`accelerate launch`): one of them speaks and writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


def is_leader() -> bool:
    """Tell whether this is the first process, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def say(text: str) -> None:
    """Print a line of a job, once however many processes there are."""
    if is_leader():
        print(text)  # noqa: T201


@contextmanager
def leader_first() -> Iterator[None]:
    """Let the first process do something before the others do the same."""
    from accelerate import PartialState

    with PartialState().main_process_first():
        yield
