"""A tiny model, filtered rows and one finished training for the whole session."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from trl import ModelConfig

from pimono_sdpo.training import rows
from pimono_sdpo.training.method import Method
from pimono_sdpo.training.tiny_model import write_tiny_model
from tests.training.setup import SeenPrompts, arguments, hand_made, prepare


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads waiting for each other on a busy machine cost far more than they save here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in the layout the filter writes, rejects beside them."""
    folder = tmp_path_factory.mktemp("filtered") / "rows"
    for name in ("data", "rejects"):
        (folder / name).mkdir(parents=True)
    hand_made().to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    Dataset.from_dict({"drop_reason": ["no_evidence"]}).to_parquet(
        folder / "rejects" / "rejects-00000-of-00001.parquet"
    )
    return folder


@pytest.fixture(scope="session")
def straight(
    tmp_path_factory: pytest.TempPathFactory, tiny: Path, filtered: Path
) -> tuple[Method, dict[str, float], SeenPrompts, ModelConfig]:
    """Six steps without a break; an epoch has four."""
    args, model_args = arguments(tmp_path_factory.mktemp("straight"), tiny)
    prepared = prepare(args, model_args, rows.load_rows(str(filtered)))
    seen = SeenPrompts()
    prepared.trainer.add_callback(seen)
    return prepared, prepared.run_steps(), seen, model_args
