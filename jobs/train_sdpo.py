# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "bitsandbytes==0.50.2", "datasets==5.2.0",
#     "huggingface-hub==2.4.0", "peft==0.21.2", "polars==2.1.0", "pyarrow==26.0.1",
#     "scipy==1.17.1", "torch==2.13.0", "trackio==0.43.0", "transformers==5.23.0",
#     "trl==1.16.0",
# ]
#
# [tool.hf-jobs]
# flavor = "a10g-large"
# timeout = "3h"
# secrets = ["HF_TOKEN"]
# env = { TIME_LIMIT = "3h" }
# ///
"""Train a LoRA adapter with SDPO on filtered traces, and write its card.

    train_sdpo.py --mode train --run-name NAME [--config RECIPE] [any SDPOConfig/ModelConfig flag]

RECIPE is a YAML file or a name (default gemma4_12b; tiny for a CPU).
"""

import sys

from pimono_sdpo.__main__ import start


def main(argv: list[str]) -> int:
    """Run the job and return its exit code."""
    from pimono_sdpo.training.run import run_script

    return run_script("sdpo", argv, __doc__)


if __name__ == "__main__":
    start(lambda: sys.exit(main(sys.argv[1:])), "train_sdpo")
