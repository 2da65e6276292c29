"""Score held-out rows by what the model thinks of their answers, before and after training.

SFT: loss per token of the answer, and how often the likeliest token is the right one. DPO: whether
the chosen answer is likelier than the rejected one, and by how much (natural logarithm, whole
answers). Rows of a task are alike, so that intervals resample whole tasks.
"""

from collections.abc import Mapping
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset

from pimono_sdpo.training.held_out import Scores, compared
from pimono_sdpo.training.measures import MEASURES
from pimono_sdpo.training.recorded_rows import ORIGINS, TARGETS, TEMPLATE, common_length

Json = dict[str, Any]


def score_rows(trainer: Any, rows: Dataset) -> dict[str, Scores]:
    """Return each measure of the method, by task; a row without one is a task of its own."""
    method = trainer.args.METHOD
    process, processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
    found: list[tuple[str, dict[str, float]]] = []
    model = trainer.accelerator.unwrap_model(trainer.model)
    was_training = model.training
    model.eval()
    with torch.no_grad(), trainer.accelerator.autocast():
        for number in range(process, len(rows), processes):
            row = rows[number]
            scored = [_answer(trainer, model, row, name) for name in TARGETS[method]]
            origin = next((str(row[name]) for name in ORIGINS if row.get(name)), f"row {number}")
            found.append((origin, _measured(method, scored)))
    model.train(was_training)
    scores: dict[str, Scores] = {name: {} for name in MEASURES[method]}
    for origin, measured in gather_object(found):
        for name, value in measured.items():
            scores[name].setdefault(origin, []).append(value)
    return {name: dict(sorted(by_origin.items())) for name, by_origin in scores.items()}


def summary(before: Json, after: Json, split: str) -> Json:
    """Return every measure before and after, and what they differ by, with intervals of 95 %."""
    first = next(iter(after.values()))
    return {
        "split": split,
        "sessions": len(first),
        "completions": sum(len(values) for values in first.values()),
        **{name: compared(before[name], after[name]) for name in after},
    }


def _measured(method: str, scored: list[tuple[float, float, int]]) -> dict[str, float]:
    """Turn log-probability, right tokens and tokens of each answer into the method's measures."""
    if method == "sft":
        ((log_probability, right, tokens),) = scored
        return {"loss": -log_probability / tokens, "token_accuracy": right / tokens}
    ratio = scored[0][0] - scored[1][0]
    return {"preferred": float(ratio > 0), "log_ratio": ratio}


def _answer(
    trainer: Any, model: Any, row: Mapping[str, Any], name: str
) -> tuple[float, float, int]:
    """Return log-probability, tokens that are the likeliest ones, and tokens of one answer."""
    tokenizer = trainer.processing_class
    template = {"tools": row["tools"], **row[TEMPLATE]}

    def ids(turns: list[Any], **more: Any) -> list[int]:
        encoded = tokenizer.apply_chat_template(
            turns, tokenize=True, return_dict=True, **template, **more
        )
        return list(encoded["input_ids"])

    prompt = ids(row["prompt"], add_generation_prompt=True)
    whole = ids(row["prompt"] + row[name])
    tokens = torch.tensor([whole], device=trainer.accelerator.device)
    labels = tokens.clone()
    labels[:, : common_length(prompt, whole)] = -100
    # The head that the trainer has added computes no logits of the whole vocabulary.
    out = model(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        labels=labels,
        fused_lm_head=True,
        use_cache=False,
    )
    return float(out.log_probs.sum()), float(out.is_top1.sum()), int(out.label_mask.sum())
