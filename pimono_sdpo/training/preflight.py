"""Check before the first step what would otherwise fail after hours.

Nothing is learned, logged or drawn from the run's random numbers: what follows is the same run.

| part | what it tells | stops a training when |
|---|---|---|
| rows | how many, what was cut, by which budget | a row cannot be fitted |
| template | that prompts pass through the chat template whole and open no turn | they do not |
| memory | the peak by shapes, and measured where there is a GPU | it does not fit |
| rollouts | the reward of a few real completions | nothing would be reprompted |
| teacher gap | what feedback adds to the reward of fresh completions | its interval ends at 0 |
| time | seconds of a step, from the rollouts; the cost on a flavor | |

The first teacher is the student itself. If it does no better when it is told, there is nothing to
distil (the gap at the start predicts the gain: arXiv:2605.30070).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from trl import ModelConfig
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.stats import cluster_interval
from pimono_sdpo.training.held_out import sample_rewards, untouched
from pimono_sdpo.training.memory import GIB, Estimate, Hardware, estimate
from pimono_sdpo.training.processes import say
from pimono_sdpo.training.token_budget import special_tokens
from pimono_sdpo.training.trainer import Fitted, Prepared


@dataclass(frozen=True)
class Probe:
    """What a few real completions showed.

    rewards          of the student, one list per group of completions of one prompt
    student, teacher   rewards of fresh completions without and with the feedback that a failed
                     completion of the first list brought; one pair of lists per row
    generation_seconds, update_seconds   of one generation batch, and of loss and gradient on one
                     micro-batch of it
    peak_bytes       of the GPU's memory meanwhile; None on a CPU
    """

    rewards: list[list[float]]
    student: list[list[float]]
    teacher: list[list[float]]
    generation_seconds: float
    update_seconds: float
    peak_bytes: int | None

    @property
    def gap(self) -> float | None:
        """Return by how much feedback raises the mean reward; None when nothing was reprompted."""
        if not self.teacher:
            return None
        pairs = zip(self.teacher, self.student, strict=True)
        return _mean([_mean(told) - _mean(untold) for told, untold in pairs])


def probe(trainer: SDPOTrainer, rows: int) -> Probe:
    """Sample completions of the first rows, as a step would, and of their teachers' prompts.

    The teacher is told of completions other than those it is compared with: a failure picked for
    its feedback would make the student look worse than it is.
    """
    dataset, group = trainer.train_dataset, trainer.num_generations
    chosen = [dict(dataset[index]) for index in range(min(rows, len(dataset)))]
    # No more at once than a step samples, or memory would be that of another run.
    at_once = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
    size = max(1, at_once // group)
    found: list[Probe] = []
    with untouched(trainer):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        for start in range(0, len(chosen), size):
            found.append(_try(trainer, chosen[start : start + size]))
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
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
    update_seconds = _update(trainer, batch)
    masked = batch["self_distillation_mask"].bool().tolist()
    width = batch["completion_ids"].size(1)
    prompts = [
        ids[:-width][mask[:-width].bool()].tolist()
        for ids, mask in zip(
            batch["teacher_input_ids"], batch["teacher_attention_mask"], strict=True
        )
    ]
    told = [index for index, reprompted in enumerate(masked) if reprompted]
    by_student: list[float] = []
    by_teacher: list[float] = []
    if told:
        again = [inputs[index] for index in told]
        untold = trainer._tokenize_prompts([row["prompt"] for row in again])
        by_student = sample_rewards(trainer, again, untold)
        by_teacher = sample_rewards(trainer, again, [prompts[index] for index in told])
    return Probe(
        rewards,
        _by_row(by_student, told, group),
        _by_row(by_teacher, told, group),
        generation_seconds,
        update_seconds,
        None,
    )


def _update(trainer: SDPOTrainer, batch: dict[str, Any]) -> float:
    """Return the seconds of loss and gradient on one micro-batch; the gradient is thrown away."""
    size = trainer.args.per_device_train_batch_size
    part = {
        name: value[:size] if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    began = monotonic()
    loss = trainer.compute_loss(trainer.model, part)
    loss.backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    trainer.model.zero_grad()
    return monotonic() - began


def _by_row(values: Sequence[float], told: Sequence[int], group: int) -> list[list[float]]:
    rows: dict[int, list[float]] = {}
    for index, value in zip(told, values, strict=True):
        rows.setdefault(index // group, []).append(value)
    return list(rows.values())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


Json = dict[str, Any]
# What CUDA and the allocator's gaps leave of a card's memory.
USABLE = 0.94


def preflight(
    args: SDPOConfig,
    model_args: ModelConfig,
    fitted: Fitted,
    tokenizer: Any,
    revision: str | None,
    *,
    reward_rows: int,
    hardware: Hardware,
    prepared: Prepared | None,
    rows: int,
) -> Json:
    """Return everything that is found before the first step, as `assemble` lays it out.

    `rows` are tried with real completions, if there is a prepared trainer.
    """
    peak = estimate(args, model_args, revision, fitted.prompt_budget or args.max_reprompt_len)
    try:
        tried = probe(prepared.trainer, rows) if prepared is not None and rows else None
    except torch.OutOfMemoryError as error:
        raise TrainingInputError(
            f"The GPU has not enough memory for a step; give {peak.advice()}."
        ) from error
    return assemble(args, fitted, tokenizer, reward_rows, peak, hardware, tried)


def refuse(found: Json, forced: bool) -> None:
    """Raise TrainingInputError with the first reason not to train, unless forced to go on.

    What was overridden is said in one line then.
    """
    if not found["stops"]:
        return
    if forced:
        say(f"--force trains all the same: {' '.join(found['stops'])}")
    else:
        more = f" (and {len(found['stops']) - 1} more)" if len(found["stops"]) > 1 else ""
        raise TrainingInputError(f"{found['stops'][0]}{more} Give --force to train all the same.")


def check_template(rows: Dataset, tokenizer: Any, template: Mapping[str, Any]) -> int:
    """Return how many prompts passed through the chat template whole; raises TrainingInputError."""
    special = special_tokens(tokenizer)
    for number, prompt in enumerate(rows["prompt"], 1):
        bare = [{**turn, "content": "x"} for turn in prompt]
        text, frame = (_templated(turns, tokenizer, template) for turns in (prompt, bare))
        # Some tokenizers normalise text, which is no change of theirs alone.
        contents = [_decoded(turn["content"], tokenizer).strip() for turn in prompt]
        if any(content not in text for content in contents):
            raise TrainingInputError(
                f"The chat template changes the prompt of row {number}; give a model whose "
                "template keeps the text of its turns."
            )
        if any(text.count(token) != frame.count(token) for token in special):
            raise TrainingInputError(
                f"Text of row {number} becomes control tokens in the chat template; give a "
                "tokenizer that declares its special tokens."
            )
    return len(rows)


def _decoded(text: str, tokenizer: Any) -> str:
    decoded: str = tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
    return decoded


def _templated(turns: list[Any], tokenizer: Any, template: Mapping[str, Any]) -> str:
    encoded = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, tokenize=True, return_dict=True, **template
    )
    text: str = tokenizer.decode(encoded["input_ids"])
    return text


def assemble(
    args: SDPOConfig,
    fitted: Fitted,
    tokenizer: Any,
    reward_rows: int,
    estimate: Estimate,
    hardware: Hardware,
    probe: Probe | None,
) -> Json:
    """Return everything that was found, as JSON; `stops` are the reasons not to train.

    `reward_rows` are those on which the reward was tried on what must not win. Without a probe, no
    weights were loaded, and rollouts, gap and time are not known.
    """
    budgets = {
        "prompt": fitted.prompt_budget or args.max_reprompt_len,
        "teacher_prompt": args.max_reprompt_len,
    }
    found: Json = {
        "rows": {"given": fitted.given, "used": len(fitted.rows), **fitted.counts},
        "reward_tried_on_rows": reward_rows,
        "templates_checked": check_template(fitted.rows, tokenizer, args.chat_template_kwargs),
        "lengths": {
            name: lengths_of(lengths, budgets[name]) for name, lengths in fitted.lengths.items()
        },
        "memory": memory_of(estimate, hardware),
    }
    if probe is not None:
        found["rollouts"] = _rollouts(probe, args.success_reward_threshold)
        found["teacher_gap"] = _gap(probe)
        found["time"] = _time(probe, args, len(fitted.rows), hardware)
        if probe.peak_bytes is not None:
            found["memory"]["measured_gib"] = round(probe.peak_bytes / GIB, 2)
    return {**found, "stops": [*too_little_memory(found["memory"]), *_stops(found)]}


def memory_of(estimate: Estimate, hardware: Hardware) -> Json:
    """Return an estimate beside what there is, in GiB, and what lowers it."""
    return {
        "parts_gib": {name: round(size / GIB, 2) for name, size in estimate.parts.items()},
        "total_gib": round(estimate.total / GIB, 2),
        "available_gib": hardware.gib,
        "of": hardware.name,
        "lowered_by": estimate.advice(),
    }


def too_little_memory(memory: Json) -> list[str]:
    """Return the reason not to train when memory will not do."""
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


def _gap(probe: Probe) -> Json | None:
    if probe.gap is None:
        return None
    pairs = zip(probe.teacher, probe.student, strict=True)
    differences = [
        [one - other for one, other in zip(told, untold, strict=True)] for told, untold in pairs
    ]
    interval = cluster_interval(differences, level=0.9)
    bounds = [None if math.isnan(bound) else bound for bound in (interval.low, interval.high)]
    return {
        "rows": len(probe.teacher),
        "student": _mean_of(probe.student),
        "teacher": _mean_of(probe.teacher),
        "gap": interval.mean,
        "interval_90": bounds,
    }


def _time(probe: Probe, args: SDPOConfig, rows: int, hardware: Hardware) -> Json:
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


def _stops(found: Json) -> list[str]:
    stops = []
    if "rollouts" in found:
        gap = found["teacher_gap"]
        if gap is None and found["rollouts"]["success_share"] == 0:
            stops.append(
                "No completion succeeded and none was given feedback, so nothing would be learned; "
                "give rows with a privileged_context, or another --feedback."
            )
        elif gap is not None and _none(gap):
            stops.append(
                f"The model does no better when it is told the feedback (mean reward "
                f"{gap['teacher']:.3f} with, {gap['student']:.3f} without), so that there is "
                "nothing to distil; give other rows, another reward or a more capable model."
            )
    return stops


def _none(gap: Json) -> bool:
    """Tell whether feedback helps not at all: noise around a real gap must not stop a training."""
    high = gap["interval_90"][1]
    return bool((gap["gap"] if high is None else high) <= 0)


def _mean_of(rows: Sequence[Sequence[float]]) -> float:
    values = [value for row in rows for value in row]
    return sum(values) / len(values)


def as_text(found: Json) -> str:
    """Lay out what was found in lines of a name and what is known of it."""
    rows = found["rows"]
    lines = [
        ("rows", f"{rows['used']} used, {rows['without_reward']} without a reward"),
        ("reward", f"not won by its trials on {found['reward_tried_on_rows']} rows"),
        ("chat template", f"keeps {found['templates_checked']} prompts whole"),
    ]
    for name, told in found["lengths"].items():
        lines.append(
            (
                name.replace("_", " "),
                f"{told['p50']} tokens (median), {told['p90']} (p90), {told['max']} (most); "
                f"{told['over']} rows were over {told['budget']} and shortened",
            )
        )
    lines += lines_of_memory(found["memory"])
    if "rollouts" in found:
        lines += _lines_of_rollouts(found)
    else:
        lines.append(("rollouts", "none were made: rewards, teacher gap and time are not known"))
    return laid_out(lines)


def laid_out(lines: list[tuple[str, str]]) -> str:
    """Lay out lines of a name and what is known of it."""
    return "\n".join(f"{name:<16}{text}" for name, text in lines)


def lines_of_memory(memory: Json) -> list[tuple[str, str]]:
    """Return the estimate beside what there is, and what lowers it."""
    parts = ", ".join(f"{name} {size}" for name, size in memory["parts_gib"].items() if size)
    measured = f", {memory['measured_gib']} measured" if "measured_gib" in memory else ""
    there = f" of {memory['available_gib']}" if memory["available_gib"] is not None else ""
    needed = f"{memory['total_gib']} GiB{measured}{there} on {memory['of']} ({parts})"
    return [("memory", needed), ("", f"lowered by {memory['lowered_by']}")]


def _lines_of_rollouts(found: Json) -> list[tuple[str, str]]:
    rollouts, gap, time = found["rollouts"], found["teacher_gap"], found["time"]
    low, high = gap["interval_90"] if gap else (None, None)
    between = "" if low is None else f" (90 % interval {low:.3f} to {high:.3f})"
    unsure = low is None or high is None or low <= 0 < high
    hint = "; not sure, more --preflight_rows would tell" if gap and unsure else ""
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
            else f"{gap['gap']:+.3f}{between}: mean reward {gap['teacher']:.3f} when told, "
            f"{gap['student']:.3f} when not, {gap['rows']} rows{hint}",
        ),
        (
            "time",
            f"{time['step_seconds']:.1f} s a step ({time['generation_seconds']:.1f} sampling), "
            f"{time['steps']} steps: {time['hours']:.2f} h{cost}, at this machine's speed",
        ),
    ]
