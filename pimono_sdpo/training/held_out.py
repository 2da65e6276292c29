"""Score held-out rows before and after training, with confidence intervals.

Completions of one session (or answers of one task) are alike, so intervals resample whole clusters.
Before and after draw from the same random numbers, and the difference is taken cluster by cluster.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from tqdm import tqdm
from trl.experimental.sdpo import SDPOTrainer

from pimono_sdpo.report import MEASURES
from pimono_sdpo.stats import cluster_interval

Row = dict[str, Any]
Json = dict[str, Any]
ByCluster = dict[str, list[float]]
# By measure, see pimono_sdpo.report.MEASURES.
Scores = dict[str, ByCluster]


def sample_rewards(trainer: SDPOTrainer, rows: list[Row], prompt_ids: list[list[int]]) -> list[float]:
    """Return the weighted reward of a sampled completion of each prompt; None counts as 0, as in TRL."""
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
    """Restore random numbers, metrics and counters of the trainer; draw the same each time with a seed."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    was_training = trainer.model.training
    metrics, counters = trainer._metrics, trainer._diagnostic_counters
    trainer._metrics = {mode: type(kept)(list) for mode, kept in metrics.items()}
    trainer._diagnostic_counters = {mode: type(kept)(int) for mode, kept in counters.items()}
    # In evaluation mode bitsandbytes would change the layout of 4-bit weights on a CPU.
    trainer.model.train()
    with torch.random.fork_rng(devices=list(devices)):
        if seed is not None:
            torch.manual_seed(seed)
        try:
            yield
        finally:
            trainer.model.train(was_training)
            trainer._metrics, trainer._diagnostic_counters = metrics, counters


def score_rollouts(trainer: SDPOTrainer, rows: Dataset, generations: int) -> ByCluster:
    """Return the rewards of `generations` completions of each row, by session."""
    size, accelerator = trainer.args.per_device_eval_batch_size, trainer.accelerator
    mine = range(accelerator.process_index, len(rows), accelerator.num_processes)
    repeated = [(number, rows[number]) for number in mine for _ in range(generations)]
    pairs: list[tuple[str, float]] = []
    with untouched(trainer, seed=trainer.args.seed):
        starts = range(0, len(repeated), size)
        for start in tqdm(starts, "held-out rows", disable=None if accelerator.is_main_process else True):
            numbers, batch = zip(*repeated[start : start + size], strict=True)
            ids = trainer._tokenize_prompts([row["prompt"] for row in batch])
            names = [str(row.get("session_id") or f"row {n}") for n, row in zip(numbers, batch, strict=True)]
            pairs += zip(names, sample_rewards(trainer, list(batch), ids), strict=True)
    return group(pairs)


def group(pairs: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Gather what all processes have found, by the name that comes with it, in order of names."""
    found: dict[str, list[Any]] = {}
    for name, value in gather_object(pairs):
        found.setdefault(name, []).append(value)
    return dict(sorted(found.items()))


def score_rewards(rewards: ByCluster, threshold: float) -> Scores:
    """Return rewards and pass rates; a completion passes when its reward reaches the threshold."""
    passed = {name: [float(reward >= threshold) for reward in found] for name, found in rewards.items()}
    return {"reward": rewards, "pass_rate": passed}


def compare(before: Scores, after: Scores, split: str) -> Json:
    """Return every measure before and after training, and by how much it changed."""
    first = next(iter(after.values()))
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
    return {"split": split, "sessions": len(first), "completions": sum(map(len, first.values())), **compared}


def interval(clusters: Iterable[Sequence[float]], level: float = 0.95) -> Json:
    """Return mean, low and high; the bounds are None where there are too few clusters for them."""
    return cluster_interval(list(clusters), level).as_json()


def as_sentence(evaluation: Json, method: str) -> str:
    """Return one sentence on whether the held-out rows score differently after training."""
    name, title = next(iter(MEASURES[method].items()))
    before, after, gained = (evaluation[name][part] for part in ("before", "after", "difference"))
    sure = gained["low"] is not None and (gained["low"] > 0 or gained["high"] < 0)
    known = "" if gained["low"] is None else f", {gained['low']:+.3f} to {gained['high']:+.3f}"
    return (
        f"held out: {title} {before['mean']:.3f} before and {after['mean']:.3f} after "
        f"({gained['mean']:+.3f}{known}; {evaluation['sessions']} "
        f"{'sessions' if method == 'sdpo' else 'tasks'}): "
        f"{'a' if sure else 'no'} change beyond chance"
    )
