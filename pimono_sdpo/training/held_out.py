"""Score rows that were not trained on, before and after, with intervals.

Completions of a session are alike, so that intervals resample whole sessions. Before and after draw
from the same random numbers, and their difference is taken session by session.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from tqdm import tqdm
from trl.experimental.sdpo import SDPOTrainer

from pimono_sdpo.report import MEASURES
from pimono_sdpo.stats import Interval, cluster_interval

Row = dict[str, Any]


def sample_rewards(
    trainer: SDPOTrainer, rows: list[Row], prompt_ids: list[list[int]]
) -> list[float]:
    """Sample a completion of each prompt and return its weighted reward for its row.

    A reward that says nothing counts as 0, as it does in TRL.
    """
    _, completion_ids = trainer._generate(prompt_ids)
    texts = trainer.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    total = [0.0] * len(rows)
    for reward, weight in zip(trainer.reward_funcs, trainer.reward_weights.tolist(), strict=True):
        scores = reward(
            prompts=[row["prompt"] for row in rows],
            completions=[[{"role": "assistant", "content": text}] for text in texts],
            completion_ids=completion_ids,
            trainer_state=trainer.state,
            **columns,
        )
        total = [sum_ + weight * (score or 0.0) for sum_, score in zip(total, scores, strict=True)]
    return total


@contextmanager
def untouched(trainer: SDPOTrainer, seed: int | None = None) -> Iterator[None]:
    """Leave random numbers, metrics and counters of the trainer as they were.

    With a seed, what happens inside draws from it, the same every time.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    was_training = trainer.model.training
    metrics, counters = trainer._metrics, trainer._diagnostic_counters
    trainer._metrics = {mode: type(kept)(list) for mode, kept in metrics.items()}
    trainer._diagnostic_counters = {mode: type(kept)(int) for mode, kept in counters.items()}
    # In evaluation mode bitsandbytes would lay out 4-bit weights anew on a CPU.
    trainer.model.train()
    with torch.random.fork_rng(devices=list(devices)):
        if seed is not None:
            torch.manual_seed(seed)
        try:
            yield
        finally:
            trainer.model.train(was_training)
            trainer._metrics, trainer._diagnostic_counters = metrics, counters


Json = dict[str, Any]
CLUSTERS = {"sdpo": "sessions", "sft": "tasks", "dpo": "tasks"}
Scores = dict[str, list[float]]


def score_rows(trainer: SDPOTrainer, rows: Dataset, generations: int) -> Scores:
    """Return the rewards of `generations` completions of each row, by session.

    A row without a `session_id` is a session of its own.
    """
    size = trainer.args.per_device_eval_batch_size
    process, processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
    pairs: list[tuple[str, float]] = []
    with untouched(trainer, seed=trainer.args.seed):
        mine = range(process, len(rows), processes)
        numbered = [(number, dict(rows[number])) for number in mine]
        repeated = [pair for pair in numbered for _ in range(generations)]
        steps = tqdm(
            range(0, len(repeated), size),
            desc="held-out rows",
            disable=None if trainer.accelerator.is_main_process else True,
        )
        for start in steps:
            numbers, batch = zip(*repeated[start : start + size], strict=True)
            ids = trainer._tokenize_prompts([row["prompt"] for row in batch])
            rewards = sample_rewards(trainer, list(batch), ids)
            pairs += [
                (str(row.get("session_id") or f"row {number}"), reward)
                for number, row, reward in zip(numbers, batch, rewards, strict=True)
            ]
    scores: Scores = {}
    for session, reward in gather_object(pairs):
        scores.setdefault(session, []).append(reward)
    return dict(sorted(scores.items()))


def summary(before: Scores, after: Scores, threshold: float, split: str) -> Json:
    """Return rewards and pass rates before and after, and what they differ by.

    A completion passes when its reward reaches the threshold. Intervals are of 95 %; null where
    there are too few sessions for one.
    """
    return {
        "split": split,
        "sessions": len(after),
        "completions": sum(len(rewards) for rewards in after.values()),
        "reward": compared(before, after),
        "pass_rate": compared(_passes(before, threshold), _passes(after, threshold)),
    }


def as_sentence(evaluation: Json, method: str) -> str:
    """Say in one sentence whether rows that were held out fare otherwise than before."""
    name, title = next(iter(MEASURES[method].items()))
    measured = evaluation[name]
    gained = measured["difference"]
    sure = gained["low"] is not None and (gained["low"] > 0 or gained["high"] < 0)
    known = "" if gained["low"] is None else f", {gained['low']:+.3f} to {gained['high']:+.3f}"
    return (
        f"held out: {title} {measured['before']['mean']:.3f} before and "
        f"{measured['after']['mean']:.3f} after ({gained['mean']:+.3f}{known}; "
        f"{evaluation['sessions']} {CLUSTERS[method]}): "
        f"{'a' if sure else 'no'} change beyond chance"
    )


def compared(before: Scores, after: Scores) -> Json:
    """Return means with intervals before and after, and of what each score gained."""
    gained = [
        [new - old for old, new in zip(before[name], after[name], strict=True)] for name in after
    ]
    return {
        "before": _interval(list(before.values())),
        "after": _interval(list(after.values())),
        "difference": _interval(gained),
    }


def _interval(clusters: Sequence[Sequence[float]]) -> Json:
    found: Interval = cluster_interval(clusters)
    bounds = {"low": found.low, "high": found.high}
    return {"mean": found.mean} | {
        name: None if math.isnan(value) else value for name, value in bounds.items()
    }


def _passes(scores: Scores, threshold: float) -> Scores:
    return {
        name: [float(reward >= threshold) for reward in rewards] for name, rewards in scores.items()
    }
