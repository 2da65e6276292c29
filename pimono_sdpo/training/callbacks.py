"""Carry the EMA teacher over a restart.

TRL saves the teacher adapter in every checkpoint and the Trainer loads it back, but the callback
that averages it then tries to add it again and fails. Starting the average at zero instead would
train against another teacher than an uninterrupted run.
"""

from typing import Any

from peft import get_peft_model_state_dict
from trl.experimental.sdpo import SDPOTrainer
from trl.experimental.sdpo.teacher_sync import PEFTAdapterEMACallback


class ResumableTeacher(PEFTAdapterEMACallback):  # type: ignore[misc] # TRL ships no types
    """The EMA of TRL that goes on from a teacher adapter found in the model."""

    _initialized: bool

    def _initialize_teacher_adapter(self) -> None:
        model: Any = self.model
        if self.accelerator is not None:
            model = self.accelerator.unwrap_model(model)
        if self._initialized or self.teacher_adapter_name not in model.peft_config:
            super()._initialize_teacher_adapter()
            return
        state = get_peft_model_state_dict(model, adapter_name=self.teacher_adapter_name)
        self.shadow_weights = {name: value.detach().clone() for name, value in state.items()}
        self.teacher_adapter_config = model.peft_config[self.teacher_adapter_name]
        self._initialized = True


def make_teacher_resumable(trainer: SDPOTrainer) -> None:
    """Put ResumableTeacher in the place of TRL's callback, when the run has an EMA teacher."""
    theirs = trainer.pop_callback(PEFTAdapterEMACallback)
    if theirs is None:
        return
    trainer.add_callback(
        ResumableTeacher(
            model=theirs.model,
            teacher_adapter_name=theirs.teacher_adapter_name,
            update_rate=theirs.update_rate,
            sync_steps=theirs.sync_steps,
            accelerator=theirs.accelerator,
        )
    )
