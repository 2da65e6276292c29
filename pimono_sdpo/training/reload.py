"""Prove that a saved adapter, put on its base in a fresh process, is the model that was trained.

    python -m pimono_sdpo.training.reload OUTPUT

The training process leaves the logits of one prompt in OUTPUT/probe.safetensors; here they are
computed again from the adapter on disk.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import ModelConfig

from pimono_sdpo.errors import PimonoError, TrainingInputError
from pimono_sdpo.training.models import model_init_kwargs
from pimono_sdpo.training.output import ADAPTER, RUN_FILE

PROBE_FILE = "probe.safetensors"
PROBE = "The test run ends in `ENOENT`: which file is missing, and what do you do next?"
SETTINGS = ("dtype", "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "use_bnb_nested_quant")


def probe_logits(model: Any, tokenizer: Any) -> torch.Tensor:
    """Return the float32 logits of the token that would follow PROBE, shape (vocabulary,)."""
    was_training = model.training
    model.eval()
    inputs = tokenizer(PROBE, return_tensors="pt").to(model.device)
    with torch.no_grad():
        logits: torch.Tensor = model(**inputs).logits[0, -1].float().cpu().contiguous()
    model.train(was_training)
    return logits


def write_probe(model: Any, tokenizer: Any, folder: Path) -> None:
    """Leave the logits of the model as trained."""
    save_file({"logits": probe_logits(model, tokenizer)}, folder / PROBE_FILE)


def load_adapter(output: Path) -> tuple[Any, Any]:
    """Load the base a run was trained on, quantised as then, with the run's adapter on top."""
    if not (output / RUN_FILE).is_file():
        raise TrainingInputError(
            f"`{output}` holds no {RUN_FILE}; give the output folder of a finished training."
        )
    run = json.loads((output / RUN_FILE).read_text())
    settings = ModelConfig(**{name: run["arguments"][name] for name in SETTINGS})
    kwargs = model_init_kwargs(settings, run["base_model_revision"])
    base = AutoModelForCausalLM.from_pretrained(run["base_model"], **kwargs)
    model = PeftModel.from_pretrained(base, str(output / ADAPTER))
    tokenizer = AutoTokenizer.from_pretrained(
        run["base_model"], revision=run["base_model_revision"] or "main"
    )
    return model, tokenizer


def largest_difference(output: Path) -> float:
    """Compare the logits of the reloaded adapter with those left by the training process."""
    model, tokenizer = load_adapter(output)
    then = load_file(output / PROBE_FILE)["logits"]
    return float((probe_logits(model, tokenizer) - then).abs().max())


def main() -> int:
    """Print the difference; exit code 1 when it is not zero, 2 when nothing can be compared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="output folder of a finished training")
    try:
        difference = largest_difference(parser.parse_args().output)
    except PimonoError as problem:
        sys.stderr.write(f"reload: {problem}\n")
        return 2
    sys.stdout.write(f"largest difference of the logits: {difference:g}\n")
    return 0 if difference == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
