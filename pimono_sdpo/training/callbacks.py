"""Make the EMA teacher that of the method, and a resumed run the same run, to the bit.

The method's teacher starts as a copy of the student and averages all weights. TRL starts both LoRA
factors at zero and averages each of them: after t steps at rate r the product has reached about
(1 - (1 - r)^t)^2 of the student's instead of 1 - (1 - r)^t, 0.05 instead of 0.21 after 24 steps at
0.01. Started as the student's copy (its B is zero, so the teacher is the base model all the same)
the average of the factors is the average of the products but for what A moves meanwhile;
tests/training/test_teacher.py measures both against the average of the products themselves.

TRL saves the teacher adapter in every checkpoint and the Trainer loads it back, but the callback
that averages it then tries to add it again and fails. Starting the average at zero instead would
train against another teacher than an uninterrupted run. The rows are shuffled anew each epoch by
a generator that no checkpoint keeps, so a resumed run would begin again with the first order.
"""

from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from transformers import TrainerCallback
from trl.experimental.sdpo import SDPOTrainer
from trl.experimental.sdpo.teacher_sync import PEFTAdapterEMACallback


class ResumableTeacher(PEFTAdapterEMACallback):  # type: ignore[misc] # TRL ships no types
    """The EMA of TRL, with a teacher from the start that goes on from what a checkpoint kept.

    TRL adds the adapter when training begins: evaluating before that fails for want of a teacher.
    """

    def __init__(self, *, from_student: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self._initialize_teacher_adapter()
        if from_student:
            model: Any = self.accelerator.unwrap_model(self.model)
            student = get_peft_model_state_dict(model)
            set_peft_model_state_dict(model, student, self.teacher_adapter_name)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Average on from the adapter in the model, into which a checkpoint has been read."""
        model: Any = self.accelerator.unwrap_model(self.model)
        kept = get_peft_model_state_dict(model, adapter_name=self.teacher_adapter_name)
        self.shadow_weights = {name: value.detach().clone() for name, value in kept.items()}


class ReplayedShuffles(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Draw the orders of the finished epochs again, so that the next one is the right one."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any, **_: Any
    ) -> None:
        """Bring the sampler's generator to where the checkpoint was written."""
        batches = train_dataloader.batch_sampler
        while isinstance(batches, BatchSamplerShard):
            # With several processes, each takes its share of the same batches.
            batches = batches.batch_sampler
        sampler = batches.sampler
        if not sampler.shuffle:
            return
        for _epoch in range(int(state.epoch or 0)):
            torch.randperm(sampler.num_samples, generator=sampler.generator)


def make_resumable(trainer: SDPOTrainer) -> None:
    """Add both; ResumableTeacher takes the place of TRL's callback if there is an EMA teacher."""
    trainer.add_callback(ReplayedShuffles())
    theirs = trainer.pop_callback(PEFTAdapterEMACallback)
    if theirs is None:
        return
    trainer.add_callback(
        ResumableTeacher(
            from_student=trainer.args.teacher_start == "student",
            model=theirs.model,
            teacher_adapter_name=theirs.teacher_adapter_name,
            update_rate=theirs.update_rate,
            sync_steps=theirs.sync_steps,
            accelerator=theirs.accelerator,
        )
    )
