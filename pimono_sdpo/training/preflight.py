"""Check rows, lengths, memory and a few rollouts before the first step, to fail early.

A preflight changes no weights, logs nothing and draws none of the run's random numbers, so it does
not affect the training that follows. Rows, templates, lengths and memory are checked without
weights; SDPO also samples a few completions. If feedback does not help the teacher, the training is
refused: the first teacher is the student itself, and the gap at the start predicts the gain
(arXiv:2605.30070).
"""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, islice
from statistics import fmean
from time import monotonic
from typing import Any

import numpy as np
import torch
import yaml
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.console import say
from pimono_sdpo.training.held_out import interval, sample_rewards, untouched
from pimono_sdpo.training.memory import GIB, Hardware, advise, read_config
from pimono_sdpo.training.method import Method

Json = dict[str, Any]
# The share of a GPU's memory that is usable, after CUDA itself and fragmentation.
USABLE = 0.94


def preflight(method: Method, hardware: Hardware) -> Json:
    """Return the findings as JSON; `stops` are the reasons not to train.

    Weights are loaded, for sampling, only when there is no such reason, or with --force.
    """
    with method.translate_errors():
        config = read_config(method.model_args, method.revision, method.args.trust_remote_code)
        parts = method.estimate(config)
    fitted = method.fitted
    memory = {
        "parts_gib": {name: round(size / GIB, 2) for name, size in parts.items()},
        "total_gib": round(sum(parts.values()) / GIB, 2),
        "available_gib": hardware.gib,
        "of": hardware.name,
        "lowered_by": advise(method.args, method.model_args),
    }
    stops = []
    if method.model_args.dtype == "bfloat16" and not hardware.bfloat16:
        stops.append(
            f"{hardware.name} cannot compute in bfloat16; give --dtype float16, or a newer GPU such as an A10G."
        )
    findings = {
        "rows": {"given": fitted.given, "used": len(fitted.rows), **fitted.counts},
        **method.check(),
        "lengths": {name: _summarise_lengths(values, fitted.budgets[name]) for name, values in fitted.lengths.items()},
        "memory": memory,
    }
    if method.job.force or not (stops or _too_little_memory(memory)):
        try:
            sampled = method.try_rollouts(hardware)
        except torch.OutOfMemoryError as error:
            raise TrainingInputError(
                f"The GPU does not have enough memory for a step; give {memory['lowered_by']}."
            ) from error
        if sampled is not None:
            rollout_findings, reasons, peak_bytes = sampled
            findings |= rollout_findings
            stops += reasons
            if peak_bytes is not None:
                memory["measured_gib"] = round(peak_bytes / GIB, 2)
    return findings | {"stops": [*_too_little_memory(memory), *stops]}


def refuse(findings: Json, forced_by: str) -> None:
    """Raise TrainingInputError with the first reason not to train; if forced, only print the reasons."""
    stops = findings["stops"]
    if stops and forced_by:
        say(f"{forced_by} trains all the same: {' '.join(stops)}")
    elif stops:
        more = f" (and {len(stops) - 1} more)" if len(stops) > 1 else ""
        raise TrainingInputError(f"{stops[0]}{more} Give --force to train all the same.")


def _too_little_memory(memory: Json) -> list[str]:
    needed = memory.get("measured_gib", memory["total_gib"])
    if memory["available_gib"] is None or needed <= USABLE * memory["available_gib"]:
        return []
    return [
        f"A step needs about {needed} GiB and {memory['of']} has {memory['available_gib']}; "
        f"give {memory['lowered_by']}."
    ]


def _summarise_lengths(lengths: Sequence[int], budget: int | None) -> Json:
    """Return median, 90th percentile and maximum of the lengths, and how many are over the budget."""
    p50, p90, maximum = (int(value) for value in np.percentile(lengths, [50, 90, 100]))
    over = sum(length > budget for length in lengths) if budget is not None else 0
    return {"budget": budget, "p50": p50, "p90": p90, "max": maximum, "over": over}


def as_text(findings: Json) -> str:
    """Format the findings as YAML, with numbers of three digits."""
    shown = {name: value for name, value in findings.items() if name != "stops" and value}
    rounded = json.loads(json.dumps(shown), parse_float=lambda text: float(f"{float(text):.3g}"))
    return str(yaml.safe_dump(rounded, sort_keys=False, default_flow_style=None, width=math.inf)).rstrip()


