"""Score held-out rows before and after training, with confidence intervals.

Completions of one session (or answers of one task) are correlated, so intervals resample whole
clusters. Both scorings use the same random seed, and differences are paired by completion.
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
from pimono_sdpo.training.trainer import read_messages

Row = dict[str, Any]
Json = dict[str, Any]
ByCluster = dict[str, list[float]]
# By measure, see pimono_sdpo.report.MEASURES.
Scores = dict[str, ByCluster]


def sample_rewards(trainer: SDPOTrainer, rows: list[Row], prompt_ids: list[list[int]]) -> list[float]:
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
def untouched(trainer: SDPOTrainer, seed: int | None = None) -> Iterator[None]:
    """Sample without a lasting effect: restore random state, metrics and counters of the trainer at the end."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    was_training = trainer.model.training
    metrics, counters = trainer._metrics, trainer._diagnostic_counters
    trainer._metrics = {mode: type(values)(list) for mode, values in metrics.items()}
    trainer._diagnostic_counters = {mode: type(values)(int) for mode, values in counters.items()}
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
    return group(pairs)


def group(pairs: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Gather pairs of name and value from all processes; return the values by name, in order of names."""
    groups: dict[str, list[Any]] = {}
    for name, value in gather_object(pairs):
        groups.setdefault(name, []).append(value)
    return dict(sorted(groups.items()))


def score_rewards(rewards: ByCluster, threshold: float) -> Scores:
    """Return rewards and pass rates; a completion passes when its reward reaches the threshold."""
    passed = {name: [float(reward >= threshold) for reward in values] for name, values in rewards.items()}
    return {"reward": rewards, "pass_rate": passed}


def compare(before: Scores, after: Scores, split: str) -> Json:
    """Return every measure before and after training and its change, with intervals."""
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
    """Return mean, low and high; low and high are None when there are too few clusters."""
    return cluster_interval(list(clusters), level).as_json()


def as_sentence(evaluation: Json, method: str) -> str:
    """Return one sentence on whether the held-out rows score differently after training."""
    name, title = next(iter(MEASURES[method].items()))
    before, after, change = (evaluation[name][part] for part in ("before", "after", "difference"))
    significant = change["low"] is not None and (change["low"] > 0 or change["high"] < 0)
    bounds = "" if change["low"] is None else f", {change['low']:+.3f} to {change['high']:+.3f}"
    return (
        f"held out: {title} {before['mean']:.3f} before and {after['mean']:.3f} after "
        f"({change['mean']:+.3f}{bounds}; {evaluation['sessions']} "
        f"{'sessions' if method == 'sdpo' else 'tasks'}): "
        f"{'a' if significant else 'no'} change beyond chance"
    )
