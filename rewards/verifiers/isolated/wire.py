"""Messages between the two processes: eight bytes of length, then JSON. Runs in the sandbox."""

import json
import os
from typing import Any

LARGEST = 64 << 20


def send(descriptor: int, message: dict[str, Any]) -> None:
    """Write one message, whole."""
    body = json.dumps(message).encode()
    left = memoryview(len(body).to_bytes(8, "little") + body)
    while left:
        left = left[os.write(descriptor, left) :]


def receive(descriptor: int) -> dict[str, Any]:
    """Read one message; EOFError when there is none, ValueError when it is none."""
    size = int.from_bytes(_exactly(descriptor, 8), "little")
    if size > LARGEST:
        raise ValueError(f"a message of {size} bytes")
    message = json.loads(_exactly(descriptor, size))
    if type(message) is not dict:
        raise ValueError("a message that is no object")
    return message


def _exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
