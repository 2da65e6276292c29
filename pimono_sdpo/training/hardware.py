"""What a run has to fit in: a flavor of Hugging Face Jobs as the Hub lists it, or this machine."""

import re
from dataclasses import dataclass

import torch
from httpx2 import HTTPError
from huggingface_hub import HfApi

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.memory import GIB

PER_HOUR = {"minute": 60, "hour": 1, "second": 3600}


@dataclass(frozen=True)
class Hardware:
    """Memory of one GPU in GiB and dollars an hour of the whole; None where unknown."""

    name: str
    gib: float | None
    dollars_per_hour: float | None


def hardware_of(flavor: str | None) -> Hardware:
    """Return the flavor by the Hub's list, or what this machine has.

    Raises TrainingInputError for a flavor that is not listed, or when the Hub cannot be asked.
    """
    if flavor is None:
        return _here()
    try:
        listed = {item.name: item for item in HfApi().list_jobs_hardware()}
    except (HTTPError, OSError) as error:
        raise TrainingInputError(
            f"The Hub could not be asked about --flavor {flavor} ({type(error).__name__}); leave "
            "it out to judge by this machine."
        ) from error
    if flavor not in listed:
        raise TrainingInputError(f"There is no flavor `{flavor}`; give one of {', '.join(listed)}.")
    item = listed[flavor]
    dollars = item.unit_cost_usd * PER_HOUR[item.unit_label]
    if item.accelerator is None:
        return Hardware(flavor, None, dollars)
    size = re.match(r"([\d.]+) GB", item.accelerator.vram)
    # What the Hub lists is the memory of all GPUs of the flavor.
    total = float(size[1]) / int(item.accelerator.quantity) if size else None
    # Cards are sold in GB of 2**30 bytes, whatever the letters say.
    return Hardware(flavor, total, dollars)


def _here() -> Hardware:
    if not torch.cuda.is_available():
        return Hardware("this machine without a GPU", None, None)
    properties = torch.cuda.get_device_properties(0)
    return Hardware(properties.name, round(properties.total_memory / GIB, 1), None)
