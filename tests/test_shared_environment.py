"""Other projects on the index have packages named as ours, and overwrite them or are overwritten."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["processors", "rewards", "cards"])
def test_a_package_of_another_project_is_found_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text('"""Playing cards."""\n')
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", "import pimono_sdpo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"ImportError: Another project has replaced or removed the package `{name}`" in done.stderr
    assert "uv tool install" in done.stderr
