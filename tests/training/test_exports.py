"""What steps and pairs write is what TRL's trainers take."""

from pathlib import Path

import pytest
import trl
from datasets import load_dataset
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from pimono_sdpo.cli.pairs import PairOptions, write_pairs
from pimono_sdpo.cli.steps import StepOptions, write_steps
from pimono_sdpo.training.tiny_model import write_tiny_model
from processors.rollouts.steps import Granularity
from tests.rollout_data import OTHER, final, read, rollout, write, write_folder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("granularity", ["step", "trajectory"])
def test_steps_train(granularity: Granularity, tiny: str, tmp_path: Path) -> None:
    rows = [rollout(f"fix_{n}", protocol="native") for n in range(2)]
    source = write_folder(tmp_path / "rollouts", rows)
    write_steps(
        StepOptions(
            source=[str(source)], out=tmp_path / "steps", granularity=granularity, tokenizer=tiny, max_length=4096
        )
    )
    dataset = load_dataset(str(tmp_path / "steps"), split="train", cache_dir=str(tmp_path / "cache"))
    config = SFTConfig(
        str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=1,
        assistant_only_loss=granularity == "trajectory",
        max_length=4096,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    if granularity == "trajectory":
        # TRL knows no template of Gemma 4 that marks the assistant's tokens.
        templates = Path(trl.__file__).parent / "chat_templates"
        tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text()
    trainer = SFTTrainer(tiny, config, train_dataset=dataset, processing_class=tokenizer)
    text = tokenizer.decode([i for i in trainer.train_dataset[-1]["labels"] if i >= 0])
    assert "return a + b" in text
    assert "return a - b" not in text
    assert len(trainer.train_dataset) == len(dataset)
    assert trainer.train().global_step == 2


@pytest.mark.parametrize("protocol", ["json", "native"])
def test_pairs_train(protocol: str, tiny: str, tmp_path: Path) -> None:
    fails = [read(), write(OTHER, False), final("done")]
    rows = [rollout("fix_a", 42, protocol=protocol), rollout("fix_a", 43, fails, protocol=protocol)]
    source = write_folder(tmp_path / "rollouts", rows)
    write_pairs(
        PairOptions(source=[str(source)], out=tmp_path / "pairs", tokenizer=tiny, max_length=4096, flaky_reruns=0)
    )
    dataset = load_dataset(str(tmp_path / "pairs"), split="train", cache_dir=str(tmp_path / "cache"))
    config = DPOConfig(
        str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=1,
        max_length=4096,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    trainer = DPOTrainer(tiny, args=config, train_dataset=dataset, processing_class=tokenizer)
    assert trainer.train().global_step == 2
    first = next(entry for entry in trainer.state.log_history if "loss" in entry)
    # Nothing is learned yet: both sides are as likely as under the reference.
    assert first["loss"] == pytest.approx(0.6931, abs=1e-3)
