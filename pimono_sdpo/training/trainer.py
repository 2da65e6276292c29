"""TRL's SDPO trainer with a float32 loss, metrics of collapse, and the methods `grpo` and `rft`.

TRL computes the loss in the dtype of the logits. In bfloat16 the gradient of a small gap between
student and teacher is then mostly rounding error. Here the loss is computed in float32 for chunks of
CHUNK_ELEMENTS logits; the backward pass recomputes them, so that no full float32 copy is kept.

All methods use the same rollouts, rewards and checkpoints. `--method sdpo` distils; `grpo` uses only
TRL's policy loss; `rft` (rejection-sampling fine-tuning) uses the negative log-likelihood of the
completions that reach success_reward_threshold. `--num_iterations` is the number of updates per batch
of rollouts.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from trl.chat_template_utils import parse_response
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

    def _calculate_rewards(
        self, inputs: list[Batch], prompts: list[Any], completions: list[Any], completion_ids_list: list[list[int]]
    ) -> Tensor:
        """Give the rewards messages with the tool calls that TRL parses, as its GRPO trainer does."""
        if isinstance(completions[0], list):
            tools = (self.chat_template_kwargs or {}).get("tools")
            completions = read_messages(self._tokenizer, self._tokenize_prompts(prompts), completion_ids_list, tools)
        rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return rewards

    def _generate_transformers(self, prompt_ids: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
        """Sample `sample_at_once` completions at a time, so that their caches fit into memory."""
        completion_ids: list[list[int]] = []
        size = self.args.sample_at_once or len(prompt_ids)
        for start in range(0, len(prompt_ids), size):
            completion_ids += super()._generate_transformers(prompt_ids[start : start + size])[1]
        return prompt_ids, completion_ids

    def _forward_logits(self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int) -> Tensor:
        """Return logits in the model's dtype, not divided by the temperature, which would round them."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
        if "logits_to_keep" in self.model_kwarg_keys:
            inputs["logits_to_keep"] = logits_to_keep + 1
        logits: Tensor = model(**inputs).logits
        return logits[:, :-1][:, -logits_to_keep:]

    def _log_probs(self, model: Any, inputs: Batch) -> Tensor:
        """Return the log-probability of each completion token, shape (rows, tokens), float32."""
        ids = inputs["completion_ids"]
        logits = self._forward_logits(
            model,
            torch.cat([inputs["prompt_ids"], ids], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            ids.size(1),
        )

        def chunk_log_probs(chunk: Tensor, chunk_ids: Tensor) -> Tensor:
            log_probs: Tensor = selective_log_softmax(chunk.float() / self.temperature, chunk_ids)
            return log_probs

        return torch.cat([recomputed(chunk_log_probs, *chunk) for chunk in chunks(logits, ids)], dim=1)

    def _compute_rollout_logps(self, **batch: Tensor) -> Tensor | None:
        """Return the log-probabilities before the first update; None where every update is on policy."""
        micro_batches = self.args.steps_per_generation * self.num_iterations
        if self.args.gradient_accumulation_steps % micro_batches == 0:
            return None
        size = self.args.per_device_train_batch_size
        starts = range(0, batch["completion_ids"].size(0), size)
        with torch.no_grad():
            parts = [{name: value[start : start + size] for name, value in batch.items()} for start in starts]
            return torch.cat([self._log_probs(self.model, part) for part in parts])

    def _compute_policy_loss(self, inputs: Batch, student_logits: Tensor) -> Tensor:
        scaled = student_logits.float() / self.temperature
        loss: Tensor = super()._compute_policy_loss(inputs, scaled)
        return loss

    def _compute_self_distillation_loss(
        self, model: Any, inputs: Batch, distillation_logits: DistillationLogits
    ) -> Tensor:
        """Return TRL's mean over rows of the mean over tokens, and log the loss and the metrics of collapse."""
        mode, d = "train" if model.training else "eval", distillation_logits
        mask = d.loss_mask
        parts = list(chunks(d.student_logits, d.teacher_logits, d.completion_ids))
        by_part = [recomputed(self._token_losses, *part) for part in parts]
        losses, log_probs = (torch.cat(values, dim=1) for values in zip(*by_part, strict=True))
        old_log_probs, clip = inputs.get("old_per_token_logps"), self.args.distillation_is_clip
        if old_log_probs is not None and clip is not None:
            losses = apply_importance_sampling_clipping(losses, log_probs, old_log_probs, clip)
        measures = zip(*(self._measure(*part) for part in parts), strict=True)
        sums = [(torch.cat(values, dim=1) * mask).sum() for values in measures]
        local = torch.stack([(losses.detach() * mask).sum(), mask.sum(), *sums])
        loss_sum, tokens, *measure_sums = self.accelerator.gather(local.unsqueeze(0)).sum(0).tolist()
        self._log_self_distillation_metric(mode, loss_sum / max(tokens, 1.0))
        if tokens:
            for name, total in zip((ENTROPY, KL, GAP), measure_sums, strict=True):
                self._metrics[mode][name].append(total / tokens)
        by_row: Tensor = (losses * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)
        return by_row.mean()

    def _token_losses(self, student: Tensor, teacher: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each token, without importance weights, and the student's log-probability."""
        args = self.args
        student, teacher = (logits.float() / self.temperature for logits in (student, teacher))
        log_probs = selective_log_softmax(student, ids)
        alpha = {"distillation_alpha": args.distillation_alpha}
        if args.distillation_mode == "topk_logits":
            topk = {"distillation_topk": args.distillation_topk, "distillation_add_tail": args.distillation_add_tail}
            losses = compute_topk_self_distillation_loss(student, teacher, **topk, **alpha)
        elif args.distillation_mode == "full_logits":
            losses = compute_full_logit_self_distillation_loss(student, teacher, **alpha)
        else:
            losses = compute_sampled_token_self_distillation_loss(student, teacher, ids, **alpha)
        return losses, log_probs

    @torch.no_grad()
    def _measure(self, student: Tensor, teacher: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the metrics of each token that guards.py monitors, over the whole vocabulary, in nats.

        They are the student's entropy, the KL divergence of student from teacher, and the teacher's minus
        the student's log-probability of the sampled token.
        """
        log_probs, gap = (torch.log_softmax(x.float() / self.temperature, dim=-1) for x in (student, teacher))
        probs, gap = log_probs.exp(), gap.sub_(log_probs)
        entropy, divergence = -(probs * log_probs).sum(-1), -(probs * gap).sum(-1)
        return entropy, divergence, gap.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def read_messages(
    tokenizer: Any, prompt_ids: list[list[int]], completion_ids: list[list[int]], tools: list[Batch] | None = None
) -> list[list[Batch]]:
    """Return each completion as a conversation of one message.

    If the tokenizer has a response template, TRL and Transformers parse its tool calls and reasoning;
    a message with a malformed call is the plain text.
    """
    if getattr(tokenizer, "response_template", None) is None:
        texts = tokenizer.batch_decode(completion_ids, skip_special_tokens=True)
        return [[{"role": "assistant", "content": text}] for text in texts]
    messages = []
    for prefix, ids in zip(prompt_ids, completion_ids, strict=True):
        try:
            message = parse_response(tokenizer, ids, prefix=prefix, tools=tools)
        except RecursionError:  # which TRL does not catch
            message = {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
        messages.append([message])
    return messages


def trim(batch: Batch) -> Batch:
    """Return a micro-batch without token positions that are padding in all of its rows."""
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
        kept = slice(int(mask.argmax(dim=1).min()), mask.size(1) - right)
        trimmed["teacher_attention_mask"] = mask[:, kept]
        trimmed["teacher_input_ids"] = batch["teacher_input_ids"][:, kept]
    return trimmed


def chunks(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors of shape (rows, tokens, ...) by tokens, so that a chunk has at most CHUNK_ELEMENTS logits."""
    tokens = max(1, CHUNK_ELEMENTS // max(1, logits.size(0) * logits.size(-1)))
    return zip(*(torch.split(tensor, tokens, dim=1) for tensor in (logits, *others)), strict=True)


def recomputed(function: Any, *inputs: Tensor) -> Any:
    """Call a function on tensors; if they are large, the backward pass recomputes its intermediate results."""
    if inputs[0].numel() * 2 <= CHUNK_ELEMENTS:
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False)
