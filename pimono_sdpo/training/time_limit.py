"""End a training before its machine is taken away, with a checkpoint and an adapter.

A job of Hugging Face Jobs is killed when its time is over, by default after 30 minutes, and cannot
ask for its own limit, so `--time_limit` or TIME_LIMIT states it.
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
# The default of Hugging Face Jobs.
DEFAULT_IN_A_JOB = "30m"
# Saving, the card and the push take minutes; a short job reserves a share.
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
            f"`{limit}` is not a valid time limit; use a duration such as 90m or 3h."
        )
    return float(found[1]) * UNITS[found[2]]


def time_limit_of(given: str | None) -> "TimeLimit | None":
    """Return the limit that is given or that holds in this job; None without one.

    It counts from the start of the job, which includes the time of installing.
    """
    limit = given or os.environ.get(VARIABLE)
    in_job = "JOB_ID" in os.environ
    if not limit and not in_job:
        return None
    if not limit:
        logger.warning(
            "This Hugging Face job does not know its time limit, so the default of %s is assumed; "
            "give --time_limit the value of --timeout.",
            DEFAULT_IN_A_JOB,
        )
        limit = DEFAULT_IN_A_JOB
    seconds = seconds_of(limit)
    return TimeLimit(_started_at(seconds) if in_job else IMPORTED, seconds)


def _started_at(limit: float) -> float:
    """Return when this job began, according to the Hub, or when this process did."""
    try:
        job = HfApi().inspect_job(job_id=os.environ["JOB_ID"])
    except (HTTPError, OSError):
        # No token, no network, or a job of an organization: then installing is not counted.
        return IMPORTED
    started = job.started_at.timestamp() if job.started_at else IMPORTED
    # Clocks that disagree by more than that cannot be used.
    return started if 0 <= IMPORTED - started < limit else IMPORTED


class TimeLimit(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Stop after the last step that leaves time for the end; all processes stop together.

    Seconds since 1970 and seconds; `stopped_at` is the step after which it stopped, None before.
    A training that is stopped scores no held-out rows; the resumed run does so at its end.
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
        """Stop when another step as long as the longest, with its checkpoint, would be too much."""
        now = time()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        over = now + 1.5 * self._longest + self.reserve() >= self.ends
        if any(gather_object([over])) and state.global_step < state.max_steps:
            self.stopped_at = state.global_step
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"


def stopped_at(trainer: Any) -> int | None:
    """Return the step after which the time limit stopped a trainer, None if it did not."""
    limits = (c for c in trainer.callback_handler.callbacks if isinstance(c, TimeLimit))
    return next((limit.stopped_at for limit in limits), None)
