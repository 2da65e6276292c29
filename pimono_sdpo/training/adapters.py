"""The adapter that a training goes on from: found, checked against its base, told apart.

reads adapter_config.json and adapter_model.safetensors of a folder or of a Hub repository
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from trl import ModelConfig

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.models import published_base
from pimono_sdpo.training.output import read_object
from pimono_sdpo.training.publish import WEIGHTS
from pimono_sdpo.training.rows import dataset_name, is_local


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter on this machine.

    name       as a card may give it, without this machine's path
    identity   what its weights are: their hash
    """

    folder: Path
    name: str
    identity: str
    config: dict[str, Any]


def open_adapter(name: str, model_args: ModelConfig) -> Adapter:
    """Return the adapter, and settle the LoRA arguments by it, in place.

    Raises TrainingInputError when there is none, it is no LoRA, or it is of another base model.
    """
    folder = _folder(name)
    config = read_object(folder / WEIGHTS[1])
    if config is None or not (folder / WEIGHTS[0]).is_file():
        raise TrainingInputError(
            f"`{name}` holds no {WEIGHTS[0]} with its {WEIGHTS[1]}; give the folder or the Hub id "
            "of a LoRA adapter, such as OUTPUT/adapter of train_sft."
        )
    if config.get("peft_type") != "LORA":
        raise TrainingInputError(
            f"The adapter `{name}` is of the kind {config.get('peft_type')}; give a LoRA adapter."
        )
    base, given = str(config.get("base_model_name_or_path")), str(model_args.model_name_or_path)
    if _last(base) != _last(given):
        raise TrainingInputError(
            f"The adapter `{name}` is for the base model `{published_base(base)}`, and not for "
            f"`{published_base(given)}`; give that as --model_name_or_path."
        )
    model_args.use_peft = True
    model_args.lora_r, model_args.lora_alpha = config["r"], config["lora_alpha"]
    model_args.lora_dropout = config["lora_dropout"]
    model_args.lora_target_modules = config["target_modules"]
    model_args.use_rslora = bool(config.get("use_rslora"))
    model_args.use_dora = bool(config.get("use_dora"))
    weights = hashlib.sha256((folder / WEIGHTS[0]).read_bytes()).hexdigest()[:12]
    return Adapter(folder, dataset_name(name), f"{dataset_name(name)} ({weights})", config)


def _folder(name: str) -> Path:
    if is_local(name):
        return Path(name)
    try:
        return Path(snapshot_download(name, allow_patterns=list(WEIGHTS)))
    except RepositoryNotFoundError as error:
        raise TrainingInputError(
            f"`{name}` is neither a folder here nor a model this account can see on the Hub; check "
            "--adapter, or set HF_TOKEN when it is private."
        ) from error
    except (OSError, HFValidationError) as error:
        # Every way of not reaching the Hub ends here, once the local cache has been tried.
        raise TrainingInputError(
            f"The adapter `{name}` could not be fetched from the Hub ({type(error).__name__}); "
            "check the name and the network."
        ) from error


def _last(name: str) -> str:
    """Return a Hub id, or the name of a folder, as save_adapter writes it down."""
    return Path(name).resolve().name if is_local(name) else name
