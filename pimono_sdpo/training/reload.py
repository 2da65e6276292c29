"""Prove that a saved adapter, put on its base in a fresh process, is the model that was trained.

    python -m pimono_sdpo.training.reload OUTPUT

The training process leaves the logits of one prompt in OUTPUT/probe.safetensors; here they are
computed again from the adapter on disk.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import ModelConfig

from pimono_sdpo.runs.folders import read_json
from pimono_sdpo.training import models, output

PROBE = "The test run ends in `ENOENT`: which file is missing, and what do you do next?"
SETTINGS = ("dtype", "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "use_bnb_nested_quant")


def probe_logits(model: Any, tokenizer: Any) -> torch.Tensor:
    """Return the float32 logits of the token that would follow PROBE, shape (vocabulary,)."""
    was_training = model.training
    # With another layout the logits of a CPU would be those of other sums.
    models.keep_layout(model)
    models.limit_threads(model)
    model.eval()
    inputs = tokenizer(PROBE, return_tensors="pt").to(model.device)
    with torch.no_grad():
        logits: torch.Tensor = model(**inputs).logits[0, -1].float().cpu().contiguous()
    model.train(was_training)
    return logits


def write_probe(model: Any, tokenizer: Any, folder: Path) -> None:
    """Keep the logits of the model as trained."""
    save_file({"logits": probe_logits(model, tokenizer)}, folder / output.PROBE_FILE)


def load_adapter(folder: Path) -> tuple[Any, Any]:
    """Load the base a run was trained on, quantised as then, with the run's adapter on top."""
    run = output.read_finished(folder)
    # The published run.json names no folder of this machine.
    local = read_json(folder / output.LOCAL_FILE) or run
    name = str(local["base_model"])
    settings = ModelConfig(**{key: run["arguments"][key] for key in SETTINGS})
    revision = run["base_model_revision"]
    what = f"The base model `{name}` cannot be loaded with the adapter of `{folder}`"
    with models.translate_errors(what, "check both"):
        kwargs = models.model_init_kwargs(settings, revision)
        base = AutoModelForCausalLM.from_pretrained(name, **kwargs)
        model = PeftModel.from_pretrained(base, str(folder / output.ADAPTER))
        return model, AutoTokenizer.from_pretrained(name, revision=revision or "main")


def largest_difference(folder: Path) -> float:
    """Compare the logits of the reloaded adapter with those left by the training process."""
    model, tokenizer = load_adapter(folder)
    then = load_file(folder / output.PROBE_FILE)["logits"]
    return float((probe_logits(model, tokenizer) - then).abs().max())


if __name__ == "__main__":
    difference = largest_difference(Path(sys.argv[1]))
    sys.stdout.write(f"largest difference of the logits: {difference:g}\n")
    sys.exit(difference != 0)
