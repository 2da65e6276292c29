"""A trainer of TRL that is ready to run, whatever its method, and the training itself.

A killed training goes on from its newest whole checkpoint.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from transformers.integrations import TrackioCallback
from trl import ModelConfig

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.callbacks import Clock
from pimono_sdpo.training.guards import Guards
from pimono_sdpo.training.models import keep_layout, told
from pimono_sdpo.training.output import last_checkpoint
from pimono_sdpo.training.trackio_run import SafeTrackio, config_of

SMOKE_STEPS = 2


@dataclass(frozen=True)
class Fitted:
    """Rows within their budgets, and what was found and cut on the way.

    held_out        rows to evaluate on, None without any
    prompt_budget   tokens of a prompt, None without a budget of its own
    counts          of rows or tokens; `left_out` are rows by reason
    lengths         tokens of each row
    """

    rows: Dataset
    held_out: Dataset | None
    given: int
    prompt_budget: int | None
    counts: dict[str, Any]
    lengths: dict[str, list[int]]


@dataclass(frozen=True)
class Prepared:
    """A trainer ready to run, and what was decided on the way to it."""

    trainer: Any
    revision: str | None
    clock: Clock
    guards: Guards
    fitted: Fitted


class NoStepTooMany(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """End a run at once that was killed after its last checkpoint: the Trainer would go on."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop when no step is left."""
        control.should_training_stop |= state.global_step >= state.max_steps > 0


class Tokens(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Keep in every checkpoint how many tokens were seen: TRL counts from 0 when a run goes on.

    reads and writes the Trainer's state, which is saved in a checkpoint and read back from it
    """

    KEY, COUNT = "pimono_sdpo_tokens", "_total_train_tokens"

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go on from what the checkpoint kept."""
        if self.KEY in state.stateful_callbacks:
            setattr(self.trainer, self.COUNT, state.stateful_callbacks[self.KEY])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the count where the next checkpoint takes it along."""
        state.stateful_callbacks[self.KEY] = getattr(self.trainer, self.COUNT)


def settle_run(args: Any, smoke: bool) -> None:
    """Set in place what holds for every run of every job; a smoke run is short and stays local.

    Raises TrainingInputError for a token on the command line or a push without a repository.
    """
    if args.hub_token is not None:
        raise TrainingInputError(
            "--hub_token would be written into training_args.bin of every checkpoint; put the "
            "token into the environment variable HF_TOKEN instead."
        )
    if args.push_to_hub and args.hub_model_id is None:
        raise TrainingInputError(
            "--push_to_hub needs a repository; give --hub_model_id or set HUB_MODEL_ID."
        )
    # The Trainer would push training_args.bin along; publish.py pushes the adapter.
    args.push_to_hub = False
    args.model_init_kwargs = args.model_init_kwargs or {}
    if smoke:
        args.max_steps = SMOKE_STEPS if args.max_steps < 1 else min(SMOKE_STEPS, args.max_steps)
        args.save_strategy = "no"
        # Its metrics are no part of the training's run.
        args.run_name = f"{args.run_name}-smoke"
        args.hub_model_id = None


def build(make: Callable[[], Any], model_args: ModelConfig) -> Any:
    """Return the trainer that `make` builds; raises TrainingInputError when none can be."""
    with told(
        f"The model `{model_args.model_name_or_path}` cannot be trained with these arguments",
        "check its files, --lora_target_modules and the other arguments",
    ):
        trainer = make()
    keep_layout(trainer.model)
    if trainer.pop_callback(TrackioCallback) is not None:
        trainer.add_callback(SafeTrackio(config_of(trainer.args, model_args)))
    trainer.add_callback(NoStepTooMany())
    if hasattr(trainer, Tokens.COUNT):
        trainer.add_callback(Tokens(trainer))
    # TRL would leave a draft of a card in OUTPUT with every checkpoint; ours is with the adapter.
    trainer.create_model_card = _no_card
    return trainer


def _no_card(*_: Any, **__: Any) -> None:
    """Stand in for TRL's card."""


def train(prepared: Prepared) -> dict[str, float]:
    """Train to the last step, from the newest whole checkpoint if there is one.

    Returns the metrics of the whole run, whoever began it.
    """
    trainer = prepared.trainer
    checkpoint = last_checkpoint(Path(trainer.args.output_dir))
    result = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    state, batch = trainer.state, trainer.get_total_train_batch_size(trainer.args)
    return prepared.clock.whole_run(result.metrics, state.log_history, state.global_step, batch)
