"""What a training method is: the rows it reads, its trainer, its memory, checks and scores.

`run.py` runs every method in the same order; `sdpo.py` and `supervised.py` (SFT and DPO) say what
is particular to theirs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from datasets import Dataset
from transformers import PrinterCallback, ProgressCallback
from transformers.integrations import TrackioCallback
from trl import ModelConfig

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training import models, rows, say
from pimono_sdpo.training.arguments import CommonArguments
from pimono_sdpo.training.callbacks import Clock, NoStepTooMany, StepLine, TokenCount
from pimono_sdpo.training.guards import GuardOptions, Guards
from pimono_sdpo.training.held_out import Scores
from pimono_sdpo.training.memory import Estimate, Hardware
from pimono_sdpo.training.output import damaged_checkpoints, last_checkpoint
from pimono_sdpo.training.tracking import SafeTrackio, config_of

SMOKE_STEPS = 2
Json = dict[str, Any]
Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class Fitted:
    """Rows within their token budgets, and what was found and cut on the way.

    held_out        rows to evaluate on, None without any
    given           rows before any was left out
    prompt_budget   tokens of a prompt, None without a budget of its own
    counts          of rows or tokens, for the run log
    lengths         tokens of each row
    left_out        rows that cannot be trained on, with their reasons
    """

    rows: Dataset
    held_out: Dataset | None
    given: int
    prompt_budget: int | None
    counts: dict[str, Any]
    lengths: dict[str, list[int]]
    left_out: Sequence[Json] = ()


@dataclass(frozen=True)
class Prepared:
    """A trainer that is ready to run, and what its run log needs."""

    method: "Method"
    trainer: Any
    clock: Clock
    guards: Guards
    fitted: Fitted


class Method(ABC):
    """One training method with the arguments of one run; a run calls its methods in this order."""

    OPTIONS: ClassVar[type[CommonArguments]]
    CONFIG: ClassVar[type[GuardOptions]]
    RECIPE: ClassVar[str]
    # A resumed run must have the same rows in these columns.
    COLUMNS: ClassVar[tuple[str, ...]]

    tokenizer: Any
    revision: str | None

    def __init__(self, job: Any, args: Any, model_args: ModelConfig) -> None:
        self.job, self.args, self.model_args = job, args, model_args
        self.finalize_arguments()

    def finalize_arguments(self) -> None:
        """Set in place what holds for every run; a smoke run is short and stays local.

        Raises TrainingInputError for arguments that this project does not take.
        """
        args = self.args
        if args.hub_token is not None:
            raise TrainingInputError(
                "--hub_token would be written into training_args.bin of every checkpoint; put the "
                "token into the environment variable HF_TOKEN instead."
            )
        if args.push_to_hub and args.hub_model_id is None:
            raise TrainingInputError(
                "--push_to_hub needs a repository; give --hub_model_id or set HUB_MODEL_ID."
            )
        # The Trainer would push training_args.bin along; publish.py pushes the adapter.
        args.push_to_hub = False
        args.model_init_kwargs = args.model_init_kwargs or {}
        if self.job.mode == "smoke":
            args.max_steps = SMOKE_STEPS if args.max_steps < 1 else min(SMOKE_STEPS, args.max_steps)
            args.save_strategy = "no"
            # Keep its metrics out of the run of the real training.
            args.run_name = f"{args.run_name}-smoke"
            args.hub_model_id = None

    def find_rows(self) -> str:
        """Return the rows to train on, a folder or a Hub dataset id; raises TrainingInputError."""
        if self.job.dataset is None:
            raise TrainingInputError("There is nothing to train on; give --dataset (rows).")
        return str(self.job.dataset)

    def load_rows(self, dataset: str) -> tuple[Dataset, Dataset | None]:
        """Return the rows to train on and those of --eval_split, None without one."""
        config = self.job.dataset_config
        loaded = rows.load_rows(dataset, config=config)
        rows.refuse_test_rows(loaded, dataset)
        split = self.job.eval_split
        return loaded, rows.load_rows(dataset, split, config) if split else None

    def load_report(self, dataset: str) -> Json | None:
        """Return the report of the filter that made the rows, None without one."""
        return None

    def load_model(self) -> None:
        """Check the base model and its LoRA arguments, and load the tokenizer."""
        self.revision = models.base_model_revision(self.model_args)
        models.lora_config(self.model_args)
        self.tokenizer = models.load_tokenizer(
            self.model_args, self.revision, self.args.trust_remote_code
        )

    @abstractmethod
    def teaching(self) -> Json:
        """Return what the card says of the job's own arguments, as JSON."""

    def identity(self) -> Json:
        """Return the job's own arguments that decide the result, as JSON."""
        return self.teaching()

    @abstractmethod
    def fit(self, dataset: Dataset, held_out: Dataset | None = None) -> Fitted:
        """Fit the rows to the token budgets; raises TrainingInputError when that fails."""

    @property
    def tries_rollouts(self) -> bool:
        """Whether the preflight samples from the model, which must be loaded before it."""
        return False

    @abstractmethod
    def make_trainer(self, fitted: Fitted) -> Any:
        """Load the model and return TRL's trainer."""

    def translate_errors(self) -> AbstractContextManager[None]:
        """Turn what libraries raise about the model and its arguments into one sentence."""
        return models.translate_errors(
            f"The model `{self.model_args.model_name_or_path}` cannot be trained with these "
            "arguments",
            "check its files, --lora_target_modules and the other arguments",
        )

    def build(self, fitted: Fitted) -> Prepared:
        """Build the trainer with its callbacks; raises TrainingInputError when that fails."""
        args = self.args
        clock, guards = Clock(), Guards(args)
        loading = models.model_init_kwargs(self.model_args, self.revision)
        args.model_init_kwargs = {**loading, **args.model_init_kwargs}
        with self.translate_errors():
            trainer = self.make_trainer(fitted)
        models.keep_layout(trainer.model)
        models.limit_threads(trainer.model)
        if trainer.pop_callback(TrackioCallback) is not None:
            trainer.add_callback(SafeTrackio(config_of(trainer.args, self.model_args)))
        # These print all metrics of a step.
        trainer.pop_callback(PrinterCallback)
        trainer.pop_callback(ProgressCallback)
        trainer.add_callback(StepLine())
        trainer.add_callback(NoStepTooMany())
        if hasattr(trainer, TokenCount.COUNT):
            trainer.add_callback(TokenCount(trainer))
        # TRL would leave a draft of a card in OUTPUT with every checkpoint.
        trainer.create_model_card = lambda *_, **__: None
        trainer.add_callback(clock)
        trainer.add_callback(guards)
        return Prepared(self, trainer, clock, guards, fitted)

    @abstractmethod
    def estimate(self, fitted: Fitted) -> Estimate:
        """Estimate the peak memory of one process."""

    @abstractmethod
    def check_templates(self, fitted: Fitted) -> int:
        """Return how many rows pass through the chat template whole."""

    @abstractmethod
    def budgets(self, fitted: Fitted) -> dict[str, int | None]:
        """Return the token budget of each entry of `fitted.lengths`."""

    def try_rollouts(
        self, prepared: Prepared, hardware: Hardware
    ) -> tuple[Json, list[str], int | None]:
        """Return what samples show, reasons not to train, and the peak of the GPU's memory."""
        return {}, [], None

    def try_rewards(self, fitted: Fitted) -> Json:
        """Return what else the preflight finds before anything is sampled."""
        return {}

    @abstractmethod
    def describe(self, found: Json) -> tuple[Lines, Lines]:
        """Return what to print of a preflight before lengths and memory, and after them."""

    @abstractmethod
    def score(self, trainer: Any, held_out: Dataset) -> Scores:
        """Return each measure of the held-out rows, by session or task."""

    def notes(self, fitted: Fitted) -> list[str]:
        """Return sentences for the end of the run: the first row that was left out, if any."""
        if not fitted.left_out:
            return []
        first = fitted.left_out[0]
        return [
            f"{len(fitted.left_out)} of {fitted.given} rows were left out, see left-out.json; the "
            f"first, row {first['row']}: {first['reason']} ({first['detail']})"
        ]


def train(prepared: Prepared) -> dict[str, float]:
    """Train to the last step, from the newest whole checkpoint if there is one.

    Returns the metrics of the whole run, including the part before a resume.
    """
    trainer = prepared.trainer
    output = Path(trainer.args.output_dir)
    checkpoint = last_checkpoint(output)
    for name, file in damaged_checkpoints(output).items():
        going = "starts over" if checkpoint is None else f"resumes from {checkpoint.name}"
        say(f"`{file}` of {name} is damaged, so the training {going}")
    result = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    state, batch = trainer.state, trainer.get_total_train_batch_size(trainer.args)
    return prepared.clock.whole_run(result.metrics, state.log_history, state.global_step, batch)
