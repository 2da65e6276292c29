"""Silence what libraries say at each start about things that no user of a job could change."""

import logging
import os
import warnings


def quiet_libraries() -> None:
    """Call before TRL, Transformers or bitsandbytes are imported."""
    # Read by TRL when it is imported.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Transformers has renamed an argument that TRL sets by itself.
    warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
    # Without the optional `kernels` package bitsandbytes computes NF4 by its own CPU code.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
