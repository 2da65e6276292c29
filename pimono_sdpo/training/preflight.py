"""Check before the first step what would otherwise fail after hours.

Nothing is learned, logged or drawn from the run's random numbers, so the run that follows is the
same as without a preflight.

| part | what it shows | stops a training when |
|---|---|---|
| rows | how many are used, and which were cut or left out | a row cannot be fitted, none is left |
| template | that rows pass through the chat template whole | they do not |
| lengths | tokens of each row, beside the budgets | |
| memory | the peak by tensor shapes, and measured where there is a GPU | it does not fit |

SDPO also samples from the model, see rollouts.py.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.memory import GIB, Estimate, Hardware
from pimono_sdpo.training.method import Fitted, Lines, Method, Prepared
from pimono_sdpo.training.processes import say

Json = dict[str, Any]
# What CUDA and the allocator's gaps leave of a card's memory.
USABLE = 0.94


def preflight(
    method: Method, fitted: Fitted, hardware: Hardware, prepared: Prepared | None = None
) -> Json:
    """Return everything that is found before the first step, as JSON.

    `stops` are the reasons not to train. Without a prepared trainer nothing is sampled.
    """
    peak, budgets = method.estimate(fitted), method.budgets(fitted)
    found: Json = {
        "rows": {"given": fitted.given, "used": len(fitted.rows), **fitted.counts},
        **method.try_rewards(fitted),
        "templates_checked": method.check_templates(fitted),
        "lengths": {
            name: lengths_of(lengths, budgets[name]) for name, lengths in fitted.lengths.items()
        },
        "memory": memory_of(peak, hardware),
    }
    stops: list[str] = []
    if prepared is not None:
        try:
            sampled, stops, peak_bytes = method.try_rollouts(prepared, hardware)
        except torch.OutOfMemoryError as error:
            raise TrainingInputError(
                f"The GPU has not enough memory for a step; give {peak.advice()}."
            ) from error
        found |= sampled
        if peak_bytes is not None:
            found["memory"]["measured_gib"] = round(peak_bytes / GIB, 2)
    return {**found, "stops": [*too_little_memory(found["memory"]), *stops]}


def refuse(found: Json, forced: bool) -> None:
    """Raise TrainingInputError with the first reason not to train; with --force, only print it."""
    stops = found["stops"]
    if not stops:
        return
    if forced:
        say(f"--force trains all the same: {' '.join(stops)}")
    else:
        more = f" (and {len(stops) - 1} more)" if len(stops) > 1 else ""
        raise TrainingInputError(f"{stops[0]}{more} Give --force to train all the same.")


def memory_of(estimate: Estimate, hardware: Hardware) -> Json:
    """Return an estimate beside what is available, in GiB, and what lowers it."""
    return {
        "parts_gib": {name: round(size / GIB, 2) for name, size in estimate.parts.items()},
        "total_gib": round(estimate.total / GIB, 2),
        "available_gib": hardware.gib,
        "of": hardware.name,
        "lowered_by": estimate.advice(),
    }


def too_little_memory(memory: Json) -> list[str]:
    """Return the reason not to train when there is too little memory."""
    needed = memory.get("measured_gib", memory["total_gib"])
    if memory["available_gib"] is None or needed <= USABLE * memory["available_gib"]:
        return []
    return [
        f"A step needs about {needed} GiB and {memory['of']} has {memory['available_gib']}; "
        f"give {memory['lowered_by']}."
    ]


def lengths_of(lengths: Sequence[int], budget: int | None) -> Json:
    """Return median, 90th percentile and most of the lengths, and how many are over the budget."""
    shares = np.percentile(lengths, [50, 90, 100]).tolist()
    return {
        "budget": budget,
        **{name: int(value) for name, value in zip(("p50", "p90", "max"), shares, strict=True)},
        "over": sum(length > budget for length in lengths) if budget is not None else 0,
    }


def as_text(method: Method, found: Json) -> str:
    """Lay out what was found in lines of a name and what is known about it."""
    before, after = method.describe(found)
    lines = [*before, *_describe_lengths(found["lengths"])]
    lines += [*_describe_memory(found["memory"]), *after]
    return "\n".join(f"{name:<16}{text}" for name, text in lines)


def _describe_lengths(found: Json) -> Iterator[tuple[str, str]]:
    for name, lengths in found.items():
        text = f"{lengths['p50']} tokens (median), {lengths['p90']} (p90), {lengths['max']} (max)"
        if lengths["budget"] is not None:
            text += f"; {lengths['over']} rows over the budget of {lengths['budget']}"
        yield name.replace("_", " "), text


def _describe_memory(memory: Json) -> Lines:
    parts = ", ".join(f"{name} {size}" for name, size in memory["parts_gib"].items() if size)
    measured = f", {memory['measured_gib']} measured" if "measured_gib" in memory else ""
    there = f" of {memory['available_gib']}" if memory["available_gib"] is not None else ""
    needed = f"{memory['total_gib']} GiB{measured}{there} on {memory['of']} ({parts})"
    return [("memory", needed), ("", f"lowered by {memory['lowered_by']}")]
