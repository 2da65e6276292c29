"""Runs the training job several times in one process of its own, which imports torch once.

    python -m tests.training.in_turn '[{"cwd": ..., "argv": [...], "env": {...}}, ...]'

prints a JSON list of exit codes and of what each run said.
"""

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.training.setup import PYTHONPATH, script


def in_turn(env: dict[str, str], *runs: dict[str, Any]) -> list[tuple[int, str]]:
    """Run the job in each folder with its arguments; return exit codes and outputs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.in_turn", json.dumps(runs)],
        env=env | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [(code, said) for code, said in json.loads(done.stdout.splitlines()[-1])]


def one(cwd: str, argv: list[str], env: dict[str, str]) -> tuple[int, str]:
    Path(cwd).mkdir(exist_ok=True)
    os.chdir(cwd)
    for name in ("JOB_ID", "TIME_LIMIT", "HUB_MODEL_ID"):
        os.environ.pop(name, None)
    os.environ.update(env)
    said = io.StringIO()
    told = logging.StreamHandler(said)
    logging.getLogger().addHandler(told)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = script().main(argv)
    logging.getLogger().removeHandler(told)
    return code, said.getvalue()


if __name__ == "__main__":
    outcomes = [one(**run) for run in json.loads(sys.argv[1])]
    sys.stdout.write(f"\n{json.dumps(outcomes)}\n")
