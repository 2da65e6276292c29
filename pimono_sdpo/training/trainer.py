"""TRL's SDPO trainer with its loss in float32, measures of collapse, and two rivals beside it.

TRL computes the loss in the dtype of the logits; in bfloat16 the gradient of a small gap between
student and teacher is then mostly rounding. Here the loss takes CHUNK_ELEMENTS of them at a time in
float32; the chunks are computed again in the backward pass, so that no whole copy is kept.

`--method` trains on the same rollouts, rewards and checkpoints: `sdpo` distils; `grpo` takes TRL's
policy loss alone; `rft` (rejection-sampling fine-tuning) takes the negative log-likelihood of the
tokens of completions that reach success_reward_threshold. `--num_iterations` is the number of
updates with each batch of rollouts.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from trl.experimental.sdpo import SDPOTrainer
from trl.experimental.sdpo.loss_utils import (
    apply_importance_sampling_clipping,
    compute_full_logit_self_distillation_loss,
    compute_sampled_token_self_distillation_loss,
    compute_topk_self_distillation_loss,
)
from trl.experimental.sdpo.sdpo_trainer import DistillationLogits
from trl.trainer.utils import selective_log_softmax

from pimono_sdpo.training.guards import ENTROPY, GAP, KL

# 128 MiB in float32: 128 tokens of a vocabulary of 262,144.
CHUNK_ELEMENTS = 2**25
Tensor = torch.Tensor
Batch = dict[str, Any]


class DistillationTrainer(SDPOTrainer):  # type: ignore[misc] # TRL ships no types
    """SDPOTrainer whose `args` are a GuardedSDPOConfig."""

    def compute_loss(
        self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Return the loss of a micro-batch by `args.method`, a scalar in float32."""
        inputs = trim(inputs)
        if self.args.method != "rft":
            loss: Tensor = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return loss
        succeeded = inputs["rewards"] >= self.args.success_reward_threshold
        mask = inputs["completion_mask"] * succeeded.unsqueeze(1)
        log_probs = self._log_probs(model, inputs)
        mean = -(log_probs * mask).sum() / mask.sum().clamp(min=1)
        self._log_self_distillation_metric("train", self.accelerator.gather(mean).mean().item())
        scaled: Tensor = mean / self.current_gradient_accumulation_steps
        return scaled

    def _generate_transformers(self, prompt_ids: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
        """Sample `sample_at_once` completions after each other, whose caches fit into memory."""
        completion_ids: list[list[int]] = []
        size = self.args.sample_at_once or len(prompt_ids)
        for at in range(0, len(prompt_ids), size):
            completion_ids += super()._generate_transformers(prompt_ids[at : at + size])[1]
        return prompt_ids, completion_ids

    def _forward_logits(self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int) -> Tensor:
        """Return logits in the model's dtype, before the temperature, which rounds there."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
        if "logits_to_keep" in self.model_kwarg_keys:
            inputs["logits_to_keep"] = logits_to_keep + 1
        logits: Tensor = model(**inputs).logits
        return logits[:, :-1][:, -logits_to_keep:]

    def _log_probs(self, model: Any, inputs: Batch) -> Tensor:
        """Return the log-probability of each token of the completions, rows x tokens, float32."""
        ids = inputs["completion_ids"]
        logits = self._forward_logits(
            model,
            torch.cat([inputs["prompt_ids"], ids], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            ids.size(1),
        )

        def of_chunk(part: Tensor, chosen: Tensor) -> Tensor:
            found: Tensor = selective_log_softmax(part.float() / self.temperature, chosen)
            return found

        return torch.cat([recomputed(of_chunk, *one) for one in chunks(logits, ids)], dim=1)

    def _compute_rollout_logps(self, **batch: Tensor) -> Tensor | None:
        """Return the same before the first update, None where every update is on policy."""
        rounds = self.args.steps_per_generation * self.num_iterations
        if self.args.gradient_accumulation_steps % rounds == 0:
            return None
        size = self.args.per_device_train_batch_size
        starts = range(0, batch["completion_ids"].size(0), size)
        with torch.no_grad():
            parts = [{n: t[at : at + size] for n, t in batch.items()} for at in starts]
            return torch.cat([self._log_probs(self.model, part) for part in parts])

    def _compute_policy_loss(self, inputs: Batch, student_logits: Tensor) -> Tensor:
        scaled = student_logits.float() / self.temperature
        loss: Tensor = super()._compute_policy_loss(inputs, scaled)
        return loss

    def _compute_self_distillation_loss(
        self, model: Any, inputs: Batch, distillation_logits: DistillationLogits
    ) -> Tensor:
        """Return TRL's mean over rows of the mean over tokens, and log what collapse shows in."""
        found, mode = distillation_logits, "train" if model.training else "eval"
        mask = found.loss_mask
        parts = list(chunks(found.student_logits, found.teacher_logits, found.completion_ids))
        by_part = [recomputed(self._token_losses, *part) for part in parts]
        losses, now = (torch.cat(one, dim=1) for one in zip(*by_part, strict=True))
        old, clip = inputs.get("old_per_token_logps"), self.args.distillation_is_clip
        if old is not None and clip is not None:
            losses = apply_importance_sampling_clipping(losses, now, old, clip)
        measured = [self._measure(*part) for part in parts]
        totals = torch.stack([(losses.detach() * mask).sum(), mask.sum()])
        sums = [(torch.cat(one, dim=1) * mask).sum() for one in zip(*measured, strict=True)]
        gathered = self.accelerator.gather(torch.stack([*totals, *sums]).unsqueeze(0)).sum(0)
        loss_sum, tokens, *of_measures = gathered.tolist()
        self._log_self_distillation_metric(mode, loss_sum / max(tokens, 1.0))
        if tokens:
            for name, total in zip((ENTROPY, KL, GAP), of_measures, strict=True):
                self._metrics[mode][name].append(total / tokens)
        by_row: Tensor = (losses * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)
        return by_row.mean()

    def _token_losses(self, student: Tensor, teacher: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the student's log-probability of each token, on policy."""
        args = self.args
        student, teacher = (one.float() / self.temperature for one in (student, teacher))
        log_probs = selective_log_softmax(student, ids)
        if args.distillation_mode == "topk_logits":
            losses = compute_topk_self_distillation_loss(
                student,
                teacher,
                distillation_topk=args.distillation_topk,
                distillation_alpha=args.distillation_alpha,
                distillation_add_tail=args.distillation_add_tail,
            )
        elif args.distillation_mode == "full_logits":
            losses = compute_full_logit_self_distillation_loss(
                student, teacher, distillation_alpha=args.distillation_alpha
            )
        else:
            losses = compute_sampled_token_self_distillation_loss(
                student, teacher, ids, distillation_alpha=args.distillation_alpha
            )
        return losses, log_probs

    @torch.no_grad()
    def _measure(self, student: Tensor, teacher: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return of each token, over the whole vocabulary, what guards.py watches.

        The student's entropy, the divergence of student from teacher, and by how much the teacher
        likes the sampled token better (natural logarithms).
        """
        ours, theirs = (torch.log_softmax(one.float() / self.temperature, dim=-1) for one in (student, teacher))
        chances, gap = ours.exp(), theirs.sub_(ours)
        entropy, divergence = -(chances * ours).sum(-1), -(chances * gap).sum(-1)
        return entropy, divergence, gap.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def trim(batch: Batch) -> Batch:
    """Return a micro-batch without the columns that are padding in all of its rows."""
    prompt, completion = batch["prompt_mask"], batch["completion_mask"]
    left = int(prompt.argmax(dim=1).min())
    width = completion.size(1)
    right = width - max(1, int(completion.sum(dim=1).max()))
    trimmed = {**batch, "prompt_ids": batch["prompt_ids"][:, left:], "prompt_mask": prompt[:, left:]}
    for name in ("completion_ids", "completion_mask", "old_per_token_logps"):
        if batch.get(name) is not None:
            trimmed[name] = batch[name][:, : width - right]
    if "teacher_attention_mask" in batch:
        mask = batch["teacher_attention_mask"]
        taught = slice(int(mask.argmax(dim=1).min()), mask.size(1) - right)
        trimmed["teacher_attention_mask"] = mask[:, taught]
        trimmed["teacher_input_ids"] = batch["teacher_input_ids"][:, taught]
    return trimmed


def chunks(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors of rows x tokens x anything by tokens, at most CHUNK_ELEMENTS logits each."""
    tokens = max(1, CHUNK_ELEMENTS // max(1, logits.size(0) * logits.size(-1)))
    return zip(*(torch.split(one, tokens, dim=1) for one in (logits, *others)), strict=True)


def recomputed(function: Any, *inputs: Tensor) -> Any:
    """Call a function whose intermediate results the backward pass computes again, if large."""
    if inputs[0].numel() * 2 <= CHUNK_ELEMENTS:
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False)
