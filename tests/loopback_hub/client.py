"""Runs a Python script as a client of the Hub, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.loopback_hub.server import TOKEN, LoopbackHub


def run_client(
    hub: LoopbackHub, home: Path, script: str, token: str | None = TOKEN, xet: bool = False
) -> Any:
    """Run `script` in the folder `home` and return the JSON on the last line it prints."""
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=home,
        env=hub.env(home, token, xet),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
