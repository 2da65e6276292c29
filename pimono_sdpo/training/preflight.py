"""Check memory and a few rollouts before the first step, to fail early; score held-out rows before and after.

A preflight changes no weights, logs nothing and draws none of the run's random numbers, so it does
not affect the training that follows. Lengths and memory are checked without weights; methods that
sample also try a few completions. Where feedback certainly does not help the teacher, the training is
refused: the first teacher is the student itself, and the gap at the start predicts the gain
(arXiv:2605.30070).

Completions of one session are correlated, so intervals of held-out rewards resample whole sessions.
Both scorings use the same random seed, and differences are paired by completion.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from statistics import fmean
from time import monotonic
from typing import Any

import numpy as np
import torch
import yaml
from accelerate.utils import gather_object
from datasets import Dataset
from tqdm import tqdm

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.report import MEASURES
from pimono_sdpo.stats import cluster_interval
from pimono_sdpo.training.callbacks import KL
from pimono_sdpo.training.console import say
from pimono_sdpo.training.models import GIB, Hardware, advise
from pimono_sdpo.training.rows import ORIGINS, Fitted
from pimono_sdpo.training.trainer import read_messages

Json = dict[str, Any]
# The share of a GPU's memory that is usable, after CUDA itself and fragmentation.
USABLE = 0.94
# The metric that `trainer.evaluate()` logs for each measure of MEASURES.
EVALUATED = {"sdft": {"divergence": KL}, "sft": {"loss": "loss", "token_accuracy": "mean_token_accuracy"}}


def inspect(
    args: Any, model_args: Any, fitted: Fitted, budgets: Json, parts: dict[str, int], hardware: Hardware
) -> Json:
    """Return the findings that need no weights; `stops` are the reasons not to train.

    parts   estimate of the peak of the GPU's memory, in bytes by purpose
    """
    memory = {
        "parts_gib": {name: round(size / GIB, 2) for name, size in parts.items()},
        "total_gib": round(sum(parts.values()) / GIB, 2),
        "available_gib": hardware.gib,
        "of": hardware.name,
        "lowered_by": advise(args, model_args),
    }
    stops = too_little_memory(memory)
    if model_args.dtype == "bfloat16" and not hardware.bfloat16:
        stops.append(
            f"{hardware.name} cannot compute in bfloat16; give --dtype float16, or a newer GPU such as an A10G."
        )
    return {
        "rows": {"used": len(fitted.rows), **fitted.counts},
        "lengths": {name: _summarise_lengths(values, budgets.get(name)) for name, values in fitted.lengths.items()},
        "memory": memory,
        "stops": stops,
    }


def refuse(findings: Json, forced_by: str) -> None:
    """Raise TrainingInputError with the first reason not to train; if forced, only print the reasons."""
    stops = findings["stops"]
    if stops and forced_by:
        say(f"{forced_by} trains all the same: {' '.join(stops)}")
    elif stops:
        more = f" (and {len(stops) - 1} more)" if len(stops) > 1 else ""
        raise TrainingInputError(f"{stops[0]}{more} Give --force to train all the same.")


def too_little_memory(memory: Json) -> list[str]:
    """Return the reason not to train, if the memory needed, measured or estimated, is not there."""
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


def sample(trainer: Any, rows: int, longest: int, hardware: Hardware) -> tuple[Json, int | None]:
    """Sample completions for the longest row and the first ones; return findings, and the GPU's peak in bytes.

    With a reward, the teacher's prompts are tried, too. The peak is None on a CPU.
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
    student, teacher = list[float](), list[float]()
    seconds: list[tuple[float, float]] = []
    with untouched(trainer):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        for start in range(0, len(chosen), size):
            inputs = [row for row in chosen[start : start + size] for _ in range(group)]
            started = monotonic()
            batch = trainer._prepare_training_batch(inputs)
            sampling = monotonic() - started
            seconds.append((sampling, _update(trainer, {name: value[:micro] for name, value in batch.items()})))
            if on_gpu:
                _update(trainer, at_full_length(batch, micro, trainer.max_completion_length))
            if "rewards" not in batch:
                continue
            rewards += batch["rewards"].view(-1, group).tolist()
            reprompted = batch["self_distillation_mask"].bool().nonzero().flatten().tolist()
            if not reprompted:
                continue
            repeated = [inputs[index] for index in reprompted]
            width = batch["completion_ids"].size(1)
            masks = batch["teacher_attention_mask"][:, :-width].bool()
            teacher_prompts = [batch["teacher_input_ids"][i, :-width][masks[i]].tolist() for i in reprompted]
            student += sample_rewards(
                trainer, repeated, trainer._tokenize_prompts([row["prompt"] for row in repeated])
            )
            teacher += sample_rewards(trainer, repeated, teacher_prompts)
        divergences = trainer._metrics["train"][KL]
        if on_gpu:
            # Adam keeps two float32 numbers for each trained weight.
            trained = (one.numel() for one in trainer.model.parameters() if one.requires_grad)
            peak = torch.cuda.max_memory_allocated() + 8 * sum(trained)
    generation, update = (max(times) for times in zip(*seconds, strict=True))
    findings: Json = {"time": step_time(generation, update, trainer.args, len(dataset), hardware)}
    if divergences:
        findings["divergence"] = fmean(divergences)
    if rewards:
        table = np.array(rewards)
        findings["rollouts"] = {
            "rows": len(table),
            "completions": table.size,
            "reward_mean": float(table.mean()),
            "reward_min": float(table.min()),
            "reward_max": float(table.max()),
            "success_share": float((table >= trainer.args.success_reward_threshold).mean()),
            "flat_group_share": float((np.ptp(table, axis=1) == 0).mean()),
        }
        findings["teacher_gap"] = teacher_gap(student, teacher)
    return findings, peak


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
    if "self_distillation_mask" in part:
        part["self_distillation_mask"] = torch.ones_like(part["self_distillation_mask"])
    return part


