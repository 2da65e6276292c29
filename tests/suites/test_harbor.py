"""Harbor tasks are converted to a suite, or refused with a reason."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pimono_sdpo.agent.task_tests import run_tests
from pimono_sdpo.cli import app
from pimono_sdpo.errors import SourceError
from pimono_sdpo.suites.build import build_suite
from pimono_sdpo.suites.suite import files_of, load_suite

# As `harbor task init` writes it.
TOML = """version = "1.0"

[metadata]
author_name = "A. Author"
difficulty = "easy"
category = "programming"

[verifier]
timeout_sec = 120.0

[agent]
timeout_sec = 120.0

[environment]
build_timeout_sec = 600.0
cpus = 1
"""
DOCKERFILE = """FROM python:3.13-slim-bookworm@sha256:9d7f28

# Where the agent works.
WORKDIR /app
COPY total.py ./
COPY data /app/data
"""
SCRIPT = """#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env

if [ "$PWD" = "/" ]; then
    echo "Error: No working directory set."
    exit 1
fi

uvx \\
  -p 3.13 \\
  -w pytest==8.4.1 \\
  -w pytest-json-ctrf==0.3.5 \\
  pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA

if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
TEST = """import subprocess, sys
from pathlib import Path


def test_total():
    expected = Path("/tests/expected.txt").read_text()
    command = [sys.executable, "/app/total.py", "/app/data/numbers.txt"]
    assert Path("/app").is_dir()
    assert subprocess.run(command, capture_output=True, text=True).stdout == expected
"""
BUGGY = "import sys\nprint(max(map(int, open(sys.argv[1]))))\n"
FIXED = BUGGY.replace("max", "sum")
SOLUTION = "#!/bin/bash\nsed -i s/max/sum/ /app/total.py\n"


def write_task(root: Path, name: str, **changes: str) -> Path:
    """A task that can be used; `changes` replaces its files, by the last part of their names."""
    texts = {
        "task.toml": TOML, "instruction.md": "`/app/total.py` must print the sum.\n",
        "environment/Dockerfile": DOCKERFILE, "environment/total.py": BUGGY,
        "environment/data/numbers.txt": "1\n2\n", "tests/test.sh": SCRIPT,
        "tests/test_outputs.py": TEST, "tests/expected.txt": "3\n",
        "solution/solve.sh": SOLUTION,
    }  # fmt: skip
    for path, text in texts.items():
        file = root / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(changes.get(file.stem, text))
    return root


def test_a_task_of_harbor_is_judged_by_its_own_tests(tmp_path: Path) -> None:
    root = write_task(tmp_path / "tasks", "fix-total")
    line = ["suite", "build", str(root), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, line, catch_exceptions=False)
    assert "1 tasks are in" in done.output
    (task,) = load_suite(tmp_path / "out", outside=False).tasks
    assert task["task_id"] == "fix-total"
    assert task["goal"].startswith("`/app/total.py` must print the sum.")
    assert files_of(Path(task["repo"]), task["hide"]) == {
        "data/numbers.txt": "1\n2\n", "total.py": BUGGY,
    }  # fmt: skip
    assert run_tests(task, {}).ok is False
    assert run_tests(task, {"total.py": FIXED.encode()}).ok is True
    cheat = {"harbor_tests/test_outputs.py": b"def test(): pass\n"}
    assert run_tests(task, cheat).ok is False


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Dockerfile": "FROM swebench/sweb.eval:latest\nWORKDIR /app\n"}, "fail after its own solution"),
        ({"Dockerfile": "FROM python:3.13\nCOPY total.py /\n"}, "names no WORKDIR"),
        ({"Dockerfile": "FROM python:3.13\nWORKDIR /app\nCOPY total.py /usr/bin/\n"}, "fail after its own solution"),
        ({"test": SCRIPT.replace("apt-get update", "make all")}, "more than run pytest: `make all`"),
        ({"test": "echo 1 > /logs/verifier/reward.txt\n"}, "not run by pytest"),
        ({"test_outputs": "import of_the_image\n" + TEST}, "fail after its own solution"),
        ({"total": FIXED}, "pass before anything is done"),
        ({"solve": "gcc -o total total.c\n"}, "fail after its own solution"),
    ],
)
def test_what_needs_an_image_is_refused_and_counted(changes: dict[str, str], reason: str, tmp_path: Path) -> None:
    root = write_task(tmp_path / "tasks", "other", **changes)
    with pytest.raises(SourceError, match=f"None of the 1 tasks .*{reason}"):
        build_suite(str(root), tmp_path / "out")
    write_task(root, "good")
    rows, left_out = build_suite(str(root), tmp_path / "out")
    assert [row["task_id"] for row in rows] == ["good"]
    assert reason in left_out["other"]
    assert [one["task_id"] for one in json.loads((tmp_path / "out/suite.json").read_text())["tasks"]]


def test_what_the_image_installs_may_be_missing_where_the_solution_passes_without(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "fix-total", Dockerfile=DOCKERFILE + "RUN apt-get install -y gcc\n")
    write_task(tmp_path / "tasks", "unknown")
    (tmp_path / "tasks" / "unknown" / "solution" / "solve.sh").unlink()
    rows, left_out = build_suite(str(tmp_path / "tasks"), tmp_path / "out")
    assert [row["task_id"] for row in rows] == ["fix-total"]
    assert "no solution/solve.sh" in left_out["unknown"]
