"""Log a run and its rollouts to Trackio; a Space that fails does not stop the training.

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
from pimono_sdpo.training.console import warn

SPACE_VARIABLE = "TRACKIO_SPACE_ID"
# The arguments that the dashboard and the run log list.
TRAINING_ARGUMENTS = (
    "max_steps num_train_epochs learning_rate lr_scheduler_type warmup_steps weight_decay max_grad_norm optim "
    "per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing bf16 seed stop_on"
).split()
MODEL_ARGUMENTS = (
    "dtype load_in_4bit load_in_8bit bnb_4bit_quant_type use_bnb_nested_quant "
    "lora_r lora_alpha lora_dropout use_rslora use_dora"
).split()
# Rollouts per step in the dashboard.
ROLLOUTS = 8
# Rollouts in the run log: how many per step, of about how many steps, with how many characters per text.
KEPT_ROLLOUTS, KEPT_STEPS, KEPT_CHARS = 2, 12, 1000
# Totals logged at the end of the training, which would be curves of one point.
TOTALS = frozenset("train_runtime train_samples_per_second train_steps_per_second train_loss total_flos".split())
Json = dict[str, Any]


def set_up_trackio(args: Any, smoke: bool) -> None:
    """Set project and Space in place; the argument overrides the environment, a smoke run uses no Space."""
    # Otherwise Trackio publishes a public copy of the metrics after training.
    args.trackio_static_space_id = False
    if args.project == "huggingface":
        args.project = "pimono-sdpo"
    # Removed, since Trackio would read the variable itself.
    space = os.environ.pop(SPACE_VARIABLE, None)
    args.trackio_space_id = None if smoke else args.trackio_space_id or space or None


def free_run_name(args: Any) -> str:
    """Return the run's name, with the job's id or the time appended where it may be taken."""
    name = str(args.run_name)
    if "trackio" not in args.report_to:
        return name
    if args.trackio_space_id is None and name not in SQLiteStorage.get_runs(args.project):
        return name
    suffix = os.environ.get("JOB_ID") or f"{datetime.now(UTC):%m%d-%H%M%S}"
    return f"{name}-{suffix[-12:]}"


class SafeTrackio(TrackioCallback):  # type: ignore[misc] # transformers is untyped here
    """The callback of Transformers, with another config and a fallback to this machine when a Space fails.

    The callback of Transformers logs all arguments, including machine paths, and empty mappings, which
    break a later export of the run.
    """

    def __init__(self, config: Json) -> None:
        super().__init__()
        self.config = config

    def setup(self, args: Any, state: Any, model: Any, **_: Any) -> None:
        """Start the run, or continue the run of this name."""
        self._initialized = True
        if not state.is_world_process_zero:
            return
        try:
            self._begin(args)
        except Exception as error:
            # No error of the Space or its bucket may stop the training.
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
        """Log the metrics with the training step, where Trackio would count calls."""
        if state.is_world_process_zero and self._initialized:
            metrics = {name: value for name, value in logs.items() if name not in TOTALS}
            trackio.log(rewrite_logs(metrics), step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Finish the run; Trackio waits for uploads for at most half a minute, the rest can be synced later."""
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
        # The preflight samples before there is a run.
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
    """Add the first rollouts of some steps to the log history, which is part of every checkpoint."""
    step = state.global_step + 1
    if (step - 1) % max(1, state.max_steps // KEPT_STEPS) and step != state.max_steps:
        return
    shortened = [
        {
            "prompt": shorten(str(rollout["prompt"][-1]["content"]), KEPT_CHARS),
            "completion": shorten(rollout["completion"], KEPT_CHARS),
            "reward": rollout["reward"],
            "feedback": shorten(rollout["feedback"] or "", KEPT_CHARS),
        }
        for rollout in rollouts[:KEPT_ROLLOUTS]
    ]
    state.log_history.append({"step": step, "rollouts": shortened})


def list_arguments(args: Any, model_args: Any) -> Json:
    """Return the arguments that the dashboard and the run log list."""
    settings = args.to_dict()
    named = {name: settings[name] for name in TRAINING_ARGUMENTS}
    return named | {name: vars(model_args)[name] for name in MODEL_ARGUMENTS}
