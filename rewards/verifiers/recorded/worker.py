"""Runs inside the sandbox: record a reference, call a candidate, or check what it replied.

The answer's process is forked before the job is read, so it never has the tests in its memory.
"""

import json
import os
import sys
from typing import Any, NoReturn

from rewards.verifiers.recorded import answer, values


def main() -> None:
    """Do the job that comes by the input; lines of JSON go to the output."""
    mode = sys.argv[1]
    requests, replies = os.pipe(), os.pipe()
    child = os.fork() if mode in ("record", "call") else -1
    if child == 0:
        _serve(requests[0], replies[1])
    os.close(requests[0])
    os.close(replies[1])
    job = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    if child > 0:
        values.send(requests[1], {key: job[key] for key in ("roots", "shared")})
    if mode == "call":
        _call(job["calls"], replies[0], requests[1], channel)
    else:
        _test(mode, job, channel, replies[0], requests[1])
    os._exit(0)


def _serve(reader: int, writer: int) -> NoReturn:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    low, high = sorted((reader, writer))
    os.closerange(3, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, os.sysconf("SC_OPEN_MAX"))
    try:
        answer.serve(reader, writer)
    finally:
        os._exit(1)


def _call(calls: list[dict[str, Any]], reader: int, writer: int, channel: int) -> None:
    """Hand over one call after the other; the next one is unknown until the reply is there."""
    for message in calls:
        values.send(writer, message)
        try:
            reply = values.receive(reader)
        except (EOFError, ValueError):
            return
        left = memoryview(json.dumps(reply).encode() + b"\n")
        while left:
            left = left[os.write(channel, left) :]


def _test(mode: str, job: dict[str, Any], channel: int, reader: int, writer: int) -> None:
    from rewards.verifiers.recorded import stubs

    if mode == "record":
        stubs.run(job, channel, lambda shared: stubs.Live(shared, reader, writer))
    else:
        stubs.run(job, channel, lambda shared: stubs.Replayed(shared, job["calls"]))
