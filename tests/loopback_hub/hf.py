"""Runs the `hf` command line as a user of the Hub, in a process of its own."""

import subprocess
import sys
from pathlib import Path

from tests.loopback_hub.server import TOKEN, LoopbackHub

HF = Path(sys.executable).with_name("hf")


def run_hf(
    hub: LoopbackHub, home: Path, *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `hf ARGUMENTS` in `cwd` (`home` when left out), signed in, large files by xet."""
    return subprocess.run(
        [str(HF), *arguments],
        cwd=cwd or home,
        env=hub.env(home, TOKEN, xet=True) | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
