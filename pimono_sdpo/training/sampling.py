"""Sample and score completions beside a training, which stays the same to the bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from trl.experimental.sdpo import SDPOTrainer

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
