"""A copy of this project to plug things into, as a contributor would: new files, and lines."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("pimono_sdpo", "processors", "rewards", "cards", "jobs")


def copy_project(folder: Path, *more: str) -> Path:
    """Copy the packages, and more files or folders by their paths."""
    for name in (*PACKAGES, *more):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    return folder


def insert_line(path: Path, line: str, after: str) -> None:
    """Insert a line after the one line of a file that ends so."""
    lines = path.read_text().split("\n")
    [place] = [number for number, known in enumerate(lines) if known.endswith(after)]
    path.write_text("\n".join([*lines[: place + 1], line, *lines[place + 1 :]]))


def run_python(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a copy, so that its packages are imported and not ours."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        check=False,
    )
