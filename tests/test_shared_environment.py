"""Other projects on the index have packages named as ours, and overwrite them or are overwritten."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["processors", "rewards", "cards"])
@pytest.mark.parametrize("is_beside_ours", [True, False])
def test_a_package_of_another_project_is_found_out(tmp_path: Path, name: str, is_beside_ours: bool) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text('"""Playing cards."""\n')
    if is_beside_ours:
        for ours in {"pimono_sdpo", "processors", "rewards", "cards"} - {name}:
            (tmp_path / ours).mkdir()
            shutil.copy(ROOT / ours / "__init__.py", tmp_path / ours)
        for file in ("version.py", "__init__.pyi"):
            shutil.copy(ROOT / "pimono_sdpo" / file, tmp_path / "pimono_sdpo")
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
    if is_beside_ours:
        assert f"ImportError: Another project has replaced or removed the package `{name}`" in done.stderr
        assert "uv tool install" in done.stderr
    else:
        found = tmp_path / name / "__init__.py"
        assert f"ImportError: `{found}` is imported in the place of the package `{name}` of pimono" in done.stderr
