"""What this project adds to TRL's configurations: the guards of a run, where a teacher starts."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trl import DPOConfig, SFTConfig
from trl.experimental.sdpo import SDPOConfig

from pimono_sdpo.training.detectors import GUARDS, LOSS


@dataclass
class GuardOptions:
    """The guards of a run (see guards.py), mixed into a configuration of TRL.

    What a guard counts are logged values; the recipes log every step. Without rewards, as in SFT
    and DPO, only `loss_spike` has something to watch.
    """

    METHOD: ClassVar[str]
    # The metric that `loss_spike` watches.
    WATCHED_LOSS: ClassVar[str] = "loss"

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

    def __post_init__(self) -> None:
        """Check what TRL does not know; raises ValueError."""
        super().__post_init__()  # type: ignore[misc] # of the configuration it is mixed into
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


@dataclass
class TrainingConfig(GuardOptions, SDPOConfig):  # type: ignore[misc] # TRL ships no types
    """SDPOConfig, the guards, and the start of the EMA teacher (see callbacks.py)."""

    METHOD = "sdpo"
    WATCHED_LOSS = LOSS

    teacher_start: Literal["student", "zero"] = field(
        default="student",
        metadata={"help": "What the EMA of the LoRA factors starts from; zero is TRL's."},
    )


@dataclass
class GuardedSFTConfig(GuardOptions, SFTConfig):  # type: ignore[misc] # TRL ships no types
    """SFTConfig and the guards."""

    METHOD = "sft"


@dataclass
class GuardedDPOConfig(GuardOptions, DPOConfig):  # type: ignore[misc] # TRL ships no types
    """DPOConfig and the guards."""

    METHOD = "dpo"
