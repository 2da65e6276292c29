"""End a training in time: before its machine is taken away, with a checkpoint and an adapter.

A job of Hugging Face Jobs is killed when its time is over, after 30 minutes unless told otherwise,
and does not know its own limit; `--time_limit` or TIME_LIMIT tells it.
"""

import logging
import os
import re
from time import time
from typing import Any

from accelerate.utils import gather_object
from httpx2 import HTTPError
from huggingface_hub import HfApi
from transformers import TrainerCallback

from pimono_sdpo.errors import TrainingInputError

logger = logging.getLogger(__name__)

VARIABLE = "TIME_LIMIT"
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
# What Hugging Face Jobs gives a job that asks for nothing.
DEFAULT_IN_A_JOB = "30m"
# Saving, the card and the push take minutes, of a short job a part.
RESERVE, MOST_OF_LIMIT = 300.0, 0.25
IMPORTED = time()


def seconds_of(limit: str) -> float:
    """Return the seconds of a limit as Hugging Face Jobs writes it; raises TrainingInputError.

    >>> seconds_of("90m"), seconds_of("1.5h"), seconds_of("45")
    (5400.0, 5400.0, 45.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", limit.strip())
    if found is None or not float(found[1]):
        raise TrainingInputError(
            f"The time limit `{limit}` is no time; give one such as 90m or 3h, as --timeout."
        )
    return float(found[1]) * UNITS[found[2]]


def time_limit_of(given: str | None) -> "TimeLimit | None":
    """Return the limit that is given, or that holds in this job; None when there is none.

    It counts from the start of the job, which includes the time of installing.
    """
    limit = given or os.environ.get(VARIABLE)
    in_job = "JOB_ID" in os.environ
    if not limit and not in_job:
        return None
    if not limit:
        logger.warning(
            "This Hugging Face job was not told its time limit, so that the %s which jobs get when "
            "they ask for nothing are assumed; give --time_limit what was given as --timeout.",
            DEFAULT_IN_A_JOB,
        )
        limit = DEFAULT_IN_A_JOB
    seconds = seconds_of(limit)
    return TimeLimit(_started_at(seconds) if in_job else IMPORTED, seconds)


def _started_at(limit: float) -> float:
    """When this job began to run, by the Hub; else when this process did."""
    try:
        job = HfApi().inspect_job(job_id=os.environ["JOB_ID"])
    except (HTTPError, OSError):
        # No token, no network, or a job of an organization: installing is not counted then.
        return IMPORTED
    started = job.started_at.timestamp() if job.started_at else IMPORTED
    # Clocks that disagree by more than that say nothing.
    return started if 0 <= IMPORTED - started < limit else IMPORTED


class TimeLimit(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Stop after the last step that leaves time for the end; all processes stop together.

    Seconds since 1970 and seconds; `stopped_at` is the step after which it stopped, None before.
    A training that is stopped scores no held-out rows: that is for the one that goes on to the end.
    """

    def __init__(self, started: float, seconds: float) -> None:
        self.seconds = seconds
        self.ends = started + seconds
        self.stopped_at: int | None = None
        self._longest = 0.0
        self._last = time()

    def reserve(self) -> float:
        """Seconds that must be left after the last step."""
        return min(RESERVE, self.seconds * MOST_OF_LIMIT)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count steps from here."""
        self._last = time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop when another step of the longest kind, its checkpoint included, is too much."""
        now = time()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        over = now + 1.5 * self._longest + self.reserve() >= self.ends
        if any(gather_object([over])) and state.global_step < state.max_steps:
            self.stopped_at = state.global_step
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"


def stopped_at(trainer: Any) -> int | None:
    """The step after which a trainer was stopped for want of time, None when it was not."""
    limits = (c for c in trainer.callback_handler.callbacks if isinstance(c, TimeLimit))
    return next((limit.stopped_at for limit in limits), None)
