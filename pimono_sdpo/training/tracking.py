"""Log a run to Trackio, rollouts included, so that no fault of Trackio stops the training.

writes metrics, sampled rollouts (the Traces tab) and a config without machine paths, to a Space or
to $TRACKIO_DIR on this machine
"""

import math
import os
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import trackio
from trackio.sqlite_storage import SQLiteStorage
from transformers.integrations import TrackioCallback
from transformers.integrations.integration_utils import rewrite_logs

from pimono_sdpo.text import shorten
from pimono_sdpo.training import warn

SPACE_VARIABLE = "TRACKIO_SPACE_ID"
# What the dashboard and the run log list.
TRAINING_ARGUMENTS = (
    "max_steps num_train_epochs learning_rate lr_scheduler_type warmup_steps weight_decay max_grad_norm optim "
    "per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing bf16 seed stop_on"
).split()
MODEL_ARGUMENTS = (
    "dtype load_in_4bit load_in_8bit bnb_4bit_quant_type use_bnb_nested_quant "
    "lora_r lora_alpha lora_dropout use_rslora use_dora"
).split()
# Of each step: enough to see what is rewarded, few enough for any number of steps.
ROLLOUTS = 8
# What the run log keeps of them: so many of about so many steps, with texts of so many characters.
KEPT_ROLLOUTS, KEPT_STEPS, KEPT_CHARS = 2, 12, 1000
# Of the whole training, logged once at its end: no curves.
ONCE = frozenset("train_runtime train_samples_per_second train_steps_per_second train_loss total_flos".split())
Json = dict[str, Any]


def set_up_trackio(args: Any, smoke: bool) -> None:
    """Set project and Space in place; the argument takes precedence, a smoke run stays here."""
    # Otherwise Trackio publishes a public copy of the metrics after training.
    args.trackio_static_space_id = False
    if args.project == "huggingface":
        args.project = "pimono-sdpo"
    # Trackio would read the variable by itself.
    space = os.environ.pop(SPACE_VARIABLE, None)
    args.trackio_space_id = None if smoke else args.trackio_space_id or space or None


def free_run_name(args: Any) -> str:
    """Return the run's name, with the id of the job or the time where another run may have it."""
    name = str(args.run_name)
    if "trackio" not in args.report_to:
        return name
    if args.trackio_space_id is None and name not in SQLiteStorage.get_runs(args.project):
        return name
    suffix = os.environ.get("JOB_ID") or f"{datetime.now(UTC):%m%d-%H%M%S}"
    return f"{name}-{suffix[-12:]}"


class SafeTrackio(TrackioCallback):  # type: ignore[misc] # transformers is untyped here
    """The callback of transformers with a config of our own; it logs here when a Space fails.

    Theirs logs all arguments, including machine paths and empty mappings, which break a later
    export of the run.
    """

    def __init__(self, config: Json) -> None:
        super().__init__()
        self.config = config

    def setup(self, args: Any, state: Any, model: Any, **_: Any) -> None:
        """Begin the run, or continue the one of this name."""
        self._initialized = True
        if not state.is_world_process_zero:
            return
        try:
            self._begin(args)
        except Exception as error:
            # Whatever the clients of Space and bucket raise, it may not stop the training.
            if args.trackio_space_id is None:
                raise
            sync = ["trackio", "sync", "--project", args.project, "--space-id", args.trackio_space_id, "--private"]
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            warn(
                f"Trackio logs to this machine only, since the Space `{args.trackio_space_id}` cannot be used "
                f"({reason}); later: {shlex.join(sync)}"
            )
            args.trackio_space_id = None
            self._begin(args)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Log under the step of the training; Trackio would count calls instead."""
        if state.is_world_process_zero and self._initialized:
            metrics = {name: value for name, value in logs.items() if name not in ONCE}
            trackio.log(rewrite_logs(metrics), step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Finish the run; Trackio waits at most half a minute, the rest can be synced later."""
        if state.is_world_process_zero and self._initialized:
            trackio.finish()
        self._initialized = False

    def _begin(self, args: Any) -> None:
        trackio.init(
            project=args.project,
            name=args.run_name,
            space_id=args.trackio_space_id,
            bucket_id=args.trackio_bucket_id,
            private=args.hub_private_repo is not False,
            config=self.config,
            resume="allow",
        )


def log_rollouts(step: int, rollouts: Sequence[Json]) -> None:
    """Log the first ROLLOUTS completions of a step: prompt, completion, reward, feedback."""
    if trackio.context_vars.current_run.get() is None:
        # Sampled by the preflight.
        return
    traces = {
        f"rollout_{number}": trackio.Trace(
            [*rollout["prompt"], {"role": "assistant", "content": rollout["completion"]}],
            metadata={
                "step": step,
                "reward": rollout["reward"] if math.isfinite(rollout["reward"]) else None,
                "feedback": rollout["feedback"] or "",
            },
        )
        for number, rollout in enumerate(rollouts[:ROLLOUTS])
    }
    trackio.log(traces, step=step)


def keep_rollouts(state: Any, rollouts: Sequence[Json]) -> None:
    """Keep the first completions of some steps in the history, which checkpoints and resumed runs keep."""
    step = state.global_step + 1
    if (step - 1) % max(1, state.max_steps // KEPT_STEPS) and step != state.max_steps:
        return
    kept = [
        {
            "prompt": shorten(str(rollout["prompt"][-1]["content"]), KEPT_CHARS),
            "completion": shorten(rollout["completion"], KEPT_CHARS),
            "reward": rollout["reward"],
            "feedback": shorten(rollout["feedback"] or "", KEPT_CHARS),
        }
        for rollout in rollouts[:KEPT_ROLLOUTS]
    ]
    state.log_history.append({"step": step, "rollouts": kept})


def list_arguments(args: Any, model_args: Any) -> Json:
    """Return the arguments that the dashboard and the run log list."""
    settings = args.to_dict()
    named = {name: settings[name] for name in TRAINING_ARGUMENTS}
    return named | {name: vars(model_args)[name] for name in MODEL_ARGUMENTS}
