"""The training job on a tiny random model of the real class: NF4, LoRA and SDPO for real."""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    TrainerCallback,
)
from trl import ModelConfig
from trl.experimental.sdpo import SDPOConfig

from pimono_sdpo.errors import OutputError, TrainingInputError
from pimono_sdpo.tiny_model import write_tiny_model
from pimono_sdpo.training import models, output, publish, rows, run_log, sdpo
from pimono_sdpo.training.recipes import find_recipe
from tests.loopback_hub import LoopbackHub
from tests.traces import HEADER, bash, trace, user

REPO = Path(__file__).parent.parent
JOBS = REPO / "jobs"
PYTHONPATH = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
TASKS = (
    ("fix the parser in src/cli.ts", "error TS2304: Cannot find name 'Tool'.", ["ts2304"]),
    ("make the tests pass " * 60, "AssertionError: expected 3 to equal 4 <eos>", ["expected"]),
    ("why does it fail?", "ENOENT: no such file or directory\n" * 90, ["enoent"]),
    ("run the build", "TypeError: undefined is not a function", ["typeerror"]),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads waiting for each other on a busy machine cost far more than they save here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in the layout the filter writes, rejects beside them."""
    folder = tmp_path_factory.mktemp("filtered") / "rows"
    for name in ("data", "rejects"):
        (folder / name).mkdir(parents=True)
    hand_made().to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    Dataset.from_dict({"drop_reason": ["no_evidence"]}).to_parquet(
        folder / "rejects" / "rejects-00000-of-00001.parquet"
    )
    return folder


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


def arguments(folder: Path, tiny: Path, **changes: Any) -> tuple[SDPOConfig, ModelConfig]:
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
        "success_reward_threshold": 0.35,
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
    args = SDPOConfig(**settings)
    sdpo.settle_arguments(args, model_args, smoke=False)
    return args, model_args


def adapter_state(trainer: Any, name: str = "default") -> dict[str, Any]:
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(trainer.model, adapter_name=name)
    return {key: value.detach().clone() for key, value in state.items()}


def script() -> ModuleType:
    """The job as a module; jobs/ is no package."""
    spec = importlib.util.spec_from_file_location("train_sdpo", JOBS / "train_sdpo.py")
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


@pytest.fixture(scope="session")
def straight(
    tmp_path_factory: pytest.TempPathFactory, tiny: Path, filtered: Path
) -> tuple[sdpo.Prepared, dict[str, float], SeenPrompts, ModelConfig]:
    """Six steps without a break; an epoch has four."""
    args, model_args = arguments(tmp_path_factory.mktemp("straight"), tiny)
    prepared = sdpo.prepare(args, model_args, rows.load_rows(str(filtered)), letters_reward)
    seen = SeenPrompts()
    prepared.trainer.add_callback(seen)
    return prepared, sdpo.train(prepared), seen, model_args


def test_the_tiny_model_is_the_real_class_and_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    again = write_tiny_model(tmp_path / "again")
    other = write_tiny_model(tmp_path / "other", seed=1)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert digest(again / name) == digest(tiny / name)
    assert digest(other / "model.safetensors") != digest(tiny / "model.safetensors")
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert type(tokenizer).__name__ == "GemmaTokenizer"
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)
    assert ids == (0, 1, 2)
    assert tokenizer.convert_tokens_to_ids(["<|turn>", "<turn|>"]) == [105, 106]
    text = "naïve\n  Error: 漢字 'x' → 1"
    decoded = tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert decoded == text
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32, quantization_config=nf4)
    assert type(model).__name__ == "Gemma4UnifiedForConditionalGeneration"
    assert model.config.model_type == "gemma4_unified"
    assert model.generation_config.eos_token_id == [1, 106, 50]


def test_training_moves_the_adapter_and_nothing_is_cut(
    straight: tuple[sdpo.Prepared, dict[str, float], SeenPrompts, ModelConfig],
) -> None:
    prepared, metrics, seen, _ = straight
    trainer = prepared.trainer
    assert trainer.state.global_step == 6
    assert metrics["train_loss"] != 0
    weights = adapter_state(trainer)
    moved = [name for name, value in weights.items() if "lora_B" in name and value.abs().max() > 0]
    assert len(moved) == 20, "all text layers, and none of the image and audio embedders"
    assert all("language_model" in name for name in weights)
    # <bos> first and whole means that TRL cut nothing from the left.
    assert len(seen.student) == len(seen.teacher) == 12
    assert {ids[0] for ids in seen.student + seen.teacher} == {2}
    assert all(len(ids) <= 96 for ids in seen.student)
    assert all(len(ids) <= 256 for ids in seen.teacher)
    assert max(len(ids) for ids in seen.student) > 85
    assert set(seen.masks) == {1.0}, "every row brought feedback"
    assert prepared.counts == {
        "prompts_shortened": 1,
        "contexts_shortened": 1,
        "special_tokens_neutralised": 1,
    }
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in steps] == [1, 2, 3, 4, 5, 6]
    assert "self_distillation/rewards/letters_reward" in steps[0]
    assert steps[0]["self_distillation/feedback_used_fraction"] == 1.0


@pytest.mark.parametrize("stop", [2, 5], ids=["first epoch", "second epoch"])
def test_a_killed_run_goes_on_to_the_same_weights(
    stop: int,
    straight: tuple[sdpo.Prepared, dict[str, float], SeenPrompts, ModelConfig],
    tiny: Path,
    filtered: Path,
    tmp_path: Path,
) -> None:
    dataset = rows.load_rows(str(filtered))
    changes = {"save_strategy": "steps", "save_steps": stop, "save_total_limit": 1}
    first_args, model_args = arguments(tmp_path, tiny, **changes)
    first = sdpo.prepare(first_args, model_args, dataset, letters_reward)
    first.trainer.add_callback(StopAfter(stop))
    sdpo.train(first)
    assert first.trainer.state.global_step == stop
    # What a kill in the middle of writing a checkpoint leaves.
    (tmp_path / f"checkpoint-{stop + 1}").mkdir()
    checkpoint = output.last_checkpoint(tmp_path)
    assert checkpoint == tmp_path / f"checkpoint-{stop}"

    second_args, model_args = arguments(tmp_path, tiny, **changes)
    second = sdpo.prepare(second_args, model_args, dataset, letters_reward)
    sdpo.train(second)
    assert second.trainer.state.global_step == 6
    for adapter in ("default", "teacher"):
        expected = adapter_state(straight[0].trainer, adapter)
        resumed = adapter_state(second.trainer, adapter)
        assert expected.keys() == resumed.keys()
        assert all(torch.equal(expected[key], resumed[key]) for key in expected), adapter
    assert not all(
        torch.equal(value, adapter_state(second.trainer, "teacher")[key])
        for key, value in adapter_state(second.trainer).items()
    )


class StopAfter(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """End the run early, with the learning-rate schedule of the whole of it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self.steps


def test_the_saved_adapter_is_clean_and_loads(
    straight: tuple[sdpo.Prepared, dict[str, float], SeenPrompts, ModelConfig],
    tiny: Path,
    tmp_path: Path,
) -> None:
    prepared, metrics, _, model_args = straight
    trained = adapter_state(prepared.trainer)
    folder = tmp_path / "adapter"
    files = publish.save_adapter(prepared.trainer.model, folder, str(tiny), "a" * 40)
    assert {path.name for path in folder.iterdir()} == set(files) == set(publish.WEIGHTS)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny)
    assert config["revision"] == "a" * 40
    assert config["r"] == 8
    assert config["target_modules"] == models.TEXT_LINEARS
    saved = load_file(folder / "adapter_model.safetensors")
    assert saved.keys() == trained.keys()
    assert all(torch.equal(saved[name], trained[name]) for name in saved)
    base = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    ids = torch.tensor([[2, 105, 300, 301, 106]])
    with torch.no_grad():
        before = base(ids).logits
        after = PeftModel.from_pretrained(base, folder)(ids).logits
    assert not torch.equal(before, after)

    log = run_log.build_run_log(
        prepared,
        model_args,
        mode="train",
        command=["--mode", "train", "--dataset", "/home/ann/rows"],
        recipe="tiny.yaml",
        dataset="rows",
        started_at="2026-01-01T00:00:00Z",
        metrics=metrics,
        adapter_files=files,
    )
    assert log == json.loads(json.dumps(log, allow_nan=False))
    assert log["base_model_class"] == "Gemma4UnifiedForConditionalGeneration"
    assert log["base_model_revision"] is None
    assert log["command"] == ["--mode", "train", "--dataset", "rows"]
    assert log["dataset"] == {"id": "rows", "rows": 4, "rows_used": 4, **prepared.counts}
    assert log["arguments"]["max_prompt_length"] == 96
    assert log["arguments"]["bnb_4bit_quant_type"] == "nf4"
    assert log["arguments"]["include_environment_feedback"] is True
    assert [entry["step"] for entry in log["log_history"]] == [1, 2, 3, 4, 5, 6]
    assert log["metrics"]["train_loss"] == metrics["train_loss"]
    assert log["adapter"]["files"] == files
    assert log["adapter"]["trainable_parameters"] == sum(v.numel() for v in trained.values())