def _update(trainer: Any, part: dict[str, Any]) -> float:
    """Return the seconds of loss and gradient on one micro-batch; the gradient is discarded."""
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    started = monotonic()
    trainer.compute_loss(trainer.model, part).backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    trainer.model.zero_grad()
    return monotonic() - started


def teacher_gap(student: Sequence[float], teacher: Sequence[float]) -> Json | None:
    """Return the difference that feedback makes to rewards from 0 to 1, with its bounds; None without any.

    student, teacher   rewards of fresh completions without feedback, and with that on failed ones

    Each mean has a Beta interval (5 % below, 5 % above) that stays open when all rewards are 0 or 1.
    """
    if not teacher:
        return None
    (low, plain, high), (helped_low, helped, helped_high) = map(_bound_mean, (student, teacher))
    return {
        "completions": len(teacher),
        "student": plain,
        "teacher": helped,
        "gap": helped - plain,
        "bounds": [helped_low - high, helped_high - low],
    }


def _bound_mean(rewards: Sequence[float]) -> tuple[float, float, float]:
    """Return a mean with its bounds: the 5 % and 95 % points of the Beta posterior of a uniform prior."""
    from scipy.stats import beta

    total, n = sum(rewards), len(rewards)
    low, high = beta.ppf((0.05, 0.95), total + 1, n - total + 1)
    return float(low), total / n, float(high)


def step_time(generation: float, update: float, args: Any, rows: int, hardware: Hardware) -> Json:
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


def judge(findings: Json) -> tuple[list[str], list[str]]:
    """Return the reasons not to train with a teacher, and warnings about what a few rollouts cannot tell."""
    gap = findings["teacher_gap"]
    if gap is None and findings["rollouts"]["success_share"] == 0:
        return [
            "No completion succeeded and none was given feedback, so nothing would be learned; "
            "give rows with a privileged_context, or another --feedback."
        ], []
    if gap is None or gap["gap"] > 0:
        return [], []
    shown = (
        f"mean reward {gap['teacher']:.3f} with, {gap['student']:.3f} without, {gap['completions']} completions each"
    )
    if gap["bounds"][1] > 0:
        return [], [f"the preflight saw no gain from the feedback ({shown}); too few to tell"]
    return [
        f"The model does no better with the feedback ({shown}), so there is nothing to distil; give other rows, "
        "another reward or a more capable model."
    ], []


# By measure, values by session, see pimono_sdpo.report.MEASURES.
Scores = dict[str, dict[str, list[float]]]


def sample_rewards(trainer: Any, rows: list[Json], prompt_ids: list[list[int]]) -> list[float]:
    """Sample a completion of each prompt and return its weighted reward; None counts as 0, as in TRL."""
    _, completion_ids = trainer._generate(prompt_ids)
    tools = (trainer.chat_template_kwargs or {}).get("tools")
    messages = read_messages(trainer.processing_class, prompt_ids, completion_ids, tools)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    totals = [0.0] * len(rows)
    for reward, weight in zip(trainer.reward_funcs, trainer.reward_weights.tolist(), strict=True):
        scores = reward(
            prompts=[row["prompt"] for row in rows],
            completions=messages,
            completion_ids=completion_ids,
            trainer_state=trainer.state,
            **columns,
        )
        totals = [total + weight * (score or 0.0) for total, score in zip(totals, scores, strict=True)]
    return totals


