"""The guides as a reader follows them: every block of a page in its order, in one folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pimono_sdpo.samples import SAMPLE_SESSIONS
from tests.test_docs import BLOCK, GUIDES, ROOT, lines_of

PLACES = (".claude/projects/-home-ann-shop", ".codex/sessions/2026/01/02", ".pi/agent/sessions/shop")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with sessions in the usual places."""
    for place in PLACES:
        (tmp_path / "home" / place).mkdir(parents=True)
        for path in Path(str(SAMPLE_SESSIONS)).glob("*.jsonl"):
            shutil.copy(path, tmp_path / "home" / place)
    return tmp_path / "home"


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_can_be_followed(guide: str, home: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    kept = {name: value for name, value in os.environ.items() if "TRACKIO" not in name}
    environment = {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    text = (ROOT / "docs" / "tutorials" / f"{guide}.md").read_text()
    for compiled, language, block in BLOCK.findall(text):
        if compiled:
            if language == "python":
                compile(block, guide, "exec")
            continue
        named = re.match(r"# (\w+\.py)\n", block)
        if named:
            (here / named[1]).write_text(block)
        commands = [["-c", block]]
        if language == "bash":
            lines = list(lines_of(block))
            assert {words[0] for words in lines} == {"pimono-sdpo"}
            commands = [["-m", "pimono_sdpo", *words[1:]] for words in lines]
        for command in commands:
            done = subprocess.run(
                [sys.executable, *command], cwd=here, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-3000:])
