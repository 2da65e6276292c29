"""Every `hf jobs` command of the documentation and of a model card is one that the real `hf` would launch."""

import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from cards.render import render_model_card
from tests.card_data import report, run
from tests.loopback_hub.hf import HF

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "docs" / "tutorials" / "train.md", ROOT / "README.md")
TEXTS = [*(page.read_text() for page in PAGES), render_model_card(report(), run())]
BLOCKS = [block for text in TEXTS for block in re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)]
COMMANDS = list(
    dict.fromkeys(
        line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines() if line.startswith("hf jobs ")
    )
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_documentation_would_be_launched(command: str, tmp_path: Path) -> None:
    # `make job` keeps the header of the script.
    words = [word.replace("dist/train", "jobs/train") for word in shlex.split(command)]
    assert words[:4] == ["hf", "jobs", "uv", "run"]
    done = subprocess.run(
        [str(HF), *words[1:4], "--dry-run", *words[4:]],
        cwd=ROOT,
        env={"HF_HOME": str(tmp_path), "HF_TOKEN": "hf_x", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = dict(re.findall(r"^  (\w+) +(.*)$", done.stdout + done.stderr, re.M))
    assert shown["args"] == " ".join(words[words.index("--") + 1 :])
    assert "HF_TOKEN=***" in shown["secrets"]
    given = dict(pairwise(words))
    # A job that is told another time than it has is killed, or ends early.
    assert f"TIME_LIMIT={shown['timeout'].split()[0]}" in shown["env"]
    assert shown["timeout"].split()[0] == given.get("--timeout", shown["timeout"].split()[0])
    if "train_sdpo" in command:
        assert shown["flavor"].split()[0] == given.get("--flavor", "a10g-large")
