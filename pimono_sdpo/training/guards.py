"""Watch a training: alert when it stops learning, keep its best adapter, end it if asked to.

reads what the Trainer logs / writes alerts to Trackio and stderr, OUTPUT/best, and its own state
into the Trainer's, which every checkpoint keeps
"""

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trackio
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import TrainerCallback

from pimono_sdpo import __version__
from pimono_sdpo.training.config import GuardOptions
from pimono_sdpo.training.detectors import Detectors, Rewards, Spikes, Streak
from pimono_sdpo.training.output import BEST, BEST_PARTIAL, read_object, write_json
from pimono_sdpo.training.publish import WEIGHTS

KEY = "pimono_sdpo_guards"
BEST_FILE = "best.json"
Json = dict[str, Any]


class Guards(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """The detectors over the whole run, whoever began it.

    TRL's metrics are the same in all processes, so all stop together; the first one alone speaks
    and writes. A run killed between its stop and its end makes one more step when gone on with.
    """

    def __init__(self, config: GuardOptions) -> None:
        self.config = config
        self.detectors = _detectors(config)
        self.alerts: list[Json] = []
        self.stopped_by: str | None = None
        self.went_back_to: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go on from what the checkpoint kept; a new run forgets the best of an older one."""
        kept = state.stateful_callbacks.get(KEY) if state.global_step else None
        if kept is not None:
            self.detectors = _detectors(self.config, kept["detectors"])
            self.alerts, self.stopped_by = kept["alerts"], kept["stopped_by"]
            control.should_training_stop |= self.stopped_by is not None
        elif state.is_world_process_zero and _kept_best(args) is not None:
            shutil.rmtree(Path(args.output_dir) / BEST)

    def on_log(self, args: Any, state: Any, control: Any, logs: Json, **_: Any) -> None:
        """Take a step's metrics in, and leave the state where the next checkpoint takes it.

        Evaluations log under other names; of rollouts used twice, rewards are logged once.
        """
        for guard, text in self.detectors.add(state.global_step, logs).items():
            stops = guard in self.config.stopping()
            self.alerts.append({"step": state.global_step, "guard": guard, "text": text})
            if stops:
                self.stopped_by = self.stopped_by or guard
                control.should_training_stop = True
                control.should_save = args.save_strategy != "no"
            if state.is_world_process_zero:
                _tell(args, state.global_step, guard, text, stops)
        state.stateful_callbacks[KEY] = {
            "detectors": asdict(self.detectors),
            "alerts": self.alerts,
            "stopped_by": self.stopped_by,
        }

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Copy the adapter of the checkpoint just written when the reward has been best there."""
        mean = self.detectors.rewards.mean()
        if not self.config.keep_best or not state.is_world_process_zero or mean is None:
            return
        best = _kept_best(args)
        if best is None or mean > best["reward_mean"]:
            _keep(Path(args.output_dir), state.global_step, mean)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        """Give the model the best adapter there is when a guard has ended the training."""
        best = _kept_best(args) if self.stopped_by is not None else None
        if best is not None:
            weights = load_file(Path(args.output_dir) / BEST / WEIGHTS[0])
            set_peft_model_state_dict(model, weights)
            self.went_back_to = best["step"]

    def record(self, args: Any) -> Json:
        """Return what the run log says: alerts, the best adapter, what ended the run and how."""
        return {
            "alerts": self.alerts,
            "best": _kept_best(args),
            "stopped_by": self.stopped_by,
            "went_back_to": self.went_back_to,
        }


def _detectors(config: GuardOptions, kept: Json | None = None) -> Detectors:
    """Make them new, or as a checkpoint has kept them, with the limits of the configuration."""
    state = kept or {"rewards": {}, "dead": {}, "flat": {}, "clipped": {}, "spikes": {}}
    rewards = {"window": config.guard_window, "share": config.guard_collapse}
    return Detectors(
        rewards=Rewards(**(state["rewards"] | rewards)),
        dead=Streak(**(state["dead"] | {"limit": config.guard_dead_steps})),
        flat=Streak(**(state["flat"] | {"limit": config.guard_flat_steps})),
        clipped=Streak(**(state["clipped"] | {"limit": config.guard_clipped_steps})),
        spikes=Spikes(**(state["spikes"] | {"factor": config.guard_spike})),
        loss=config.WATCHED_LOSS,
    )


def _tell(args: Any, step: int, guard: str, text: str, stops: bool) -> None:
    end = " The training ends here." if stops else ""
    print(f"train_{args.METHOD}: {guard} at step {step}: {text}{end}", file=sys.stderr)  # noqa: T201
    if "trackio" in args.report_to:
        level = trackio.AlertLevel.ERROR if stops else trackio.AlertLevel.WARN
        trackio.alert(guard, text + end, level=level)


def _kept_best(args: Any) -> Json | None:
    """Return what best/best.json says: step, reward_mean."""
    return read_object(Path(args.output_dir) / BEST / BEST_FILE)


def _keep(output: Path, step: int, mean: float) -> None:
    """Put the adapter of a checkpoint in the place of the best one before."""
    partial = output / BEST_PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for name in WEIGHTS:
        shutil.copyfile(output / f"checkpoint-{step}" / name, partial / name)
    write_json({"pimono_sdpo": __version__, "step": step, "reward_mean": mean}, partial / BEST_FILE)
    shutil.rmtree(output / BEST, ignore_errors=True)
    partial.replace(output / BEST)