def sample(trainer: SDPOTrainer, rows: int, longest: int, hardware: Hardware) -> tuple[Json, int | None]:
    """Sample completions for the longest row and the first ones, with the student's and the teacher's prompts.

    Return the findings as JSON, with the recommended method, and the peak of the GPU's memory in bytes,
    None on a CPU.
    """
    # The student is compared on fresh completions, not on the failures that the feedback is about:
    # those were selected for failing and would make it look worse than it is.
    dataset, group, micro = trainer.train_dataset, trainer.num_generations, trainer.args.per_device_train_batch_size
    others = (index for index in range(len(dataset)) if index != longest)
    chosen = [dict(dataset[index]) for index in islice(chain([longest], others), rows)]
    # No more at once than a step samples, so that the peak is that of the training.
    size = max(1, micro * trainer.args.steps_per_generation // group)
    on_gpu, peak = torch.cuda.is_available(), None
    rewards: list[list[float]] = []
    by_student, by_teacher = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    seconds: list[tuple[float, float]] = []
    with untouched(trainer):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        for start in range(0, len(chosen), size):
            inputs = [row for row in chosen[start : start + size] for _ in range(group)]
            started = monotonic()
            batch = trainer._prepare_training_batch(inputs)
            sampling = monotonic() - started
            rewards += batch["rewards"].view(-1, group).tolist()
            seconds.append((sampling, _update(trainer, {name: value[:micro] for name, value in batch.items()})))
            if on_gpu:
                _update(trainer, at_full_length(batch, micro, trainer.max_completion_length))
            reprompted = batch["self_distillation_mask"].bool().nonzero().flatten().tolist()
            if not reprompted:
                continue
            repeated = [inputs[index] for index in reprompted]
            width = batch["completion_ids"].size(1)
            masks = batch["teacher_attention_mask"][:, :-width].bool()
            teacher_prompts = [batch["teacher_input_ids"][i, :-width][masks[i]].tolist() for i in reprompted]
            student_prompts = trainer._tokenize_prompts([row["prompt"] for row in repeated])
            for by_row, prompts in ((by_student, student_prompts), (by_teacher, teacher_prompts)):
                for index, reward in zip(reprompted, sample_rewards(trainer, repeated, prompts), strict=True):
                    by_row[start + index // group].append(reward)
        if on_gpu:
            # Adam keeps two float32 numbers for each trained weight.
            trained = (one.numel() for one in trainer.model.parameters() if one.requires_grad)
            peak = torch.cuda.max_memory_allocated() + 8 * sum(trained)
    generation, update = (max(times) for times in zip(*seconds, strict=True))
    table = np.array(rewards)
    findings: Json = {
        "rollouts": {
            "rows": len(table),
            "completions": table.size,
            "reward_mean": float(table.mean()),
            "reward_min": float(table.min()),
            "reward_max": float(table.max()),
            "success_share": float((table >= trainer.args.success_reward_threshold).mean()),
            "flat_group_share": float((np.ptp(table, axis=1) == 0).mean()),
        },
        "teacher_gap": teacher_gap([*by_student.values()], [*by_teacher.values()]),
        "time": step_time(generation, update, trainer.args, len(dataset), hardware),
    }
    return findings | {"method": recommend(findings)}, peak


def at_full_length(batch: dict[str, Any], size: int, length: int) -> dict[str, Any]:
    """Return the `size` rows with the longest teacher prompts, their completions padded to `length`."""
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
    """Return the seconds of loss and gradient on one micro-batch; the gradient is discarded."""
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    started = monotonic()
    trainer.compute_loss(trainer.model, part).backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    trainer.model.zero_grad()
    return monotonic() - started


def teacher_gap(student: list[list[float]], teacher: list[list[float]]) -> Json | None:
    """Return the difference that feedback makes to the rewards, with its 90 % interval.

    student   a list per row: rewards of fresh completions without feedback
    teacher   the same with feedback on failed completions; if there are no rows, None is returned
    """
    if not teacher:
        return None
    pairs = zip(teacher, student, strict=True)
    gap = interval([np.subtract(helped, plain).tolist() for helped, plain in pairs], level=0.9)
    return {
        "rows": len(teacher),
        "student": fmean(chain(*student)),
        "teacher": fmean(chain(*teacher)),
        "gap": gap["mean"],
        "interval_90": [gap["low"], gap["high"]],
    }


def step_time(generation: float, update: float, args: SDPOConfig, rows: int, hardware: Hardware) -> Json:
    """Estimate the seconds of a step, and the hours and dollars of the training.

    generation   seconds to sample a batch of completions
    update       seconds of loss and gradient on a micro-batch
    """
    micro = args.gradient_accumulation_steps
    step = max(1, micro // args.steps_per_generation) * generation + micro * update
    epoch = math.ceil(rows * args.num_generations / (args.per_device_train_batch_size * micro * args.world_size))
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
    hours, price = steps * step / 3600, hardware.dollars_per_hour
    return {
        "generation_seconds": round(generation, 3),
        "update_seconds": round(update, 3),
        "step_seconds": round(step, 3),
        "steps": steps,
        "hours": round(hours, 3),
        "dollars": None if price is None else round(hours * price, 2),
    }


def stops_of(findings: Json, method: str) -> list[str]:
    """Return the reasons not to train with a teacher; none for methods without one."""
    if method != "sdpo":
        return []
    gap = findings["teacher_gap"]
    if gap is None and findings["rollouts"]["success_share"] == 0:
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


def recommend(findings: Json) -> str:
    """Return the method that suits these rollouts, and why.

    On our toy tasks with a success rate of 10 %, rejection-sampling fine-tuning was as good as any
    method and cheapest. At 0.5 %, where a few rollouts rarely show a success, it needed four updates
    per batch.
    """
    gap = findings["teacher_gap"]
    helps = gap is not None and not is_useless(gap)
    if findings["rollouts"]["success_share"]:
        if helps:
            return "rft with --num_iterations 4 (some succeed), or sdpo with one update a batch (feedback helps)"
        return "rft with --num_iterations 4: some completions succeed, and feedback adds nothing"
    return "sdpo: none succeeded, and feedback helps" if helps else "none: give easier rows"


def is_useless(gap: Json) -> bool:
    """Return whether feedback certainly does not help; noise around a real gap must not stop a training."""
    high = gap["interval_90"][1]
    return bool((gap["gap"] if high is None else high) <= 0)
