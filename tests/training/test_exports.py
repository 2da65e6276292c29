"""What steps and pairs write is what TRL's trainers take."""

from pathlib import Path

import pytest
import trl
from datasets import load_dataset
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

from pimono_sdpo.commands.steps import run_steps
from pimono_sdpo.tiny_model import write_tiny_model
from tests.rollout_data import rollout, write_folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("granularity", ["step", "trajectory"])
def test_steps_train(granularity: str, tiny: str, tmp_path: Path) -> None:
    rows = [rollout(f"fix_{n}", protocol="native") for n in range(2)]
    source = write_folder(tmp_path / "rollouts", rows)
    run_steps(
        str(source), tmp_path / "steps", granularity=granularity, tokenizer=tiny, max_length=4096
    )
    dataset = load_dataset(
        str(tmp_path / "steps"), split="train", cache_dir=str(tmp_path / "cache")
    )
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