@contextmanager
def untouched(trainer: Any, seed: int | None = None) -> Iterator[None]:
    """Sample without an effect on random numbers, metrics or state of the training; from `seed` if given."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    was_training = trainer.model.training
    kept = {name: vars(trainer)[name] for name in ("_metrics", "_diagnostic_counters") if name in vars(trainer)}
    for name, by_mode in kept.items():
        factory = list if name == "_metrics" else int
        setattr(trainer, name, {mode: defaultdict(factory) for mode in by_mode})
    # In evaluation mode bitsandbytes would change the layout of 4-bit weights on a CPU.
    trainer.model.train()
    with torch.random.fork_rng(devices=list(devices)):
        if seed is not None:
            torch.manual_seed(seed)
        try:
            yield
        finally:
            trainer.model.train(was_training)
            vars(trainer).update(kept)


def score(trainer: Any, rows: Dataset, generations: int) -> Scores:
    """Return each measure of held-out rows: rewards of completions by session, or what TRL's evaluation logs."""
    method = trainer.args.METHOD
    if method == "sdpo":
        rewards = score_rollouts(trainer, rows, generations)
        threshold = trainer.args.success_reward_threshold
        passed = {name: [float(reward >= threshold) for reward in values] for name, values in rewards.items()}
        return {"reward": rewards, "pass_rate": passed}
    with untouched(trainer, seed=trainer.args.seed):
        trainer.evaluate()
        # The returned metrics lack those that TRL adds to the log.
        logged = trainer.state.log_history.pop()
    if method == "dpo":
        return {"log_ratio": {"": [logged["eval_logps/chosen"] - logged["eval_logps/rejected"]]}}
    return {measure: {"": [logged[f"eval_{name}"]]} for measure, name in EVALUATED[method].items()}


def score_rollouts(trainer: Any, rows: Dataset, generations: int) -> dict[str, list[float]]:
    """Return the rewards of `generations` completions of each row, by session."""
    size, accelerator = trainer.args.per_device_eval_batch_size, trainer.accelerator
    own_rows = range(accelerator.process_index, len(rows), accelerator.num_processes)
    repeated = [(number, rows[number]) for number in own_rows for _ in range(generations)]
    pairs: list[tuple[str, float]] = []
    with untouched(trainer, seed=trainer.args.seed):
        starts = range(0, len(repeated), size)
        for start in tqdm(starts, "held-out rows", disable=None if accelerator.is_main_process else True):
            numbers, batch = zip(*repeated[start : start + size], strict=True)
            ids = trainer._tokenize_prompts([row["prompt"] for row in batch])
            names = [str(row.get("session_id") or f"row {n}") for n, row in zip(numbers, batch, strict=True)]
            pairs += zip(names, sample_rewards(trainer, list(batch), ids), strict=True)
    by_session: dict[str, list[float]] = {}
    for name, value in gather_object(pairs):
        by_session.setdefault(name, []).append(value)
    return dict(sorted(by_session.items()))


def compare(before: Scores, after: Scores, rows: Dataset, split: str) -> Json:
    """Return every measure before and after training and its change, with intervals where there are sessions."""
    compared = {
        measure: {
            "before": interval(before[measure].values()),
            "after": interval(scores.values()),
            "difference": interval(
                [new - old for old, new in zip(before[measure][name], scores[name], strict=True)] for name in scores
            ),
        }
        for measure, scores in after.items()
    }
    first = next(iter(after.values()))
    origin = next((name for name in ORIGINS if name in rows.column_names), None)
    sessions = len({*rows[origin]}) if origin else len(rows)
    return {"split": split, "sessions": sessions, "completions": max(len(rows), *map(len, first.values())), **compared}


def interval(clusters: Any, level: float = 0.95) -> Json:
    """Return mean, low and high; low and high are None when there are too few clusters."""
    return cluster_interval(list(clusters), level).as_json()


def as_sentence(evaluation: Json, method: str) -> str:
    """Return one sentence on whether the held-out rows score differently after training."""
    name, title = next(iter(MEASURES[method].items()))
    before, after, change = (evaluation[name][part] for part in ("before", "after", "difference"))
    sentence = f"held out: {title} {before['mean']:.3f} before and {after['mean']:.3f} after ({change['mean']:+.3f}"
    if change["low"] is None:
        return f"{sentence}; {evaluation['completions']} rows, too few sessions to tell a change from chance)"
    significant = change["low"] > 0 or change["high"] < 0
    return (
        f"{sentence}, {change['low']:+.3f} to {change['high']:+.3f}; {evaluation['sessions']} sessions): "
        f"{'a' if significant else 'no'} change beyond chance"
    )