def test_rows_come_from_the_data_folder_alone(filtered: Path) -> None:
    loaded = rows.load_rows(str(filtered))
    assert len(loaded) == 4
    assert "drop_reason" not in loaded.column_names
    assert loaded[0]["session_id"] == "s0"
    assert rows.dataset_name(str(filtered)) == "rows"
    assert rows.dataset_name("someone/rows") == "someone/rows"
    assert rows.load_report(str(filtered)) is None


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (None, "There is no folder"),
        ({}, "holds no data/train-"),
        ({"text": ["x"]}, "has no `prompt` column but `text`"),
        ({"prompt": []}, "holds no rows"),
        ("not parquet", "cannot be read together"),
    ],
)
def test_unusable_rows_are_one_sentence(
    tmp_path: Path, columns: dict[str, list[str]] | str | None, words: str
) -> None:
    folder = tmp_path / "rows"
    if columns is not None:
        (folder / "data").mkdir(parents=True)
    shard = folder / "data" / "train-00000-of-00001.parquet"
    if isinstance(columns, str):
        shard.write_text(columns)
    elif columns:
        Dataset.from_dict(columns).to_parquet(shard)
    with pytest.raises(TrainingInputError, match=words) as caught:
        rows.load_rows(str(folder))
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_name_or_path": "nowhere/at/all"}, "no model in the folder `nowhere/at/all`"),
        ({"model_name_or_path": None}, "No base model is named"),
        ({"use_peft": False}, "`use_peft` is off"),
    ],
)
def test_an_unusable_model_is_one_sentence(
    tmp_path: Path, tiny: Path, changes: dict[str, Any], words: str
) -> None:
    args, model_args = arguments(tmp_path, tiny)
    for name, value in changes.items():
        setattr(model_args, name, value)
    with pytest.raises(TrainingInputError, match=words):
        sdpo.prepare(args, model_args, hand_made(), letters_reward)
    assert not any(tmp_path.iterdir())


