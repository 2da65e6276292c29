"""The base class of training methods: which rows they read, their trainer, memory, checks and scores.

`run.py` runs every method in the same order; `sdpo.py` and `supervised.py` (SFT and DPO) implement
them.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from datasets import Dataset
from transformers import PrinterCallback, ProgressCallback
from transformers.integrations import TrackioCallback
from trl import ModelConfig

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training import models, rows
from pimono_sdpo.training.arguments import CommonArguments
from pimono_sdpo.training.callbacks import Progress
from pimono_sdpo.training.console import say
from pimono_sdpo.training.guards import GuardOptions, Guards
from pimono_sdpo.training.held_out import Scores
from pimono_sdpo.training.memory import Hardware
from pimono_sdpo.training.options import OPTIONAL_PACKAGES, check_columns
from pimono_sdpo.training.output import last_checkpoint
from pimono_sdpo.training.tracking import SafeTrackio, list_arguments

SMOKE_STEPS = 2
Json = dict[str, Any]


class Method(ABC):
    """A training method with the arguments of one run; call `load_model`, `fit` and `build` in this order."""

    OPTIONS: ClassVar[type[CommonArguments]]
    CONFIG: ClassVar[type[GuardOptions]]
    RECIPE: ClassVar[str]
    # A resumed run must have the same rows in these columns.
    COLUMNS: ClassVar[tuple[str, ...]]

    tokenizer: Any
    revision: str | None
    fitted: rows.Fitted
    trainer: Any = None
    progress: Progress
    guards: Guards

    def __init__(self, job: Any, args: Any, model_args: ModelConfig) -> None:
        """Check the arguments and adjust them in place; a smoke run is short and publishes nothing."""
        self.job, self.args, self.model_args = job, args, model_args
        if args.hub_token is not None:
            raise TrainingInputError(
                "--hub_token would be written into training_args.bin of every checkpoint; put the "
                "token into the environment variable HF_TOKEN instead."
            )
        if args.push_to_hub and args.hub_model_id is None:
            raise TrainingInputError("--push_to_hub needs a repository; give --hub_model_id or set HUB_MODEL_ID.")
        for option, package in OPTIONAL_PACKAGES.items():
            if getattr(args, option, False) and find_spec(package) is None:
                raise TrainingInputError(
                    f"--{option} needs the package `{package}`; install it, or leave out --{option}."
                )
        # The Trainer would also push training_args.bin; publish.py pushes the adapter.
        args.push_to_hub = False
        args.model_init_kwargs = args.model_init_kwargs or {}
        if job.mode == "smoke":
            args.max_steps = SMOKE_STEPS if args.max_steps < 1 else min(SMOKE_STEPS, args.max_steps)
            args.save_strategy = "no"
            # Its metrics must not be logged to the run of the real training.
            args.run_name = f"{args.run_name}-smoke"
            args.hub_model_id = None

    @property
    def lacks_gpu(self) -> bool:
        """Whether there is only a CPU to train on, and --use_cpu does not ask for it."""
        return self.args.device.type == "cpu" and not self.args.use_cpu

    def find_rows(self) -> str:
        """Return where the rows to train on are, a folder or a Hub dataset id; raises TrainingInputError."""
        if self.job.dataset is None:
            raise TrainingInputError("There is nothing to train on; give --dataset (rows).")
        return str(self.job.dataset)

    def load_rows(self, dataset: str) -> tuple[Dataset, Dataset | None]:
        """Return the rows to train on and those of --eval_split, None if there is none."""
        config, split = self.job.dataset_config, self.job.eval_split
        loaded = rows.load_rows(dataset, config=config)
        check_columns(self.args.METHOD, loaded.column_names, dataset)
        rows.refuse_test_rows(loaded, dataset)
        return loaded, rows.load_rows(dataset, split, config) if split else None

    def load_report(self, dataset: str) -> Json | None:
        """Return the report of the filter that made the rows, None if there is none."""
        return None

    def load_model(self) -> None:
        """Check the base model and its LoRA arguments, and load the tokenizer."""
        self.revision = models.base_model_revision(self.model_args)
        models.lora_config(self.model_args)
        self.tokenizer = models.load_tokenizer(self.model_args, self.revision, self.args.trust_remote_code)

    @abstractmethod
    def teaching(self) -> Json:
        """Return the job's own arguments that affect the result, as JSON for card and resume."""

    @abstractmethod
    def fit(self, dataset: Dataset, held_out: Dataset | None = None) -> None:
        """Fit the rows to the token budgets; raises TrainingInputError when that fails."""

    @abstractmethod
    def estimate(self, config: Any) -> dict[str, int]:
        """Estimate the peak memory of one process from the model's config, in bytes by purpose."""

    @abstractmethod
    def check(self) -> Json:
        """Return the findings of the preflight that need no samples."""

    def try_rollouts(self, hardware: Hardware) -> tuple[Json, list[str], int | None] | None:
        """Return findings from samples, reasons not to train, and the GPU's peak in bytes; None without samples."""
        return None

    @abstractmethod
    def make_trainer(self) -> Any:
        """Load the model and return TRL's trainer."""

    def translate_errors(self) -> AbstractContextManager[None]:
        """Turn library errors about the model and its arguments into a TrainingInputError."""
        return models.translate_errors(
            f"The model `{self.model_args.model_name_or_path}` cannot be trained with these arguments",
            "check its files, --lora_target_modules and the other arguments",
        )

    def build(self) -> Self:
        """Build the trainer with its callbacks, once; raises TrainingInputError when that fails."""
        if self.trainer is not None:
            return self
        loading = models.model_init_kwargs(self.model_args, self.revision)
        self.args.model_init_kwargs = {**loading, **self.args.model_init_kwargs}
        with self.translate_errors():
            self.trainer = trainer = self.make_trainer()
            # Otherwise wrong arguments of these end the training in a traceback.
            trainer.create_optimizer_and_scheduler(num_training_steps=1)
        trainer.optimizer = trainer.lr_scheduler = None
        models.keep_layout(trainer.model)
        models.limit_threads(trainer.model)
        if trainer.pop_callback(TrackioCallback) is not None:
            trainer.add_callback(SafeTrackio(list_arguments(trainer.args, self.model_args)))
        # These print all metrics of a step; `Progress` prints the most important ones.
        trainer.pop_callback(PrinterCallback)
        trainer.pop_callback(ProgressCallback)
        # TRL would write a draft of a card to OUTPUT with every checkpoint.
        trainer.create_model_card = lambda *_, **__: None
        self.progress, self.guards = Progress(trainer), Guards(self.args)
        trainer.add_callback(self.progress)
        trainer.add_callback(self.guards)
        return self

    def run_steps(self) -> dict[str, float]:
        """Train from the newest intact checkpoint to the last step; return the metrics of the whole run."""
        damaged: dict[str, str] = {}
        checkpoint = last_checkpoint(Path(self.args.output_dir), damaged)
        for name, file in damaged.items():
            start = "starts over" if checkpoint is None else f"resumes from {checkpoint.name}"
            say(f"`{file}` of {name} is damaged, so the training {start}")
        result = self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return self.progress.whole_run(result.metrics)

    @abstractmethod
    def score(self, held_out: Dataset) -> Scores:
        """Return each measure of the held-out rows, by session or task."""

    def notes(self) -> list[str]:
        """Return sentences to print at the end of the run: on the rows that were left out, if any."""
        left_out = self.fitted.left_out
        return [
            f"{len(left_out)} of {self.fitted.given} rows were left out, see left-out.json; the "
            f"first, row {first['row']}: {first['reason']} ({first['detail']})"
            for first in left_out[:1]
        ]
