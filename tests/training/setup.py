"""What the tests of training share: rows, arguments, the job as a user runs it."""

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from trl import ModelConfig

from pimono_sdpo.training.arguments import GuardedSDPOConfig, SDPOArguments, parse_job
from pimono_sdpo.training.method import Method
from pimono_sdpo.training.rewards import Mode, Scoring
from pimono_sdpo.training.sdpo import SDPO

REPO = Path(__file__).parent.parent.parent
JOBS = REPO / "jobs"
PYTHONPATH = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
TASKS = (
    ("fix the parser in src/cli.ts", "error TS2304: Cannot find name 'Tool'.", ["ts2304"]),
    ("make the tests pass " * 60, "AssertionError: expected 3 to equal 4 <eos>", ["expected"]),
    ("why does it fail?", "ENOENT: no such file or directory\n" * 90, ["enoent"]),
    ("run the build", "TypeError: undefined is not a function", ["typeerror"]),
)


def hand_made() -> Dataset:
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": task}],
                "privileged_context": context,
                "reward_terms": terms,
                "score": 10.0,
                "session_id": f"s{number}",
            }
            for number, (task, context, terms) in enumerate(TASKS)
        ]
    )


def letters_reward(
    prompts: list[Any], completions: list[Any], reward_terms: list[list[str]], **_: object
) -> list[float | None]:
    """The share of the first term's letters that occur; noise rarely reaches 1."""
    return [
        len(set(terms[0]) & set(completion[0]["content"])) / len(set(terms[0]))
        for terms, completion in zip(reward_terms, completions, strict=True)
    ]


def arguments(folder: Path, tiny: Path, **changes: Any) -> tuple[GuardedSDPOConfig, ModelConfig]:
    settings = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "max_steps": 6,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": False,
        "num_generations": 2,
        "max_completion_length": 8,
        "max_prompt_length": 96,
        "max_reprompt_len": 256,
        "success_reward_threshold": 1.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        **changes,
    }
    model_args = ModelConfig(
        model_name_or_path=str(tiny),
        dtype="float32",
        load_in_4bit=True,
        use_bnb_nested_quant=True,
        use_peft=True,
        lora_r=8,
        lora_alpha=16,
        lora_dropout=0.0,
    )
    args = GuardedSDPOConfig(**settings)
    SDPO(SDPOArguments(), args, model_args)
    return args, model_args


def prepare(
    args: GuardedSDPOConfig,
    model_args: ModelConfig,
    dataset: Dataset,
    scoring: Scoring | None = None,
    mode: Mode = "trace",
) -> Method:
    """Build the trainer as the job does, with the letters for a reward if there is no other."""
    method = sdpo(args, model_args, scoring, mode)
    method.fit(dataset)
    return method.build()


def sdpo(
    args: GuardedSDPOConfig, model_args: ModelConfig, scoring: Scoring | None = None, mode: Mode = "trace"
) -> SDPO:
    """The method with its model and reward, as the job has it before it opens rows."""
    method = SDPO(SDPOArguments(feedback=mode, reward="tests.training.setup:letters_reward"), args, model_args)
    method.load_model()
    method.scoring = scoring or Scoring(letters_reward)
    return method


def adapter_state(trainer: Any, name: str = "default") -> dict[str, Any]:
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(trainer.model, adapter_name=name)
    return {key: value.detach().clone() for key, value in state.items()}


def parse(argv: list[str]) -> tuple[Any, Any, ModelConfig, str]:
    """The arguments of train_sdpo, as it reads them."""
    return parse_job(argv, SDPOArguments, GuardedSDPOConfig, None, SDPO.RECIPE)


def script(name: str = "train_sdpo") -> ModuleType:
    """The job as a module; jobs/ is no package."""
    spec = importlib.util.spec_from_file_location(name, JOBS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class SeenPrompts(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Keep the ids that student and teacher were given."""

    def __init__(self) -> None:
        self.student: list[list[int]] = []
        self.teacher: list[list[int]] = []
        self.masks: list[float] = []

    def on_self_distillation_batch_prepared(self, **seen: Any) -> None:
        completion = seen["completion_ids"].shape[1]
        self.student += [[i for i in row if i] for row in seen["prompt_ids"].tolist()]
        prompts = seen["teacher_input_ids"][:, :-completion]
        self.teacher += [[i for i in row if i] for row in prompts.tolist()]
        self.masks += seen["self_distillation_mask"].tolist()


class StopAfter(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """End the run early, with the learning-rate schedule of the whole of it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self.steps


def job(*argv: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a user does, without a network."""
    return python(str(JOBS / "train_sdpo.py"), *argv, cwd=cwd, **environment)


def python(*argv: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env={
            **{name: value for name, value in os.environ.items() if "TRACKIO" not in name},
            "PYTHONPATH": PYTHONPATH,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "TRACKIO_DIR": str(cwd / "trackio"),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
