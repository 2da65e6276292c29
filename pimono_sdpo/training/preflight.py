"""Check before the first step what would otherwise fail after hours.

Nothing is learned, logged or drawn from the run's random numbers, so the run that follows is the
same as without a preflight.

| part | what it shows | stops a training when |
|---|---|---|
| rows | how many are used, and which were cut or left out | a row cannot be fitted, none is left |
| template | that rows pass through the chat template whole | they do not |
| lengths | tokens of each row, beside the budgets | |
| memory | the peak by tensor shapes, and measured where there is a GPU | it does not fit |

SDPO also samples a few completions from the model.

| part | what it shows | stops a training when |
|---|---|---|
| rollouts | the reward of a few real completions | nothing would be reprompted |
| teacher gap | how much feedback adds to the reward of fresh completions | its interval ends at 0 |
| time | seconds of a step, from the rollouts; the cost on a flavor | |

The first teacher is the student itself. If feedback does not help it, there is nothing to distil
(the gap at the start predicts the gain: arXiv:2605.30070).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from time import monotonic
from typing import Any

import numpy as np
import torch
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.stats import cluster_interval
from pimono_sdpo.training import say
from pimono_sdpo.training.held_out import sample_rewards, untouched
from pimono_sdpo.training.memory import GIB, Estimate, Hardware
from pimono_sdpo.training.method import Fitted, Lines, Method, Prepared

Json = dict[str, Any]
# What CUDA and the allocator's gaps leave of a card's memory.
USABLE = 0.94


def preflight(
    method: Method, fitted: Fitted, hardware: Hardware, prepared: Prepared | None = None
) -> Json:
    """Return everything that is found before the first step, as JSON.

    `stops` are the reasons not to train. Without a prepared trainer nothing is sampled.
    """
    with method.translate_errors():
        peak = method.estimate(fitted)
    budgets = method.budgets(fitted)
    memory = memory_of(peak, hardware)
    found: Json = {
        "rows": {"given": fitted.given, "used": len(fitted.rows), **fitted.counts},
        **method.try_rewards(fitted),
        "templates_checked": method.check_templates(fitted),
        "lengths": {
            name: lengths_of(lengths, budgets[name]) for name, lengths in fitted.lengths.items()
        },
        "memory": memory,
        "stops": [*too_little_memory(memory), *no_bfloat16(method.model_args.dtype, hardware)],
    }
    return found if prepared is None else add_rollouts(found, prepared, hardware)


def add_rollouts(found: Json, prepared: Prepared, hardware: Hardware) -> Json:
    """Return what was found without weights together with what a few rollouts show."""
    memory = dict(found["memory"])
    try:
        sampled, stops, peak_bytes = prepared.method.try_rollouts(prepared, hardware)
    except torch.OutOfMemoryError as error:
        raise TrainingInputError(
            f"The GPU has not enough memory for a step; give {memory['lowered_by']}."
        ) from error
    if peak_bytes is not None:
        memory["measured_gib"] = round(peak_bytes / GIB, 2)
    others = [stop for stop in found["stops"] if stop not in too_little_memory(found["memory"])]
    stops = [*too_little_memory(memory), *others, *stops]
    return {**found, **sampled, "memory": memory, "stops": stops}


def no_bfloat16(dtype: str | None, hardware: Hardware) -> list[str]:
    """Return the reason not to train in bfloat16 on a GPU that cannot compute in it."""
    if dtype != "bfloat16" or hardware.bfloat16:
        return []
    return [
        f"{hardware.name} cannot compute in bfloat16; give --dtype float16, or a newer GPU such as "
        "an A10G."
    ]


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


@dataclass(frozen=True)
class Probe:
    """What a few real completions showed.

    rewards             of the student, one list per group of completions of one prompt
    student, teacher    rewards of fresh completions without and with the feedback on a failed
                        completion of the first list; one pair of lists per row
    generation_seconds  of one generation batch
    update_seconds      of loss and gradient on one micro-batch of it
    peak_bytes          of the GPU's memory meanwhile; None on a CPU
    """

    rewards: list[list[float]]
    student: list[list[float]]
    teacher: list[list[float]]
    generation_seconds: float
    update_seconds: float
    peak_bytes: int | None


def probe(trainer: SDPOTrainer, rows: int, longest: int = 0) -> Probe:
    """Sample completions of the longest row and the first ones, and of their teachers' prompts.

    The teacher gets feedback on other completions than those it is compared with: a failure picked
    for its feedback would make the student look worse than it is.
    """
    dataset, group = trainer.train_dataset, trainer.num_generations
    indices = [longest, *(index for index in range(len(dataset)) if index != longest)]
    chosen = [dict(dataset[index]) for index in indices[:rows]]
    # No more at once than a step samples, or the memory would not be that of the run.
    at_once = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
    size = max(1, at_once // group)
    found: list[Probe] = []
    with untouched(trainer):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        for start in range(0, len(chosen), size):
            found.append(_try(trainer, chosen[start : start + size]))
        peak = None
        if torch.cuda.is_available():
            # Adam keeps two float32 numbers of each weight that is trained.
            trained = (one.numel() for one in trainer.model.parameters() if one.requires_grad)
            peak = torch.cuda.max_memory_allocated() + 8 * sum(trained)
    return Probe(
        [group for one in found for group in one.rewards],
        [row for one in found for row in one.student],
        [row for one in found for row in one.teacher],
        max(one.generation_seconds for one in found),
        max(one.update_seconds for one in found),
        peak,
    )


def _try(trainer: SDPOTrainer, chosen: list[dict[str, Any]]) -> Probe:
    group = trainer.num_generations
    inputs = [row for row in chosen for _ in range(group)]
    began = monotonic()
    batch = trainer._prepare_training_batch(inputs)
    generation_seconds = monotonic() - began
    rewards = batch["rewards"].view(-1, group).tolist()
    size = trainer.args.per_device_train_batch_size
    update_seconds = _update(trainer, {name: value[:size] for name, value in batch.items()})
    if torch.cuda.is_available():
        _update(trainer, at_full_length(batch, size, trainer.max_completion_length))
    masked = batch["self_distillation_mask"].bool().tolist()
    width = batch["completion_ids"].size(1)
    prompts = [
        ids[:-width][mask[:-width].bool()].tolist()
        for ids, mask in zip(
            batch["teacher_input_ids"], batch["teacher_attention_mask"], strict=True
        )
    ]
    reprompted = [index for index, is_masked in enumerate(masked) if is_masked]
    by_student: list[float] = []
    by_teacher: list[float] = []
    if reprompted:
        again = [inputs[index] for index in reprompted]
        plain = trainer._tokenize_prompts([row["prompt"] for row in again])
        by_student = sample_rewards(trainer, again, plain)
        by_teacher = sample_rewards(trainer, again, [prompts[index] for index in reprompted])
    return Probe(
        rewards,
        _by_row(by_student, reprompted, group),
        _by_row(by_teacher, reprompted, group),
        generation_seconds,
        update_seconds,
        None,
    )


def at_full_length(batch: dict[str, Any], size: int, length: int) -> dict[str, Any]:
    """Return the `size` rows with the longest teacher's prompts, and completions of full length."""
    width = batch["completion_ids"].size(1)
    order = batch["teacher_attention_mask"].sum(1).argsort(descending=True)[:size]
    part = {name: value[order] for name, value in batch.items()}
    for name in ("completion_ids", "teacher_input_ids", "old_per_token_logps"):
        if name in part:
            part[name] = torch.nn.functional.pad(part[name], (0, length - width))
    part["completion_mask"] = torch.ones_like(part["completion_ids"])
    prompts = part["teacher_attention_mask"][:, :-width]
    part["teacher_attention_mask"] = torch.cat([prompts, part["completion_mask"]], dim=1)
    part["self_distillation_mask"] = torch.ones_like(part["self_distillation_mask"])
    return part


