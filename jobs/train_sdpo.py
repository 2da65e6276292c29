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
"""Train a LoRA adapter with SDPO on filtered traces, and write its card.

    train_sdpo.py --mode train --run-name NAME [--config RECIPE] [any SDPOConfig/ModelConfig flag]

RECIPE is a YAML file or a name (default gemma4_12b; tiny for a CPU). OUTPUT, by default
outputs/NAME, gets run.json, report.json and the adapter with its card under adapter/;
run-local.json beside them holds this machine's paths and is never published.

--mode prepare   only filter --source into OUTPUT/data
--mode preflight print what can be found before the first step: lengths, memory, rollouts, time
--mode smoke     train for at most 2 steps, push nothing, log to this machine
--mode train     train; with --hub_model_id or HUB_MODEL_ID, publish the adapter
--mode card      write the card again from OUTPUT/run.json and report.json

A training that was killed resumes from its last checkpoint when started again with the same
arguments, and refuses others. A finished one is kept; --overwrite starts over, rows included, once
everything given has been checked. HF_TOKEN, HUB_MODEL_ID, TRACKIO_SPACE_ID and TIME_LIMIT are read
from the environment. Exit code 2: something given cannot be used.
"""

import sys
from typing import TYPE_CHECKING

from pimono_sdpo.errors import PimonoError, TrainingInputError
from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.training.processes import (
    is_main_process,
    main_process_first,
    quiet_libraries,
    say,
)

if TYPE_CHECKING:
    from pimono_sdpo.training.run import Run


def main(argv: list[str]) -> int:
    """Run the job and return its exit code."""
    quiet_libraries()
    from pimono_sdpo.training.run import Run, report_problem
    from pimono_sdpo.training.sdpo import SDPO

    try:
        run = Run(SDPO, argv, __doc__)
        job = run.job
        if job.mode == "card":
            run.rewrite_card()
            return 0
        with run.open_output():
            if job.mode == "prepare":
                filter_source(run)
            elif job.dataset is not None:
                run.train(job.dataset)
            else:
                with main_process_first():
                    rows = filter_source(run)
                run.train(rows)
    except PimonoError as problem:
        return report_problem(SDPO, problem)
    return 0


def filter_source(run: "Run") -> str:
    """Return the folder of the rows of --source, which are filtered now or were before."""
    from pimono_sdpo.training.output import DATA, NEXT_DATA, REPORT_FILE, check_data
    from pimono_sdpo.training.rows import check_prepared, filter_options

    job, options = run.job, filter_options(run.job, run.args.seed)
    folder = run.output / DATA
    if job.mode != "prepare" and job.overwrite:
        # Until nothing can stop the new run, the rows of the old one stay.
        folder = run.output / NEXT_DATA
        if not is_main_process():
            return str(folder)
        check_data(run.output)
    elif job.mode != "prepare" and (folder / REPORT_FILE).exists():
        check_prepared(folder, options, job.source)
        return str(folder)
    if job.source is None:
        raise TrainingInputError(
            "There is nothing to train on; give --dataset (rows) or --source (traces)."
        )
    report = run_filter(job.source, folder, FilterOptions(**options))
    say(f"{report['kept']} of {report['sessions']} sessions are rows in {run.output / DATA}")
    return str(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
