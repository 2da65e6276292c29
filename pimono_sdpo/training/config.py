"""What this project adds to TRL's SDPOConfig: the guards of a run, and where its teacher starts."""

from dataclasses import dataclass, field
from typing import Literal

from trl.experimental.sdpo import SDPOConfig

from pimono_sdpo.training.detectors import GUARDS


@dataclass
class TrainingConfig(SDPOConfig):  # type: ignore[misc] # TRL ships no types
    """SDPOConfig, the guards (see guards.py) and the start of the EMA teacher (see callbacks.py).

    What a guard counts are logged values; the recipes log every step.
    """

    stop_on: str = field(
        default="",
        metadata={"help": f"Guards that end the training, by comma, or all: {', '.join(GUARDS)}."},
    )
    guard_window: int = field(
        default=10, metadata={"help": "Values in the moving mean of the reward."}
    )
    guard_collapse: float = field(
        default=0.5,
        metadata={"help": "Alert when the moving mean falls below this share of its best; 0: off."},
    )
    guard_dead_steps: int = field(
        default=10, metadata={"help": "Alert when nothing was reprompted so often; 0: off."}
    )
    guard_flat_steps: int = field(
        default=20, metadata={"help": "Alert when all groups were flat so often; 0: off."}
    )
    guard_spike: float = field(
        default=10.0,
        metadata={"help": "Alert when the loss is so many times its running median; 0: off."},
    )
    guard_clipped_steps: int = field(
        default=10,
        metadata={"help": "Alert when all completions ran into their limit so often; 0: off."},
    )
    keep_best: bool = field(
        default=True,
        metadata={"help": "Keep the adapter of the checkpoint with the best moving mean in best/."},
    )
    teacher_start: Literal["student", "zero"] = field(
        default="student",
        metadata={"help": "What the EMA of the LoRA factors starts from; zero is TRL's."},
    )

    def __post_init__(self) -> None:
        """Check what TRL does not know; raises ValueError."""
        super().__post_init__()
        unknown = self.stopping() - {*GUARDS}
        if unknown:
            raise ValueError(
                f"--stop_on names {', '.join(sorted(unknown))}; give some of {', '.join(GUARDS)}, "
                "or all."
            )
        if self.guard_window < 1:
            raise ValueError(f"--guard_window is {self.guard_window}; give a number from 1.")
        if not 0 <= self.guard_collapse < 1:
            raise ValueError(
                f"--guard_collapse is {self.guard_collapse}; give a share below 1, or 0 for none."
            )
        for name in ("guard_dead_steps", "guard_flat_steps", "guard_clipped_steps", "guard_spike"):
            if vars(self)[name] < 0:
                raise ValueError(f"--{name} is {vars(self)[name]}; give a number from 0.")

    def stopping(self) -> set[str]:
        """Return the guards that end the training."""
        names = {name.strip() for name in self.stop_on.split(",")} - {""}
        return {*GUARDS} if names == {"all"} else names
