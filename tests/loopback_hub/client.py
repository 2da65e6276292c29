"""Runs Python as a client of the Hub, in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.loopback_hub.server import TOKEN, LoopbackHub

IMPORTED = ("datasets", "cards", "processors", "pimono_sdpo.cli")


def run_client(
    hub: LoopbackHub,
    home: Path,
    script: str,
    token: str | None = TOKEN,
    xet: bool = False,
    imported: tuple[str, ...] = IMPORTED,
) -> Any:
    """Run `script` in the folder `home` and return the JSON on the last line it prints."""
    home.mkdir(exist_ok=True)
    done = run_python(hub, home, "-c", script, token=token, xet=xet, imported=imported)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run_python(
    hub: LoopbackHub,
    home: Path,
    *arguments: str,
    token: str | None = TOKEN,
    xet: bool = False,
    imported: tuple[str, ...] = IMPORTED,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` in the folder `home`.

    The process is forked from one that has imported what is dear (`imported`), unless the
    environment asks for what is decided on import.
    """
    env = {**hub.env(home, token, xet), **(environment or {})}
    if hub.forks is not None and not environment:
        return hub.forks(imported, xet).run(arguments, home, env)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=False, timeout=600)
