"""SDPO with our feedback learns, and does not where there is nothing to learn from.

The short form of `benchmarks/learning.py`: a tiny Gemma 4 that knows a small world of tool
calls is trained by the trainer of the job where tools have names that it hardly ever uses.
Teaching it beforehand takes three minutes, so what came of that lies in `learned_base.safetensors`
(`python -m benchmarks.learning --out FOLDER --pack FILE` makes it).
"""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoTokenizer

from benchmarks.learning import ALONE, Setting
from benchmarks.learning_model import passes, unpack
from benchmarks.learning_task import RARE, requests, rows, scoring
from pimono_sdpo.training import output
from tests.training.setup import arguments, prepare

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


@pytest.mark.parametrize(("method", "updates"), [("rft", 4), ("grpo", 1)])
def test_the_rivals_learn_from_the_same_rollouts(base: Path, method: str, updates: int) -> None:
    changes = {"method": method, "num_iterations": updates, "teacher_model_kind": "base"}
    if method == "grpo":
        changes["distillation_weight"] = 0.0
    setting = Setting(method, "none", world="rare", steps=20 * updates, changes=changes)
    before, after = before_and_after(base, setting)
    assert before < 0.15
    assert after >= before + 0.4


def test_a_collapse_is_caught_and_the_best_adapter_is_what_remains(base: Path, tmp_path: Path) -> None:
    """A teacher that follows at once a student that learns too fast: it learns, then forgets."""
    asked, held_out = requests()
    args, model_args = arguments(
        tmp_path,
        base,
        **{"max_steps": 40, "learning_rate": 1e-2, "teacher_update_rate": 0.5},
        **{"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1},
        **{"num_generations": 4, "max_completion_length": 16, "max_reprompt_len": 512},
        **{"save_strategy": "steps", "save_steps": 2, "guard_window": 4, "seed": 0},
        lr_scheduler_type="constant",
        stop_on="reward_collapse",
    )
    tokenizer = AutoTokenizer.from_pretrained(base)
    prepared = prepare(args, model_args, rows(RARE, asked[:256]), scoring(), "rollout")
    prepared.run_steps()
    record, trainer = prepared.guards.record(), prepared.trainer
    assert record["stopped_by"] == "reward_collapse"
    assert record["went_back_to"] == record["best"]["step"] < trainer.state.global_step
    kept = fmean(passes(trainer.model, tokenizer, RARE, held_out))
    last = output.last_checkpoint(tmp_path)
    assert last is not None
    set_peft_model_state_dict(trainer.model, load_file(last / "adapter_model.safetensors"))
    collapsed = fmean(passes(trainer.model, tokenizer, RARE, held_out))
    assert collapsed < 0.15 < 0.3 < kept
