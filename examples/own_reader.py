"""Filter sessions in a format that the package does not know.

    python examples/own_reader.py chat.log

The log has lines such as `user: ...`, `agent: ...`, `$ command` and `! output of a failed command`.
It is translated into the Hub's Session Trace Simple Format, which every command reads. To add a
format that is recognised automatically, write a harness: see CONTRIBUTING.md.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pimono_sdpo import load_sessions, pipeline, run_pipeline


def translate(log: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a session in the simple format."""
    yield {"type": "session", "harness": "chat-log", "id": "1", "cwd": "/home/me/project"}
    calls = 0
    for line in log.splitlines():
        mark, _, text = line.partition(" ")
        message: dict[str, Any] = {"role": "user", "content": text}
        if mark == "agent:":
            message["role"] = "assistant"
        elif mark == "$":
            calls += 1
            call = {"name": "bash", "arguments": {"command": text}}
            message = {"role": "assistant", "toolCalls": [{"id": str(calls), "function": call}]}
        elif mark in ("!", ">"):
            message = {"role": "tool", "toolCallId": str(calls), "content": text}
            message["isError"] = mark == "!"
        yield {"message": message}


def main(log: str) -> None:
    """Translate one log, filter it and print its rows."""
    with tempfile.TemporaryDirectory() as folder:
        lines = "".join(json.dumps(line) + "\n" for line in translate(Path(log).read_text()))
        (Path(folder) / "session.jsonl").write_text(lines)
        for row in run_pipeline(load_sessions(folder), pipeline(min_worth=0)):
            print(row["harness"], row["score"], row["categories"])
            print(row["privileged_context"])


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)
