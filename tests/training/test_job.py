"""jobs/train_sdpo.py as a user runs it, on this machine and against a Hub."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from datasets import Dataset

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.training import models, output
from pimono_sdpo.training import run as run_module
from tests.card_data import TOKENIZER
from tests.loopback_hub import LoopbackHub
from tests.traces import HEADER, bash, trace, user
from tests.training.setup import JOBS, PYTHONPATH, hand_made, job, parse, python, script


@pytest.mark.slow
def test_the_job_trains_logs_and_writes_its_card(tiny: Path, filtered: Path, tmp_path: Path) -> None:
    model = tmp_path / "build" / "tiny-gemma4"
    shutil.copytree(tiny, model)
    asked = ["--config", "cpu", "--run-name", "first", "--dataset", str(filtered)]
    asked += ["--model_name_or_path", "build/tiny-gemma4", "--max_steps", "4"]
    done = job("--mode", "train", *asked, cwd=tmp_path, TRACKIO_SPACE_ID="me/trackio")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "logs to this machine only, since the Space `me/trackio`" in done.stderr

    out = tmp_path / "outputs" / "first"
    run = json.loads((out / "run.json").read_text())
    first = run["run_name"]
    assert re.fullmatch(r"first-\d{4}-\d{6}", first), "a Space is not asked which names it has"
    assert run["recipe"] == "cpu.yaml"
    assert run["base_model"] == "tiny-gemma4"
    assert run["trackio"] == {"project": "pimono-sdpo", "space_id": None, "url": None}
    assert run["dataset"]["rows_used"] == 4
    assert run["arguments"]["max_steps"] == 4
    names = [name for name in run["log_history"][0] if "rewards/" in name]
    assert names == ["self_distillation/rewards/trace_grounding_reward"]
    assert {path.name for path in out.iterdir()} == {
        "run.json",
        "run-local.json",
        "probe.safetensors",
        "adapter",
        "checkpoint-2",
        "checkpoint-4",
    }
    adapter = {path.name for path in (out / "adapter").iterdir()}
    page = {"README.md", "run.json", "training.html"}
    assert adapter == {*models.WEIGHTS, *TOKENIZER, *page}
    assert (tmp_path / "trackio" / "pimono-sdpo.db").exists()

    assert output.largest_difference(out) == 0

    card = (out / "adapter" / "README.md").read_bytes()
    assert b"tiny-gemma4" in card
    assert str(tmp_path).encode() not in card, "no path of this machine"

    refused = job("--mode", "train", *asked, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines()[-1].startswith("train_sdpo: `outputs/first` holds")

    # Started over, its curve is one of its own; gone on with, it is the same.
    over = job("--mode", "train", *asked, "--overwrite", cwd=tmp_path)
    assert over.returncode == 0, over.stderr[-3000:]
    name = json.loads((out / "run.json").read_text())["run_name"]
    shutil.rmtree(out / "adapter")
    shutil.rmtree(out / "checkpoint-4")
    (out / "run.json").unlink()
    on = job("--mode", "train", *asked, cwd=tmp_path)
    assert on.returncode == 0, on.stderr[-3000:]
    assert json.loads((out / "run.json").read_text())["run_name"] == name
    logged = python("-c", RUNS, cwd=tmp_path)
    assert json.loads(logged.stdout.splitlines()[-1]) == [name, first]


RUNS = """
import json
from trackio.sqlite_storage import SQLiteStorage
print(json.dumps(sorted(str(run) for run in SQLiteStorage.get_runs("pimono-sdpo"))))
"""
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


@pytest.mark.slow
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
    prepared = tmp_path / "rows"
    report = run_filter(str(tmp_path / "traces"), prepared, FilterOptions(unit="session"))

    online = {**loopback_hub.env(tmp_path), "HF_HUB_OFFLINE": "0", "PYTHONPATH": PYTHONPATH}
    folders = json.dumps({"model": str(tiny), "dataset": str(prepared)})
    uploaded = python("-c", UPLOAD, folders, cwd=tmp_path, **online)
    assert uploaded.returncode == 0, uploaded.stderr[-3000:]
    commit = uploaded.stdout.strip()

    asked = [
        *("--config", "cpu", "--model_name_or_path", "me/model-of-a-test", "--max_steps", "1"),
        *("--dataset", "me/dataset-of-a-test", "--report_to", "none"),
    ]
    refused = job(*asked, cwd=tmp_path, **(online | {"HF_TOKEN": "hf_wrong"}), HUB_MODEL_ID="me/adapter")
    assert refused.returncode == 2
    assert "Nothing can be pushed to `me/adapter`" in refused.stderr
    assert not (tmp_path / "outputs").exists(), "found out before the training"

    done = job(*asked, "--run_name", "r1", cwd=tmp_path, **online, HUB_MODEL_ID="me/adapter")
    assert done.returncode == 0, done.stderr[-3000:]
    leaves = "leaves this machine: the adapter, its card, run log and page, to the repository me/adapter"
    assert done.stdout.index(leaves) < done.stdout.index("step 1/")
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
        *models.WEIGHTS,
        "README.md",
        "report.json",
        "run.json",
        *TOKENIZER,
        "training.html",
    }


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--config", "gemma5"), "There is no recipe `gemma5`"),
        (("--config",), "argument --config: expected one argument"),
        (("--config=cpu", "--no-such-flag", "1"), "Unknown argument(s) --no-such-flag 1"),
        (("--config=cpu", "--num_generations", "3"), "must be divisible"),
        (("--config=cpu",), "give --dataset (rows) or --source (traces)"),
        (("--config=cpu", "--dataset", "./gone"), "There is no folder `gone`"),
        (("--config=cpu", "--dataset", "./gone", "--hub_token", "hf_x"), "HF_TOKEN"),
        (
            ("--config=cpu", "--dataset", "./gone", "--use_teacher_server", "true"),
            "--use_teacher_server is not supported",
        ),
        (
            ("--config=cpu", "--dataset", "./gone", "--num_iterations", "4"),
            "--save_steps 2 would write checkpoints in the middle of a batch of rollouts",
        ),
        (
            ("--config=qwen3_4b", "--num_iterations", "4", "--steps_per_generation", "8"),
            "--num_iterations 4 would repeat completions within one update",
        ),
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


def test_the_recipes_are_the_reference_run_and_its_small_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUB_MODEL_ID", "me/adapter")
    given, args, model_args, recipe = parse(["--mode", "train", "--run-name", "r1"])
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
    _, small, _, _ = parse(["--config", "cpu", "--mode", "smoke", "--max_steps", "9"])
    assert small.output_dir == "outputs/cpu-smoke"
    assert small.max_steps == 9
    assert small.use_cpu is True


def test_the_recipe_of_one_gpu_states_completions() -> None:
    argv = ["--config", "qwen3_4b", "--use_cpu", "true"]
    given, args, _, _ = parse(argv)
    run_module.settle(given, args)
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
    assert args.max_steps * batch == given.generations == 4096
    assert args.generation_batch_size % args.num_generations == 0
    # Otherwise TRL would sample from older weights, or repeat completions within one update.
    assert args.gradient_accumulation_steps == args.steps_per_generation
    assert (given.reward, args.success_reward_threshold) == (None, 1.0), "by the rows"
    assert (args.teacher_update_rate, args.environment_feedback_only_without_solution) == (0.01, True)
    given.generations += 1
    run_module.settle(given, args)
    assert args.max_steps == 129
    with pytest.raises(TrainingInputError, match="--generations is 0"):
        parse([*argv, "--generations", "0"])


def test_the_job_tells_for_how_many_rows_there_is_no_reward(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").mkdir()
    nothing = [{**row, "reward_terms": terms} for row, terms in zip(hand_made(), (["command_error"], None), strict=False)]  # fmt: skip
    Dataset.from_list([*hand_made(), *nothing]).to_parquet(tmp_path / "rows" / "train.parquet")
    argv = ["--config", "cpu", "--report_to", "none", "--max_steps", "1"]
    argv += ["--dataset", str(tmp_path / "rows"), "--model_name_or_path", str(tiny)]
    assert script().main([*argv, "--output_dir", str(tmp_path / "out")]) == 0
    assert "2 rows cannot be scored by this reward" in capsys.readouterr().out
    card = (tmp_path / "out" / "adapter" / "README.md").read_text()
    assert "The reward cannot score 2 rows, which were left out." in card
    assert json.loads((tmp_path / "out" / "run.json").read_text())["dataset"]["rows_used"] == 4


def test_the_script_says_what_hf_jobs_needs() -> None:
    lines = (JOBS / "train_sdpo.py").read_text().split("# ///")[1].splitlines()[1:]
    header = tomllib.loads("\n".join(line.removeprefix("#").removeprefix(" ") for line in lines))
    assert header["requires-python"] == ">=3.11"
    # The package itself comes by --with.
    assert all("==" in pin and "pimono" not in pin for pin in header["dependencies"])
    assert any(pin.startswith("trl==") for pin in header["dependencies"])
    launch = header["tool"]["hf-jobs"]
    assert launch["flavor"] == "a10g-large"
    assert launch["secrets"] == ["HF_TOKEN"]
    assert launch["timeout"] == launch["env"]["TIME_LIMIT"] == "3h"


def test_verifiers_train_and_tell_the_teacher(tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows").mkdir()
    tests = {"kind": "value", "module": "m.py", "entry": "f", "cases": [{"args": [2], "expected": 4}]}
    spec = json.dumps({"files": {"m.py": "def f(x):\n    return x\n"}, "allowed": ["m.py"], "tests": tests})
    rows = [{**row, "verifier_spec": spec if n else None} for n, row in enumerate(hand_made())]
    Dataset.from_list(rows).to_parquet(tmp_path / "rows" / "data" / "train-00000-of-00001.parquet")
    argv = ["--config", "cpu", "--report_to", "none", "--max_steps", "1", "--dataset", str(tmp_path / "rows")]
    argv += ["--model_name_or_path", str(tiny), "--output_dir", str(tmp_path / "out"), "--max_reprompt_len", "1024"]
    assert script().main([*argv, "--success_reward_threshold", "0.35"]) == 2
    assert "gives at most 0.99 to a failed completion" in capsys.readouterr().err
    assert script().main([*argv, "--reward", "verifiers", "--grade", "nosuch"]) == 2
    assert "`nosuch` is not a verifier" in capsys.readouterr().err
    assert script().main(argv) == 0
    told = capsys.readouterr().out
    assert told.startswith("method sdpo, reward verifiers, recipe cpu.yaml, model ")
    assert "3 of 4 rows have tests, which grade the answers" in told
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (run["teaching"]["grade"], run["teaching"]["feedback"]) == (["tests"], "both")
    (step,) = [entry for entry in run["log_history"] if "loss" in entry]
    assert step["self_distillation/rollout_feedback_fraction"] > 0
    assert run["preflight"]["attacks"]["wins"] == 0
    card = (tmp_path / "out" / "adapter" / "README.md").read_text()
    assert "These count: `tests`." in card
    assert "smoke test" not in card


def test_a_reward_that_can_be_won_trains_nothing(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lax.py").write_text(
        "from rewards.verifiers.rubric import failed, passed\n"
        "def verify(completion, spec):\n"
        "    return passed('lax') if 'sorry' in completion else failed('lax', 'x', 'no')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rows").mkdir()
    rows = [{**row, "verifier_spec": "{}"} for row in hand_made()]
    Dataset.from_list(rows).to_parquet(tmp_path / "rows" / "train.parquet")
    argv = ["--config", "cpu", "--report_to", "none", "--reward", "verifiers"]
    argv += ["--dataset", str(tmp_path / "rows"), "--model_name_or_path", str(tiny)]
    argv += ["--gate", "lax:verify", "--output_dir", str(tmp_path / "out")]
    argv += ["--max_reprompt_len", "1024", "--success_reward_threshold", "1.0"]
    assert script().main(argv) == 2
    told = capsys.readouterr().err
    assert "win on 4 rows; the first, `refusal` on row 1, gets 1); give another reward" in told
    assert len(told.strip().splitlines()[-1]) < 300
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_two_processes_train_one_adapter(tmp_path: Path, tiny: Path, filtered: Path) -> None:
    argv = ["--config", "cpu", "--report_to", "none", "--max_steps", "2", "--dataset"]
    argv += [str(filtered), "--model_name_or_path", str(tiny), "--output_dir", "out"]
    launched = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = python(*launched, str(JOBS / "train_sdpo.py"), *argv, cwd=tmp_path, ACCELERATE_USE_CPU="true")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the adapter and its card are in out/adapter") == 1
    assert done.stdout.count("teacher_gap") == 1
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert len([entry for entry in run["log_history"] if "loss" in entry]) == 2
    assert not list((tmp_path / "out").glob(".*"))
