"""Train a LoRA adapter on rows, on this machine or on Hugging Face Jobs.

pimono-sdpo train rows --config tiny --model-name-or-path build/demo/tiny-gemma4
pimono-sdpo train rows --method sft --config qwen3_4b_sft --max-steps 20
pimono-sdpo train rows --on hf:a10g-large --time-limit 3h

All options of the jobs are accepted after ROWS, with dashes or underscores; `pimono-sdpo train rows
-- --help` lists them. Without --config, the reference recipe of the method is used; the first lines
name the recipe and the model. Nothing leaves this machine unless a repository, a bucket or a Space
is given, also by HUB_MODEL_ID or TRACKIO_SPACE_ID.

With --on hf:FLAVOR, the rows are pushed to a private dataset, the installed version of this package
is uploaded with them, and the adapter is pushed to a private repository. All uploads are listed
first. The log is followed; the exit code is 0 if the job completed. --time-limit (3h by default)
ends the job, and stops the training early enough to save the adapter.
"""

from pathlib import Path
from typing import Literal

from pimono_sdpo.errors import TrainingInputError, require_extra
from pimono_sdpo.options import argument, option, options

METHODS = Literal["sdpo", "rft", "grpo", "sft", "dpo"]


@options
class TrainOptions:
    """Options of `train`."""

    rows: list[str] = argument(
        "Folder of rows, or Hub dataset id, followed by any options of the job.", passes_options=True
    )
    method: METHODS = option(
        "Learn from the teacher's distribution (sdpo), from the successful rollouts (rft), from "
        "rewards relative to the mean of their group (grpo), from recorded answers (sft) or from "
        "pairs of them (dpo).",
        default="sdpo",
    )
    on: str = option(
        "Where to train: here, or hf:FLAVOR for a machine of Hugging Face Jobs, such as hf:a10g-large.", default="here"
    )
    wheel: Path | None = option(
        "Wheel of this package for the job; by default, the installed version is used.", default=None
    )
    namespace: str | None = option(
        "Organization that runs the job and pays for it; your own account by default.", default=None
    )
    detach: bool = option("Return when the job is submitted, without its log.", default=False)


def run(options: TrainOptions) -> None:
    """Run the job of the method on this machine or on Hugging Face Jobs."""
    rows, *arguments = options.rows
    if rows.startswith("-"):
        raise TrainingInputError(f"Give the rows before the options: `train ROWS {rows} ...`.")
    where, _, flavor = options.on.partition(":")
    if where == "hf" and flavor:
        from pimono_sdpo.training.launch import launch

        launch(flavor, options.method, rows, arguments, options.wheel, options.namespace, options.detach)
        return
    if options.on != "here":
        raise TrainingInputError(f"--on is {options.on}; give here or hf:FLAVOR.")
    if options.wheel or options.namespace or options.detach:
        raise TrainingInputError(
            "--wheel, --namespace and --detach are for a job; give --on hf:FLAVOR, or leave them out."
        )
    require_extra("train", "trl", "Training here, without --on hf:FLAVOR,")
    from pimono_sdpo.training.run import run_job

    run_job(options.method, ["--dataset", rows, *arguments], __doc__)
