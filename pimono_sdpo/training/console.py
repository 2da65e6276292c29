"""Print from the main process alone, and silence known warnings of libraries."""

import logging
import os
import sys
import warnings

from pimono_sdpo.text import escape_line


def is_main_process() -> bool:
    """Return whether this is the main process of the training."""
    return int(os.environ.get("RANK", "0")) == 0


def warn(text: str) -> None:
    """Print a warning on stderr."""
    sys.stderr.write(f"warning: {escape_line(text)}\n")


def say(text: str) -> None:
    """Print a line in the main process only."""
    if is_main_process():
        print(escape_line(text), flush=True)  # noqa: T201


def quiet_libraries() -> None:
    """Silence known warnings of TRL, Transformers and bitsandbytes; call it before they are imported."""
    # Read by TRL when it is imported.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Transformers has renamed an argument that TRL sets, and an attribute that PEFT reads.
    warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
    # It warns that without the optional package `kernels` it computes NF4 on a CPU by its own code.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
