"""SDPO with our feedback learns, and does not where there is nothing to learn from.

The short form of `tests/benchmarks/learning.py`: a tiny Gemma 4 that knows a small world of tool
calls is trained by the trainer of the job where tools have names that it hardly ever uses.
Teaching it beforehand takes three minutes, so what came of that lies in `learned_base.safetensors`
(`python -m tests.benchmarks.learning --out FOLDER --pack FILE` makes it).
"""

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.learning import ALONE, Setting
from tests.benchmarks.learning_model import unpack

pytestmark = pytest.mark.slow

LEARNED = Path(__file__).parent / "learned_base.safetensors"
SHORT: dict[str, Any] = {"world": "rare", "steps": 20, "changes": ALONE}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(LEARNED, tmp_path_factory.mktemp("learning") / "base")


def before_and_after(base: Path, setting: Setting) -> tuple[float, float]:
    passes = list(setting.train(base, seed=0, points=1)["passes"].values())
    return sum(passes[0]) / len(passes[0]), sum(passes[-1]) / len(passes[-1])


@pytest.mark.parametrize("mode", ["rollout", "trace"])
def test_feedback_alone_teaches_the_calls_that_this_world_takes(base: Path, mode: Any) -> None:
    before, after = before_and_after(base, Setting(mode, mode, **SHORT))
    assert before < 0.15
    assert after >= before + 0.2


def test_without_feedback_and_success_nothing_is_learned(base: Path) -> None:
    before, after = before_and_after(base, Setting("control", "none", hopeless=True, **SHORT))
    assert abs(after - before) <= 0.07
