"""Test that an edit of the code or its tables invalidates what `datasets` has cached."""

import shutil
import subprocess
import sys
from pathlib import Path

# The keys under which `datasets` caches what the stages return.
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from datasets.fingerprint import Hasher
from processors import PIPELINE
print(*map(Hasher.hash, PIPELINE))
"""


def test_an_edit_of_code_or_tables_changes_the_key_of_every_stage(tmp_path: Path) -> None:
    for package in ("pimono_sdpo", "processors", "rewards", "cards"):
        shutil.copytree(Path(__file__).parents[1] / package, tmp_path / package)

    def read_keys() -> list[str]:
        command = [sys.executable, "-P", "-c", SCRIPT, str(tmp_path)]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout.split()

    before = read_keys()
    assert len({*before}) > 8
    for name, old, new in (
        ("processors/grade.py", "CONTINUED = 1.5", "CONTINUED = 2.5"),
        ("pimono_sdpo/failures.toml", "weight = 0.5", "weight = 0.75"),
    ):
        text = (tmp_path / name).read_text()
        assert old in text
        (tmp_path / name).write_text(text.replace(old, new, 1))
        assert not {*before} & {*read_keys()}
        (tmp_path / name).write_text(text)
        assert read_keys() == before
