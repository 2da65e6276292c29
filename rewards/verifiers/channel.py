"""Write lines of JSON from a worker to the caller. Runs inside the sandbox."""

import json
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MAX_TEXT = 2000


def redirect_output() -> int:
    """Disconnect the standard streams from the code that runs here; return a descriptor of the output."""
    channel = os.dup(1)
    close_standard_streams()
    return channel


def close_standard_streams() -> None:
    """Connect the standard streams to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def make_writer(channel: int, start: bytes = b"") -> Callable[[Mapping[str, Any]], None]:
    """Return a function that writes a message as one complete line, after the prefix `start`."""
    # The code under test may replace these functions later.
    write, dumps = os.write, json.dumps

    def write_line(message: Mapping[str, Any]) -> None:
        data = memoryview(start + dumps(message).encode() + b"\n")
        while data:
            data = data[write(channel, data) :]

    return write_line


def format_location(failure: BaseException) -> str:
    """Return place and text of the last traceback line in a file of this run, "" when there is none."""
    root = f"{Path.cwd()}/"
    frames = traceback.extract_tb(failure.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(root)]
    return f"{own[-1].filename.removeprefix(root)}:{own[-1].lineno}: {own[-1].line}" if own else ""
