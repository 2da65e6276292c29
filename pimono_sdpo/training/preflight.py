"""Check before the first step what would otherwise fail after hours.

Nothing is learned, logged or drawn from the run's random numbers, so the run that follows is the
same as without a preflight. Rows, templates, lengths and memory are looked at without weights; SDPO
also samples a few completions. A teacher that feedback does not help stops the training: the first
teacher is the student itself, and the gap at the start predicts the gain (arXiv:2605.30070).
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
from pimono_sdpo.training import say
from pimono_sdpo.training.held_out import interval, sample_rewards, untouched
from pimono_sdpo.training.memory import GIB, Hardware, advise, read_config
from pimono_sdpo.training.method import Method

Json = dict[str, Any]
# What CUDA and the allocator's gaps leave of a card's memory.
USABLE = 0.94


def preflight(method: Method, hardware: Hardware) -> Json:
    """Return what is found as JSON; `stops` are the reasons not to train.

    Weights are loaded only when nothing speaks against it, or with --force.
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
    found = {
        "rows": {"given": fitted.given, "used": len(fitted.rows), **fitted.counts},
        **method.check(),
        "lengths": {name: _summarise_lengths(all_, fitted.budgets[name]) for name, all_ in fitted.lengths.items()},
        "memory": memory,
    }
    if method.job.force or not (stops or _too_little_memory(memory)):
        try:
            tried = method.try_rollouts(hardware)
        except torch.OutOfMemoryError as error:
            raise TrainingInputError(
                f"The GPU has not enough memory for a step; give {memory['lowered_by']}."
            ) from error
        if tried is not None:
            sampled, reasons, peak_bytes = tried
            found |= sampled
            stops += reasons
            if peak_bytes is not None:
                memory["measured_gib"] = round(peak_bytes / GIB, 2)
    return found | {"stops": [*_too_little_memory(memory), *stops]}


def refuse(found: Json, forced_by: str) -> None:
    """Raise TrainingInputError with the first reason not to train; print them all where it is forced."""
    stops = found["stops"]
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
    """Return median, 90th percentile and most of the lengths, and how many are over the budget."""
    p50, p90, most = (int(value) for value in np.percentile(lengths, [50, 90, 100]))
    over = sum(length > budget for length in lengths) if budget is not None else 0
    return {"budget": budget, "p50": p50, "p90": p90, "max": most, "over": over}


def as_text(found: Json) -> str:
    """Lay out what was found, with numbers of three digits."""
    shown = {name: value for name, value in found.items() if name != "stops" and value}
    rounded = json.loads(json.dumps(shown), parse_float=lambda text: float(f"{float(text):.3g}"))
    return str(yaml.safe_dump(rounded, sort_keys=False, default_flow_style=None, width=math.inf)).rstrip()


def sample(trainer: SDPOTrainer, rows: int, longest: int, hardware: Hardware) -> tuple[Json, int | None]:
    """Sample completions of the longest row and the first ones, and of their teachers' prompts.

    Return what they show as JSON, with the method that it speaks for, and the peak of the GPU's memory, None on a CPU.
    """
    # The teacher gets feedback on other completions than those it is compared with: a failure
    # picked for its feedback would make the student look worse than it is.
    dataset, group, micro = trainer.train_dataset, trainer.num_generations, trainer.args.per_device_train_batch_size
    others = (at for at in range(len(dataset)) if at != longest)
    chosen = [dict(dataset[at]) for at in islice(chain([longest], others), rows)]
    # No more at once than a step samples, or the memory would not be that of the run.
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
            began = monotonic()
            batch = trainer._prepare_training_batch(inputs)
            sampled = monotonic() - began
            rewards += batch["rewards"].view(-1, group).tolist()
            seconds.append((sampled, _update(trainer, {name: value[:micro] for name, value in batch.items()})))
            if on_gpu:
                _update(trainer, at_full_length(batch, micro, trainer.max_completion_length))
            reprompted = batch["self_distillation_mask"].bool().nonzero().flatten().tolist()
            if not reprompted:
                continue
            again = [inputs[index] for index in reprompted]
            width = batch["completion_ids"].size(1)
            masks = batch["teacher_attention_mask"][:, :-width].bool()
            taught = [batch["teacher_input_ids"][i, :-width][masks[i]].tolist() for i in reprompted]
            plain = trainer._tokenize_prompts([row["prompt"] for row in again])
            for by_row, prompts in ((by_student, plain), (by_teacher, taught)):
                for index, reward in zip(reprompted, sample_rewards(trainer, again, prompts), strict=True):
                    by_row[start + index // group].append(reward)
        if on_gpu:
            # Adam keeps two float32 numbers of each weight that is trained.
            trained = (one.numel() for one in trainer.model.parameters() if one.requires_grad)
            peak = torch.cuda.max_memory_allocated() + 8 * sum(trained)
    generation, update = (max(one) for one in zip(*seconds, strict=True))
    of_each = np.array(rewards)
    found: Json = {
        "rollouts": {
            "rows": len(of_each),
            "completions": of_each.size,
            "reward_mean": float(of_each.mean()),
            "reward_min": float(of_each.min()),
            "reward_max": float(of_each.max()),
            "success_share": float((of_each >= trainer.args.success_reward_threshold).mean()),
            "flat_group_share": float((np.ptp(of_each, axis=1) == 0).mean()),
        },
        "teacher_gap": teacher_gap([*by_student.values()], [*by_teacher.values()]),
        "time": step_time(generation, update, trainer.args, len(dataset), hardware),
    }
    return found | {"method": recommend(found)}, peak


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
    trainer.compute_loss(trainer.model, part).backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    trainer.model.zero_grad()
    return monotonic() - began


def teacher_gap(student: list[list[float]], teacher: list[list[float]]) -> Json | None:
    """Compare rewards of fresh completions without and with the feedback on failed ones, a list of each row.

    Return the gap with its interval at 90 %; None when nothing was reprompted.
    """
    if not teacher:
        return None
    pairs = zip(teacher, student, strict=True)
    gap = interval([np.subtract(with_it, without).tolist() for with_it, without in pairs], level=0.9)
    return {
        "rows": len(teacher),
        "student": fmean(chain(*student)),
        "teacher": fmean(chain(*teacher)),
        "gap": gap["mean"],
        "interval_90": [gap["low"], gap["high"]],
    }


def step_time(generation: float, update: float, args: SDPOConfig, rows: int, hardware: Hardware) -> Json:
    """Return the seconds of a step by those of sampling and of an update, and hours and dollars of the training."""
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

    On our toy tasks rejection-sampling fine-tuning was as good as any and cheapest where a tenth
    succeeded; at 1 in 200, where a few rollouts mostly show no success, only with four updates.
    """
    gap = found["teacher_gap"]
    helps = gap is not None and not is_useless(gap)
    if found["rollouts"]["success_share"]:
        if helps:
            return "rft with --num_iterations 4 (some succeed), or sdpo with one update a batch (feedback helps)"
        return "rft with --num_iterations 4: some completions succeed, and feedback adds nothing"
    return "sdpo: none succeeded, and feedback helps" if helps else "none: give easier rows"


def is_useless(gap: Json) -> bool:
    """Tell whether feedback does not help; noise around a real gap must not stop a training."""
    high = gap["interval_90"][1]
    return bool((gap["gap"] if high is None else high) <= 0)