def _update(trainer: SDPOTrainer, part: dict[str, Any]) -> float:
    """Return the seconds of loss and gradient on one micro-batch; the gradient is thrown away."""
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    began = monotonic()
    loss = trainer.compute_loss(trainer.model, part)
    loss.backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    trainer.model.zero_grad()
    return monotonic() - began


def _by_row(values: Sequence[float], indices: Sequence[int], group: int) -> list[list[float]]:
    rows: dict[int, list[float]] = {}
    for index, value in zip(indices, values, strict=True):
        rows.setdefault(index // group, []).append(value)
    return list(rows.values())


def summarise(probe: Probe, args: SDPOConfig, rows: int, hardware: Hardware) -> Json:
    """Return what a probe showed, as JSON."""
    return {
        "rollouts": _rollouts(probe, args.success_reward_threshold),
        "teacher_gap": teacher_gap(probe),
        "time": step_time(probe, args, rows, hardware),
    }


def _rollouts(probe: Probe, threshold: float) -> Json:
    rewards = np.array(probe.rewards)
    flat = np.ptp(rewards, axis=1) == 0
    return {
        "rows": len(rewards),
        "completions": rewards.size,
        "reward_mean": float(rewards.mean()),
        "reward_min": float(rewards.min()),
        "reward_max": float(rewards.max()),
        "success_share": float((rewards >= threshold).mean()),
        "flat_group_share": float(flat.mean()),
    }


def teacher_gap(probe: Probe) -> Json | None:
    """Return the gap with its interval at 90 %; None when nothing was reprompted."""
    if not probe.teacher:
        return None
    pairs = zip(probe.teacher, probe.student, strict=True)
    differences = [
        [one - other for one, other in zip(with_it, without, strict=True)]
        for with_it, without in pairs
    ]
    interval = cluster_interval(differences, level=0.9)
    bounds = [None if math.isnan(bound) else bound for bound in (interval.low, interval.high)]
    return {
        "rows": len(probe.teacher),
        "student": fmean(chain(*probe.student)),
        "teacher": fmean(chain(*probe.teacher)),
        "gap": interval.mean,
        "interval_90": bounds,
    }


def step_time(probe: Probe, args: SDPOConfig, rows: int, hardware: Hardware) -> Json:
    """Return the seconds of a step, and the hours and dollars of the whole training."""
    micro = args.gradient_accumulation_steps
    rounds = max(1, micro // args.steps_per_generation)
    step = rounds * probe.generation_seconds + micro * probe.update_seconds
    per_step = args.per_device_train_batch_size * micro * args.world_size
    epoch = math.ceil(rows * args.num_generations / per_step)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
    hours = steps * step / 3600
    price = hardware.dollars_per_hour
    return {
        "generation_seconds": round(probe.generation_seconds, 3),
        "update_seconds": round(probe.update_seconds, 3),
        "step_seconds": round(step, 3),
        "steps": steps,
        "hours": round(hours, 3),
        "dollars": None if price is None else round(hours * price, 2),
    }


def stops_of(found: Json, method: str) -> list[str]:
    """Return the reasons not to train; methods without a teacher need no gap."""
    if method != "sdpo":
        return []
    gap = found["teacher_gap"]
    if gap is None and found["rollouts"]["success_share"] == 0:
        return [
            "No completion succeeded and none was given feedback, so nothing would be learned; "
            "give rows with a privileged_context, or another --feedback."
        ]
    if gap is not None and is_useless(gap):
        return [
            f"The model does no better with the feedback (mean reward {gap['teacher']:.3f} with, "
            f"{gap['student']:.3f} without), so there is nothing to distil; give other rows, "
            "another reward or a more capable model."
        ]
    return []


def recommend(found: Json) -> str:
    """Return the method that these rollouts speak for, and why.

    On our toy tasks rejection-sampling fine-tuning with four updates a batch was the best and the
    cheapest wherever something succeeded; a few rollouts cannot tell how rare success is.
    """
    gap, share = found["teacher_gap"], found["rollouts"]["success_share"]
    helps = gap is not None and not is_useless(gap)
    if share and helps:
        return "rft with --num_iterations 4 (some succeed), or sdpo (feedback helps)"
    if share:
        return "rft with --num_iterations 4: some completions succeed, and feedback adds nothing"
    return "sdpo: none succeeded, and feedback helps" if helps else "none: give easier rows"


def is_useless(gap: Json) -> bool:
    """Tell whether feedback does not help; noise around a real gap must not stop a training."""
    high = gap["interval_90"][1]
    return bool((gap["gap"] if high is None else high) <= 0)


def describe_rollouts(found: Json) -> list[tuple[str, str]]:
    """Return lines of a name and what is known about it."""
    if "rollouts" not in found:
        return [("rollouts", "none were made: rewards, teacher gap and time are unknown")]
    rollouts, gap, time = found["rollouts"], found["teacher_gap"], found["time"]
    low, high = gap["interval_90"] if gap else (None, None)
    between = "" if low is None else f" (90 % interval {low:.3f} to {high:.3f})"
    unsure = low is None or high is None or low <= 0 < high
    hint = "; uncertain, give more --preflight_rows" if gap and unsure else ""
    cost = "" if time["dollars"] is None else f", {time['dollars']:.2f} dollars"
    return [
        (
            "rollouts",
            f"{rollouts['completions']} of {rollouts['rows']} rows: reward "
            f"{rollouts['reward_min']:.2f} to {rollouts['reward_max']:.2f}, mean "
            f"{rollouts['reward_mean']:.2f}; {rollouts['success_share']:.0%} successes, "
            f"{rollouts['flat_group_share']:.0%} flat groups",
        ),
        (
            "teacher gap",
            "no completion was given feedback"
            if gap is None
            else f"{gap['gap']:+.3f}{between}: mean reward {gap['teacher']:.3f} with feedback, "
            f"{gap['student']:.3f} without, {gap['rows']} rows{hint}",
        ),
        ("method", recommend(found)),
        (
            "time",
            f"{time['step_seconds']:.1f} s a step ({time['generation_seconds']:.1f} sampling), "
            f"{time['steps']} steps: {time['hours']:.2f} h{cost}, at this machine's speed",
        ),
    ]
