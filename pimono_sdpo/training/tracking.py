"""Decide where a run's metrics go: a Trackio Space, or this machine alone."""

import itertools
import logging
import os
import shlex
from datetime import UTC, datetime

from httpx2 import HTTPError
from huggingface_hub import HfApi
from trackio.sqlite_storage import SQLiteStorage
from trl.experimental.sdpo import SDPOConfig

logger = logging.getLogger(__name__)

PROJECT = "pimono-sdpo"
SPACE_VARIABLE = "TRACKIO_SPACE_ID"
ID_CHARS = 12


def set_up_trackio(args: SDPOConfig, smoke: bool) -> None:
    """Settle project and Space in place; TRACKIO_SPACE_ID counts unless the argument is given.

    A Space that cannot be reached would end the training at its first step: then, and in a smoke
    run, metrics stay on this machine.
    """
    # After training Trackio would publish a public copy of the metrics unasked.
    args.trackio_static_space_id = False
    if args.project == "huggingface":
        args.project = PROJECT
    space = args.trackio_space_id or os.environ.get(SPACE_VARIABLE)
    if space and not smoke:
        problem = hub_problem()
        if problem:
            logger.warning(
                "Trackio logs to this machine only, since the Space `%s` cannot be used (%s); "
                "later: %s",
                space,
                problem,
                sync_command(args.project, space),
            )
            space = None
    args.trackio_space_id = space if space and not smoke else None
    if args.trackio_space_id is None:
        # Trackio reads the variable by itself.
        os.environ.pop(SPACE_VARIABLE, None)


def free_run_name(args: SDPOConfig) -> str:
    """Return the run's name, numbered when a run of this name has logged to this machine already.

    Trackio would show both under one name. What a Space holds is not asked for: there the name gets
    the id of the job, or the time.
    """
    name = str(args.run_name)
    if "trackio" not in args.report_to:
        return name
    if args.trackio_space_id is not None:
        told_apart = os.environ.get("JOB_ID") or datetime.now(UTC).strftime("%m%d-%H%M%S")
        return f"{name}-{told_apart[-ID_CHARS:]}"
    taken = {str(run) for run in SQLiteStorage.get_runs(args.project)}
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain([name], numbered) if one not in taken)


def hub_problem() -> str | None:
    """Say in a few words why nothing can be written to the Hub; None when it can be."""
    try:
        HfApi().whoami()
    except HTTPError as error:
        return f"the Hub answers {type(error).__name__}; check HF_TOKEN and the network"
    except OSError as error:
        # No token at all, or HF_HUB_OFFLINE.
        return f"{type(error).__name__}; set HF_TOKEN and unset HF_HUB_OFFLINE"
    return None


def sync_command(project: str, space: str) -> str:
    """Return the command line that brings what was logged here to a Space."""
    return shlex.join(["trackio", "sync", "--project", project, "--space-id", space, "--private"])


def space_url(space: str | None) -> str | None:
    """Return the address of a Space."""
    return f"https://huggingface.co/spaces/{space}" if space else None
