# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "pimono-sdpo[train] @ git+https://github.com/pimono-sdpo/pimono-sdpo@v0.1.0",
# ]
#
# [tool.hf-jobs]
# flavor = "a10g-large"
# timeout = "3h"
# secrets = ["HF_TOKEN"]
# env = { TIME_LIMIT = "3h" }
# ///
"""Train a LoRA adapter with SFT on recorded answers, and write its card.

    train_sft.py --dataset ROWS --run-name NAME [--config RECIPE] [any SFTConfig/ModelConfig flag]

ROWS have `prompt` and `completion`, both conversations, and `tools` if they call any; the loss is
computed on the completion only. RECIPE is a YAML file or a name (default qwen3_4b_sft; tiny_sft for
a CPU). OUTPUT, by default outputs/NAME, gets run.json and the adapter with its card under
adapter/; rows that do not fit into --max_length are left out and listed in left-out.json.

--mode preflight print what can be found before the first step: rows, lengths, memory
--mode smoke     train for at most 2 steps, push nothing, log to this machine
--mode train     train; with --hub_model_id or HUB_MODEL_ID, publish the adapter
--mode card      write the card again from OUTPUT/run.json

A training that was killed resumes from its last checkpoint when started again with the same
arguments, and refuses others. A finished one is kept; --overwrite starts over once everything
given has been checked. HF_TOKEN, HUB_MODEL_ID, TRACKIO_SPACE_ID and TIME_LIMIT are read from the
environment. Exit code 2: something given cannot be used.
"""

import sys

from pimono_sdpo.training import quiet_libraries


def main(argv: list[str]) -> int:
    """Run the job and return its exit code."""
    quiet_libraries()
    from pimono_sdpo.training.run import run_job
    from pimono_sdpo.training.supervised import SFT

    return run_job(SFT, argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
