"""What is found before the first step, what stops a training, and that nothing of it is left."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import ModelConfig

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.training import rows, run
from pimono_sdpo.training.models import Hardware, advise, hardware_of
from pimono_sdpo.training.preflight import at_full_length, inspect, judge, refuse, sample, step_time, teacher_gap
from pimono_sdpo.training.rewards import Scoring
from pimono_sdpo.training.rows import check_template
from rewards.trace_grounding import trace_grounding_reward
from tests.training.setup import Prepared, SeenPrompts, adapter_state, arguments, hand_made, prepare, script, sdpo

HERE = Hardware("here", None, None)
TOLD = "SECRET WORD"


def prepared_as_job(tmp_path: Path, tiny: Path, rows: Dataset, scoring: Scoring, **options: Any) -> run.Setup:
    args, model_args = arguments(tmp_path, tiny)
    setup = sdpo(args, model_args, scoring)
    vars(setup.job).update(options)
    return setup


def test_the_longest_of_the_rows_that_have_a_reward_is_tried(tiny: Path, tmp_path: Path) -> None:
    made = hand_made().to_list()
    longest = made.pop(2)
    # It names no term, so it is left out, and no row has its place.
    rows = Dataset.from_list([*made, {**longest, "reward_terms": []}])
    scoring = Scoring(trace_grounding_reward)
    setup = prepared_as_job(tmp_path, tiny, rows, scoring, reward="trace_grounding", preflight_rows=1)
    fitted = run.fit(setup, rows)
    assert [len(of_each) for of_each in fitted.lengths.values()] == [3, 3]
    found, _ = run.run_preflight(setup, fitted, None)
    assert found["rollouts"]["rows"] == 1


def test_probing_leaves_the_run_as_it_was(
    straight: tuple[Prepared, dict[str, float], SeenPrompts, ModelConfig], tiny: Path, filtered: Path, tmp_path: Path
) -> None:
    args, model_args = arguments(tmp_path, tiny)
    prepared = prepare(args, model_args, rows.load_rows(str(filtered)))
    seen = SeenPrompts()
    prepared.trainer.add_callback(seen)
    found, peak = sample(prepared.trainer, 3, 0, HERE)
    assert (found["rollouts"]["rows"], found["rollouts"]["completions"]) == (3, 6)
    assert found["teacher_gap"]["completions"] > 0
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


@pytest.mark.parametrize(("told", "untold", "gap"), [(0.75, 0.25, 0.5), (0.0, 1.0, -1.0)])
def test_the_gap_is_what_feedback_adds(
    tmp_path: Path, tiny: Path, told: float, untold: float, gap: float, capsys: pytest.CaptureFixture[str]
) -> None:
    # Trials of the reward come without a trainer, and must not win.
    scoring = Scoring(Listening(told, untold), column="reward_terms")
    setup = prepared_as_job(tmp_path, tiny, hand_made(), scoring, preflight_rows=2)
    setup.args.success_reward_threshold = 2.0
    fitted = fit(setup)
    found, _ = run.run_preflight(setup, fitted, None)
    assert found["teacher_gap"]["gap"] == pytest.approx(gap)
    assert found["rollouts"]["flat_group_share"] == 1.0
    assert found == json.loads(json.dumps(found, allow_nan=False))
    if gap > 0:
        assert found["stops"] == []
        refuse(found, forced_by="")
    else:
        with pytest.raises(TrainingInputError, match=r"no better with the feedback.*--force"):
            refuse(found, forced_by="")
        refuse(found, forced_by="--force")
        said = capsys.readouterr().out.strip().splitlines()[-1]
        assert said.startswith("--force trains all the same: The model does no better with the")


def fit(setup: run.Setup) -> Any:
    """Without the check of the threshold, which no completion is to reach here."""
    threshold, setup.args.success_reward_threshold = setup.args.success_reward_threshold, 1.0
    fitted = run.fit(setup, hand_made())
    setup.args.success_reward_threshold = threshold
    return fitted


def judged(student: list[float], teacher: list[float]) -> tuple[list[str], list[str]]:
    return judge({"teacher_gap": teacher_gap(student, teacher), "rollouts": {"success_share": 0.0}})


def test_noise_stops_no_training() -> None:
    """Rewards that are all 0 are no certainty: of 2000 trainings with a real gain, fewer than 1 % are refused."""
    stops, warnings = judged([0.0] * 16, [0.0] * 16)
    assert stops == []
    assert "too few to tell" in warnings[0]
    assert judged([0.0] * 16, [0.5] * 16) == ([], [])
    assert "no better with the feedback" in judged([1.0] * 16, [0.0, 0.5] * 8)[0][0]
    random = np.random.default_rng(0)
    for completions in (4, 16):
        for student, teacher in ((0.0, 0.05), (0.02, 0.1), (0.02, 0.2)):
            pairs = (
                [(random.random(completions) < chance).astype(float).tolist() for chance in (student, teacher)]
                for _ in range(200)
            )
            assert sum(bool(judged(*pair)[0]) for pair in pairs) < 2


def test_what_cannot_learn_or_fit_is_stopped(tmp_path: Path, tiny: Path) -> None:
    rows = hand_made()
    setup = prepared_as_job(tmp_path, tiny, rows, Scoring(never), preflight_rows=1)
    fitted = run.fit(setup, rows)
    without = fitted._replace(rows=fitted.rows.map(lambda _: {"privileged_context": ""}))
    dead, _ = run.run_preflight(setup, without, None)
    assert dead["rollouts"]["success_share"] == 0
    assert dead["teacher_gap"] is None
    assert "nothing would be learned" in dead["stops"][0]
    budgets, parts = setup.budgets, {"everything": int(0.61 * 2**30)}
    small = inspect(setup.args, setup.model_args, fitted, budgets, parts, Hardware("a small card", 0.5, 1.0))
    assert "A step needs about 0.61 GiB and a small card has 0.5" in small["stops"][0]
    old = Hardware("t4-small", 16.0, 0.4, bfloat16=False)
    setup.model_args.dtype = "bfloat16"
    with pytest.raises(TrainingInputError, match="t4-small cannot compute in bfloat16; give"):
        refuse(inspect(setup.args, setup.model_args, fitted, budgets, parts, old), forced_by="")


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
    argv = ["--config", "cpu", "--report_to", "none", "--mode", "preflight"]
    argv += ["--dataset", str(filtered), "--model_name_or_path", str(tiny)]
    argv += ["--output_dir", str(out)]
    assert script().main([*argv, "--preflight_rows", "0"]) == 0
    assert "rollouts" not in capsys.readouterr().out
    assert script().main(argv) == 0
    told = capsys.readouterr().out
    assert "rollouts: {rows: 2, completions: 4, reward_mean: " in told
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
    argv = ["--config", "cpu", "--report_to", "none", "--dataset", str(filtered), "--model_name_or_path", str(bare)]
    argv += ["--output_dir", str(tmp_path / "out")]
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