def test_lora_layers_can_still_be_chosen(tmp_path: Path, tiny: Path) -> None:
    _, model_args = arguments(tmp_path, tiny)
    assert models.lora_config(model_args).target_modules == models.TEXT_LINEARS
    model_args.lora_target_modules = ["q_proj", "v_proj"]
    chosen = models.lora_config(model_args)
    assert chosen.target_modules == {"q_proj", "v_proj"}
    assert (chosen.r, chosen.lora_alpha) == (8, 16)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hub_token": "hf_secret"}, "HF_TOKEN"),
        ({"push_to_hub": True}, "--hub_model_id"),
    ],
)
def test_settling_refuses_what_would_leak_or_fail(
    tmp_path: Path, tiny: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(TrainingInputError, match=words) as caught:
        arguments(tmp_path, tiny, **changes)
    assert "hf_secret" not in str(caught.value)


@pytest.mark.parametrize(("asked", "steps"), [(24, 2), (1, 1), (-1, 2)])
def test_a_smoke_run_is_short_and_local(tmp_path: Path, tiny: Path, asked: int, steps: int) -> None:
    args, model_args = arguments(tmp_path, tiny, max_steps=asked, hub_model_id="me/adapter")
    assert args.hub_model_id == "me/adapter"
    sdpo.settle_arguments(args, model_args, smoke=True)
    assert args.max_steps == steps
    assert args.hub_model_id is None
    assert args.push_to_hub is False
    assert args.save_strategy == "no"


def test_too_few_rows_for_a_step_are_named(tmp_path: Path, tiny: Path) -> None:
    args, model_args = arguments(tmp_path, tiny, per_device_train_batch_size=6)
    with pytest.raises(TrainingInputError, match="4 rows and each step takes 6 prompts"):
        sdpo.prepare(args, model_args, hand_made(), letters_reward)


def test_a_recipe_is_found_by_path_then_beside_the_script(tmp_path: Path) -> None:
    assert find_recipe("tiny", JOBS) == JOBS / "tiny.yaml"
    assert find_recipe("gemma4_12b.yaml", JOBS) == JOBS / "gemma4_12b.yaml"
    own = tmp_path / "own.yaml"
    own.write_text("max_steps: 3\n")
    assert find_recipe(str(own), JOBS) == own
    with pytest.raises(TrainingInputError, match="gemma4_12b, tiny"):
        find_recipe("gemma5", JOBS)


def test_a_finished_run_is_left_alone_and_clearing_spares_foreign_data(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.txt").write_text("not from this job")
    (tmp_path / "checkpoint-2").mkdir()
    output.check_output(tmp_path)
    output.write_json({"a": 1}, tmp_path / "run.json")
    with pytest.raises(OutputError, match="holds a finished run"):
        output.check_output(tmp_path)
    output.clear_output(tmp_path, keep_data=False)
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
    assert (tmp_path / "data" / "mine.txt").exists()
    output.check_output(tmp_path)


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


def test_the_job_trains_logs_and_writes_its_card(
    tiny: Path, filtered: Path, tmp_path: Path
) -> None:
    model = tmp_path / "build" / "tiny-gemma4"
    shutil.copytree(tiny, model)
    asked = ("--config", "tiny", "--run-name", "first", "--dataset", str(filtered))
    done = job("--mode", "train", *asked, cwd=tmp_path, TRACKIO_SPACE_ID="me/trackio")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "logs to this machine only, since the Space `me/trackio`" in done.stderr

    out = tmp_path / "outputs" / "first"
    run = json.loads((out / "run.json").read_text())
    assert run["run_name"] == "first"
    assert run["recipe"] == "tiny.yaml"
    assert run["base_model"] == "build/tiny-gemma4"
    assert run["trackio"] == {"project": "pimono-sdpo", "space_id": None, "url": None}
    assert run["dataset"]["rows_used"] == 4
    assert run["arguments"]["max_steps"] == 4
    names = [name for name in run["log_history"][0] if "rewards/" in name]
    assert names == ["self_distillation/rewards/trace_grounding_reward"]
    assert {path.name for path in out.iterdir()} == {
        "run.json",
        "probe.safetensors",
        "adapter",
        "checkpoint-2",
        "checkpoint-4",
    }
    adapter = {path.name for path in (out / "adapter").iterdir()}
    assert adapter == {*publish.WEIGHTS, "README.md", "run.json", "training.png"}
    assert (tmp_path / "trackio" / "pimono-sdpo.db").exists()

    fresh = python("-m", "pimono_sdpo.training.reload", str(out), cwd=tmp_path)
    assert (fresh.returncode, fresh.stderr[-2000:] if fresh.returncode else "") == (0, "")
    assert fresh.stdout.strip() == "largest difference of the logits: 0"

    card = (out / "adapter" / "README.md").read_bytes()
    assert b"tiny-gemma4" in card
    assert str(tmp_path).encode() not in card, "no path of this machine"
    (out / "adapter" / "README.md").unlink()
    again = job("--mode", "card", *asked[:4], cwd=tmp_path)
    assert again.returncode == 0, again.stderr[-3000:]
    assert (out / "adapter" / "README.md").read_bytes() == card

    refused = job("--mode", "train", *asked, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines()[-1].startswith("train_sdpo: `outputs/first` holds")


UPLOAD = """
import json, sys
from huggingface_hub import HfApi
api, folders = HfApi(), json.loads(sys.argv[1])
for kind, folder in folders.items():
    api.create_repo(f"me/{kind}-of-a-test", repo_type=kind)
    api.upload_folder(repo_id=f"me/{kind}-of-a-test", repo_type=kind, folder_path=folder)
print(api.model_info("me/model-of-a-test").sha)
"""
DOWNLOAD = """
import json
from pathlib import Path
from huggingface_hub import HfApi, snapshot_download
folder = Path(snapshot_download("me/adapter"))
info = HfApi().model_info("me/adapter")
config = json.loads((folder / "adapter_config.json").read_text())
files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
seen = {"private": info.private, "base_model": info.card_data.base_model}
print(json.dumps({**seen, "config": config, "files": files}))
"""


def test_the_job_takes_all_from_the_hub_and_publishes_its_adapter(
    loopback_hub: LoopbackHub, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "traces").mkdir()
    for number in range(3):
        session = trace(
            HEADER | {"id": f"s-{number}"},
            user(f"Make test number {number} pass."),
            *bash("npm test", f"AssertionError: expected {number} to equal 4", error=True),
            user("No, fix the parser instead."),
        )
        (tmp_path / "traces" / f"{number}.jsonl").write_text(session)
    made = job("--config=tiny", "--mode=prepare", "--source=traces", cwd=tmp_path)
    assert made.returncode == 0, made.stderr[-3000:]
    assert "3 of 3 sessions are rows in outputs/tiny/data" in made.stdout
    assert [path.name for path in (tmp_path / "outputs" / "tiny").iterdir()] == ["data"]
    prepared = (tmp_path / "outputs" / "tiny" / "data").rename(tmp_path / "rows")
    report = json.loads((prepared / "report.json").read_text())
    shutil.rmtree(tmp_path / "outputs")

    online = {**loopback_hub.env(tmp_path), "HF_HUB_OFFLINE": "0", "PYTHONPATH": PYTHONPATH}
    folders = json.dumps({"model": str(tiny), "dataset": str(prepared)})
    uploaded = python("-c", UPLOAD, folders, cwd=tmp_path, **online)
    assert uploaded.returncode == 0, uploaded.stderr[-3000:]
    commit = uploaded.stdout.strip()

    asked = [
        *("--config", "tiny", "--model_name_or_path", "me/model-of-a-test", "--max_steps", "1"),
        *("--dataset", "me/dataset-of-a-test", "--report_to", "none"),
    ]
    refused = job(
        *asked, cwd=tmp_path, **(online | {"HF_TOKEN": "hf_wrong"}), HUB_MODEL_ID="me/adapter"
    )
    assert refused.returncode == 2
    assert "could not be published as `me/adapter`" in refused.stderr
    assert not (tmp_path / "outputs").exists(), "found out before the training"

    done = job(*asked, "--run_name", "r1", cwd=tmp_path, **online, HUB_MODEL_ID="me/adapter")
    assert done.returncode == 0, done.stderr[-3000:]
    out = tmp_path / "outputs" / "r1"
    run = json.loads((out / "run.json").read_text())
    assert run["base_model"] == "me/model-of-a-test"
    assert run["base_model_revision"] == commit
    assert run["dataset"]["id"] == "me/dataset-of-a-test"
    assert run["hub_model_id"] == "me/adapter"
    assert json.loads((out / "report.json").read_text()) == report

    seen = python("-c", DOWNLOAD, cwd=tmp_path, **online)
    assert seen.returncode == 0, seen.stderr[-3000:]
    published = json.loads(seen.stdout.splitlines()[-1])
    assert published["private"] is True
    assert published["base_model"] == "me/model-of-a-test"
    assert published["config"]["base_model_name_or_path"] == "me/model-of-a-test"
    assert published["config"]["revision"] == commit
    assert set(published["files"]) - {".gitattributes"} == {
        *publish.WEIGHTS,
        "README.md",
        "report.json",
        "run.json",
        "training.png",
    }


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--config", "gemma5"), "There is no recipe `gemma5`"),
        (("--config",), "--config needs"),
        (("--config=tiny", "--no-such-flag", "1"), "Unknown argument(s) --no-such-flag 1"),
        (("--config=tiny", "--num_generations", "3"), "must be divisible"),
        (("--config=tiny",), "give --dataset (rows) or --source (traces)"),
        (("--config=tiny", "--dataset", "./gone"), "There is no folder `gone`"),
        (("--config=tiny", "--dataset", "./gone", "--hub_token", "hf_x"), "HF_TOKEN"),
        (("--config=tiny", "--mode", "card"), "holds no finished run"),
        (("--config=tiny", "--mode", "prepare"), "give --dataset (rows) or --source (traces)"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    argv: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert script().main(["--run-name", "r1", *argv]) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("train_sdpo: ")
    assert words in told
    assert len(told.splitlines()) == 1
    assert not any(tmp_path.rglob("*.json"))


def test_the_recipes_are_the_reference_run_and_its_small_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUB_MODEL_ID", "me/adapter")
    given, args, model_args, recipe = script().parse(["--mode", "train", "--run-name", "r1"])
    assert recipe == "gemma4_12b.yaml"
    assert (given.mode, given.source) == ("train", "badlogicgames/pi-mono")
    assert (given.min_score, given.max_samples) == (13.3, 64)
    assert model_args.model_name_or_path == "google/gemma-4-12B-it"
    assert (model_args.load_in_4bit, model_args.bnb_4bit_quant_type) == (True, "nf4")
    assert (model_args.lora_r, model_args.lora_alpha) == (8, 16)
    assert (args.max_steps, args.learning_rate) == (24, 5e-5)
    assert (args.num_generations, args.success_reward_threshold) == (2, 0.35)
    assert (args.max_prompt_length, args.max_completion_length) == (768, 160)
    assert args.include_environment_feedback is True
    assert args.output_dir == "outputs/r1"
    assert args.hub_model_id == "me/adapter"
    assert args.max_steps * args.generation_batch_size == 48
    _, small, _, _ = script().parse(["--config", "tiny", "--mode", "smoke", "--max_steps", "9"])
    assert small.output_dir == "outputs/tiny-smoke"
    assert small.max_steps == 9
    assert small.use_cpu is True


def test_prepared_rows_are_not_silently_used_with_other_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs" / "r1" / "data").mkdir(parents=True)
    options = {"unit": "session", "min_score": 13.3, "max_samples": 64, "seed": 42}
    output.write_json({"options": options}, tmp_path / "outputs" / "r1" / "data" / "report.json")
    asked = ["--config", "tiny", "--run-name", "r1", "--source", "traces", "--min_score", "13.3"]
    assert script().main(asked) == 2
    assert "was filtered with max_samples 64;" in capsys.readouterr().err
    assert script().main([*asked, "--max_samples", "64"]) == 2
    assert "holds no data/train-" in capsys.readouterr().err


def test_the_script_says_what_hf_jobs_needs() -> None:
    lines = (JOBS / "train_sdpo.py").read_text().split("# ///")[1].splitlines()[1:]
    header = tomllib.loads("\n".join(line.removeprefix("#").removeprefix(" ") for line in lines))
    assert header["requires-python"] == ">=3.11"
    assert len(header["dependencies"]) == 1
    assert header["dependencies"][0].startswith("pimono-sdpo[train] @ git+https://")
    launch = header["tool"]["hf-jobs"]
    assert launch == {"flavor": "a10g-large", "timeout": "3h", "secrets": ["HF_TOKEN"]}
