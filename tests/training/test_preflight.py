"""What is found before the first step, what stops a training, and that nothing of it is left."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import ModelConfig

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.training import rows, run
from pimono_sdpo.training.memory import Hardware, advise, hardware_of
from pimono_sdpo.training.method import Method
from pimono_sdpo.training.preflight import (
    as_text,
    at_full_length,
    is_useless,
    preflight,
    recommend,
    refuse,
    sample,
    step_time,
    stops_of,
    teacher_gap,
)
from pimono_sdpo.training.rewards import Scoring
from pimono_sdpo.training.sdpo import SDPO, check_template
from rewards.trace_grounding import trace_grounding_reward
from tests.training.setup import SeenPrompts, adapter_state, arguments, hand_made, prepare, script, sdpo

HERE = Hardware("here", None, None)
TOLD = "SECRET WORD"


def test_the_longest_of_the_rows_that_have_a_reward_is_tried(tiny: Path, tmp_path: Path) -> None:
    args, model_args = arguments(tmp_path, tiny)
    method = sdpo(args, model_args, Scoring(trace_grounding_reward))
    method.job.reward = "trace_grounding"
    made = hand_made().to_list()
    longest = made.pop(2)
    # It names no term, so it is left out, and no row has its place.
    method.fit(Dataset.from_list([*made, {**longest, "reward_terms": []}]))
    assert [len(of_each) for of_each in method.fitted.lengths.values()] == [3, 3]
    assert method.try_rollouts(HERE) is not None


def test_probing_leaves_the_run_as_it_was(
    straight: tuple[Method, dict[str, float], SeenPrompts, ModelConfig], tiny: Path, filtered: Path, tmp_path: Path
) -> None:
    args, model_args = arguments(tmp_path, tiny)
    prepared = prepare(args, model_args, rows.load_rows(str(filtered)))
    seen = SeenPrompts()
    prepared.trainer.add_callback(seen)
    found, peak = sample(prepared.trainer, 3, 0, HERE)
    assert (found["rollouts"]["rows"], found["rollouts"]["completions"]) == (3, 6)
    assert found["teacher_gap"]["rows"] > 0
    assert 0 <= found["teacher_gap"]["teacher"] <= 1
    assert found["time"]["generation_seconds"] > 0
    assert peak is None
    prepared.run_steps()
    for adapter in ("default", "teacher"):
        expected = adapter_state(straight[0].trainer, adapter)
        after = adapter_state(prepared.trainer, adapter)
        assert all(torch.equal(value, expected[name]) for name, value in after.items())
    steps = [e for e in prepared.trainer.state.log_history if "loss" in e]
    before = [e for e in straight[0].trainer.state.log_history if "loss" in e]
    assert steps == before


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


class Listening:
    """Rewards what the teacher was told, whoever says it: 1 when the prompt held it."""

    def __init__(self, told: float, untold: float) -> None:
        self.told, self.untold = told, untold
        self.calls = 0

    def __call__(self, prompts: list[Any], trainer_state: Any = None, **_: Any) -> list[float | None]:
        # The probe asks three times: rollouts, fresh completions, completions of the teacher.
        # Trials of the reward come without a trainer.
        self.calls += trainer_state is not None
        value = self.told if self.calls % 3 == 0 else self.untold
        return [value] * len(prompts)


def never(prompts: list[Any], **_: Any) -> list[float | None]:
    return [0.0] * len(prompts)


@pytest.mark.parametrize(("told", "untold", "gap"), [(0.75, 0.25, 0.5), (0.25, 0.75, -0.5)])
def test_the_gap_is_what_feedback_adds(
    tmp_path: Path, tiny: Path, told: float, untold: float, gap: float, capsys: pytest.CaptureFixture[str]
) -> None:
    args, model_args = arguments(tmp_path, tiny)
    reward = Listening(told, untold)
    prepared = prepare(args, model_args, hand_made(), Scoring(reward, column="reward_terms"))
    method = prepared
    method.job.preflight_rows = 2
    found = preflight(method, HERE)
    assert found["reward_tried_on_rows"] == 4
    assert found["teacher_gap"]["gap"] == pytest.approx(gap)
    assert found["rollouts"]["completions"] == 4
    assert found["rollouts"]["flat_group_share"] == 1.0
    assert found == json.loads(json.dumps(found, allow_nan=False))
    if gap > 0:
        assert found["stops"] == []
        refuse(found, forced_by="")
        assert "gap: 0.5\n" in as_text(found)
    else:
        with pytest.raises(TrainingInputError, match=r"no better with the feedback.*--force"):
            refuse(found, forced_by="")
        refuse(found, forced_by="--force")
        said = capsys.readouterr().out.strip().splitlines()[-1]
        assert said.startswith("--force trains all the same: The model does no better with the")


def test_noise_around_a_gap_stops_no_training() -> None:
    found = teacher_gap([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert found is not None
    assert found["gap"] <= 0.0
    assert found["interval_90"][1] > 0
    assert not is_useless(found)
    told = teacher_gap([[1.0]] * 4, [[0.0], [0.5], [0.0], [0.5]])
    assert told is not None
    assert is_useless(told)


def test_what_cannot_learn_or_fit_is_stopped(tmp_path: Path, tiny: Path) -> None:
    args, model_args = arguments(tmp_path, tiny)
    without = hand_made().map(lambda _: {"privileged_context": ""})
    prepared = prepare(args, model_args, without, Scoring(never))
    method = prepared

    def found(hardware: Hardware, probed: int) -> Any:
        method.job.preflight_rows = probed
        return preflight(method, hardware)

    dead = found(HERE, 1)
    assert dead["rollouts"]["success_share"] == 0
    assert dead["teacher_gap"] is None
    assert "nothing would be learned" in dead["stops"][0]
    assert "teacher_gap" not in as_text(dead)
    small = found(Hardware("a small card", 0.5, 1.0), 0)
    assert "A step needs about 0.61 GiB and a small card has 0.5" in small["stops"][0]
    assert "rollouts" not in as_text(small)
    assert found(Hardware("a card", 24.0, 1.0), 0)["stops"] == []


def test_steps_hours_and_dollars_follow_from_the_probe(tmp_path: Path, tiny: Path) -> None:
    args, model_args = arguments(tmp_path, tiny, max_steps=-1, num_train_epochs=3)
    prepared = prepare(args, model_args, hand_made())
    told = step_time(30.0, 3.0, args, 4, Hardware("x", 24.0, 1.5))
    assert (told["step_seconds"], told["steps"]) == (36.0, 12)
    assert (told["hours"], told["dollars"]) == (0.12, 0.18)
    prepared.run_steps()
    assert prepared.trainer.state.global_step == told["steps"]


def test_templates_keep_text_and_open_no_turns(tiny: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert check_template(hand_made(), tokenizer, {"enable_thinking": False}) == 4
    late = Dataset.from_list([*hand_made(), *hand_made(), *hand_made()])
    last = late.map(lambda row, n: {"prompt": said("<eos>" if n == 11 else "x")}, with_indices=True)
    with pytest.raises(TrainingInputError, match="Text of row 12 becomes control tokens"):
        check_template(last, tokenizer, {"enable_thinking": False})
    lossy = AutoTokenizer.from_pretrained(tiny)
    lossy.chat_template = "{{ bos_token }}{{ messages[0]['content'][:5] }}"
    with pytest.raises(TrainingInputError, match="changes the prompt of row 1"):
        check_template(hand_made(), lossy, {})
    hostile = hand_made().map(
        lambda row: {"prompt": [{"role": "user", "content": row["prompt"][0]["content"] + "<eos>"}]}
    )
    with pytest.raises(TrainingInputError, match="Text of row 1 becomes control tokens"):
        check_template(hostile, tokenizer, {"enable_thinking": False})


def test_the_job_looks_and_writes_nothing(
    tmp_path: Path, tiny: Path, filtered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    argv = ["--config", "tiny", "--report_to", "none", "--mode", "preflight"]
    argv += ["--dataset", str(filtered), "--model_name_or_path", str(tiny)]
    argv += ["--output_dir", str(out)]
    assert script().main([*argv, "--preflight_rows", "0"]) == 0
    assert "rollouts" not in capsys.readouterr().out
    assert script().main(argv) == 0
    told = capsys.readouterr().out
    assert "rollouts: {rows: 2, completions: 4, reward_mean: " in told
    assert "`force: true` in the recipe tiny.yaml trains all the same: " in told
    assert re.search(r"memory:\n  parts_gib: \{.*\}\n  total_gib: 0", told)
    assert "left_out: {}" in told, "nothing was"
    assert "steps: 4," in told
    assert not out.exists()


def test_a_flavor_is_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hardware_of(None).gib is None or torch.cuda.is_available()
    with pytest.raises(TrainingInputError, match="cannot be asked about --flavor a10g-large"):
        hardware_of("a10g-large")


def test_nothing_is_loaded_when_a_cheap_check_speaks_against_it(
    tmp_path: Path, tiny: Path, filtered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Config and tokenizer are there, the weights are not: they are not reached."""
    bare = tmp_path / "bare"
    shutil.copytree(tiny, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    argv = ["--config", "tiny", "--report_to", "none", "--force", "false", "--dtype", "bfloat16"]
    argv += ["--dataset", str(filtered), "--model_name_or_path", str(bare)]
    argv += ["--output_dir", str(tmp_path / "out")]
    job = run.Run(SDPO, argv, None)
    method = job.method
    method.load_model()
    method.fit(*method.load_rows(str(filtered)))
    old = Hardware("t4-small", 16.0, 0.4, bfloat16=False)
    with pytest.raises(TrainingInputError, match="t4-small cannot compute in bfloat16; give"):
        refuse(preflight(method, old), forced_by="")
    assert script().main(argv) == 2
    assert "The model `" in capsys.readouterr().err, "without a reason the weights are opened"
    if not torch.accelerator.is_available():
        assert script().main([*argv, "--mode", "preflight", "--use_cpu", "false"]) == 0, "for another machine"


def test_memory_is_measured_on_the_longest_row_at_full_length(tmp_path: Path, tiny: Path) -> None:
    args, model_args = arguments(tmp_path, tiny)
    prepared = prepare(args, model_args, hand_made())
    trainer = prepared.trainer
    trainer.model.train()
    chosen = [trainer.train_dataset[index] for index in (0, 0, 2, 2)]
    batch = trainer._prepare_training_batch(chosen)
    trainer.current_gradient_accumulation_steps = 1
    part = at_full_length(batch, 1, 30)
    assert part["completion_ids"].shape == part["completion_mask"].shape == (1, 30)
    assert part["completion_mask"].all()
    width = batch["completion_ids"].size(1)
    prompts = batch["teacher_attention_mask"][:, :-width].sum(1)
    assert part["teacher_attention_mask"].sum() == prompts.max() + 30
    assert prompts.argmax() >= 2, "the row with the long context"
    assert trainer.compute_loss(trainer.model, part).item() != 0


def test_advice_names_only_what_is_not_given_already(tiny: Path, tmp_path: Path) -> None:
    args, model_args = arguments(tmp_path, tiny, gradient_checkpointing=True)
    model_args.load_in_4bit = True
    said = advise(args, model_args)
    assert "--max_prompt_length" in said
    for given in ("--gradient_checkpointing", "--load_in_4bit", "--per_device_train_batch_size"):
        assert given not in said


def test_a_recipe_starts_on_the_traces_of_one_repository(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Filter, split, budgets, rewards, template and memory, with the tokenizer of the tiny model."""
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    for number in range(3):
        for file in SAMPLE_SESSIONS.glob("*.jsonl"):
            text = file.read_text().replace("fix", f"fix {number}")
            (sessions / f"{number}-{file.name}").write_text(text)
    argv = ["--config", "qwen3_4b", "--report_to", "none", "--mode", "preflight"]
    argv += ["--source", str(sessions), "--model_name_or_path", str(tiny), "--use_cpu", "true"]
    argv += ["--output_dir", str(tmp_path / "out"), "--preflight_rows", "0", "--min_score", "0"]
    argv += ["--gradient_accumulation_steps", "8", "--test_fraction", "0.4"]
    assert script().main(argv) == 0, capsys.readouterr().err
    assert "memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("share", "high", "said"),
    [
        (0.3, 0.4, "rft with --num_iterations 4 (some succeed), or sdpo"),
        (0.3, -0.1, "feedback adds nothing"),
        (0.0, 0.4, "sdpo: none succeeded"),
        (0.0, -0.1, "none: give easier rows"),
    ],
)
def test_a_method_is_recommended_from_the_rollouts(share: float, high: float, said: str) -> None:
    gap = {"gap": high, "interval_90": [high - 0.1, high]}
    assert said in recommend({"teacher_gap": gap, "rollouts": {"success_share": share}})
    stops = stops_of({"teacher_gap": {**gap, "teacher": 0.0, "student": 0.0}, "rollouts": {}}, "grpo")
    assert stops == []
