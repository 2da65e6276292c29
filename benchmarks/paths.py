"""How many files of this project one session, one verdict and one smoke training pass through.

    python -m benchmarks.paths [session] [verdict] [training]

Functions that run are counted with `sys.setprofile`, in this process and its threads; what only
runs while a module is imported does not count. A call from one file to another is counted once.
"""

import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = ("pimono_sdpo", "processors", "rewards", "cards", "jobs")
SPEC: dict[str, Any] = {
    "files": {"sort.py": "def sort(xs):\n    return sorted(set(xs))\n"},
    "tests": {
        "kind": "value",
        "module": "sort.py",
        "entry": "sort",
        "cases": [{"args": [[3, 1, 3]], "expected": [1, 3, 3]}],
    },
}


def profile(run: Callable[[], object]) -> tuple[int, int, int]:
    """Return the files, the functions and the calls between files of what runs."""
    functions: set[tuple[str, int]] = set()
    calls: set[tuple[str, int, str, int]] = set()

    def name_file(frame: FrameType | None) -> str | None:
        path = Path(frame.f_code.co_filename) if frame else None
        if path is None or not path.is_relative_to(ROOT):
            return None
        relative = path.relative_to(ROOT)
        return str(relative) if relative.parts[0] in OURS else None

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        if (callee := name_file(frame)) is None:
            return
        functions.add((callee, frame.f_code.co_firstlineno))
        caller = name_file(frame.f_back)
        if caller not in (None, callee) and frame.f_back is not None:
            line = frame.f_back.f_code.co_firstlineno
            calls.add((str(caller), line, callee, frame.f_code.co_firstlineno))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    except SystemExit as exit:
        if exit.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return len({file for file, _ in functions}), len(functions), len(calls)


def filter_session(folder: Path) -> None:
    """Filter one sample session of Pi."""
    from pimono_sdpo.cli import main as run_command

    session = ROOT / "pimono_sdpo/samples/sessions/01_parser_six_categories.jsonl"
    sys.argv = ["pimono-sdpo", "filter", str(session), "--out", str(folder / "rows")]
    run_command()


def judge_value(folder: Path) -> None:
    """Judge a completion by a value case."""
    from rewards.verifiers import tests

    tests.verify("```python\ndef sort(xs):\n    return sorted(xs)\n```", SPEC)


def train_smoke(folder: Path) -> None:
    """Train the tiny model for one step on rows of the samples."""
    command = str(Path(sys.executable).with_name("pimono-sdpo"))
    for args in (
        ("demo", "sessions", "--out", str(folder / "sessions")),
        ("filter", str(folder / "sessions"), "--out", str(folder / "rows")),
        ("demo", "model", "--out", str(folder / "model")),
    ):
        subprocess.run((command, *args), check=True, capture_output=True)
    script = str(ROOT / "jobs" / "train_sdpo.py")
    os.environ["TRACKIO_DIR"] = str(folder / "trackio")
    sys.argv = [
        *(script, "--config", "tiny", "--dataset", str(folder / "rows")),
        *("--model_name_or_path", str(folder / "model"), "--output_dir", str(folder / "out")),
    ]
    runpy.run_path(script, run_name="__main__")


CASES = {"session": filter_session, "verdict": judge_value, "training": train_smoke}


def main() -> None:
    """Measure each case in a process of its own, so that none warms another up."""
    wanted = sys.argv[1:] or list(CASES)
    if len(wanted) > 1:
        for name in wanted:
            subprocess.run((sys.executable, "-m", "benchmarks.paths", name), check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        files, functions, calls = profile(lambda: CASES[wanted[0]](Path(folder)))
    print(f"{wanted[0]:10} {files:4} files {functions:5} functions {calls:5} calls between files")


if __name__ == "__main__":
    main()
