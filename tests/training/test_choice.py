"""Method, reward and recipe follow from the rows, and each recipe runs with tiny weights of its class."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl.experimental.sdft import SDFTTrainer

from pimono_sdpo.training import run, train
from pimono_sdpo.training.arguments import GuardedSDFTConfig, SDFTArguments
from pimono_sdpo.training.options import choose
from tests.training.recorded import pairs, steps, written
from tests.training.setup import StopAfter, adapter_state, arguments, hand_made

TESTS = json.dumps({"tests": {"kind": "value"}})
TRACE = ["prompt", "privileged_context", "reward_terms", "verifier_spec", "tools"]


@pytest.mark.parametrize(
    ("method", "columns", "specs", "expected", "why"),
    [
        (
            "auto",
            TRACE,
            ['{"harness": "pi"}', None],
            ("sdft", None),
            "0 of 2 rows have tests, and sdft needs no reward",
        ),
        (
            "auto",
            TRACE,
            [TESTS, TESTS, None],
            ("sdpo", "verifiers"),
            "2 of 3 rows have tests, which grade the answers",
        ),
        ("auto", TRACE, [TESTS, None, None], ("sdft", None), "1 of 3 rows have tests"),
        ("auto", ["prompt", "completion"], None, ("sft", None), "recorded answers"),
        ("auto", ["prompt", "chosen", "rejected"], None, ("dpo", None), "a chosen and a rejected answer"),
        ("grpo", TRACE, ["{}"], ("grpo", "trace_grounding"), "0 of 1 rows have tests, so nothing can grade"),
        ("sdpo", TRACE, ['{"recovery": {"worked": {}}}', None], ("sdpo", "verifiers"), "1 of 2 rows have a recorded"),
        ("sdpo", (), None, ("sdpo", "trace_grounding"), "the rows have no tests"),
        ("sdpo", TRACE, ["not JSON", "[1]", "3"], ("sdpo", "trace_grounding"), "0 of 3 rows"),
    ],
)
def test_the_method_follows_from_the_rows(
    method: str, columns: Any, specs: Any, expected: tuple[str, str | None], why: str
) -> None:
    choice = choose(method, columns, specs)
    assert (choice.method, choice.reward) == expected
    assert why in choice.why
    line = choice.sentence("cpu.yaml", "m", choice.reward)
    assert line.startswith("smoke test") is (choice.reward == "trace_grounding")


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, tiny_qwen: Path) -> Path:
    """Of the class of SmolLM2-135M-Instruct."""
    folder = tmp_path_factory.mktemp("llama") / "model"
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    return folder


SMALL = {"max_steps": 2, "use_cpu": True, "dtype": "float32", "report_to": "none", "max_completion_length": 8}


@pytest.mark.parametrize(
    ("recipe", "model", "changes"),
    [
        ("gemma4_12b", "tiny", {"method": "sdpo"}),
        ("gemma4_12b", "tiny", {}),
        ("qwen3_4b", "tiny_qwen", {"generations": 4, "gradient_accumulation_steps": 2, "warmup_steps": 0}),
        ("cpu", "tiny_llama", {}),
    ],
)
def test_each_recipe_runs_with_tiny_weights_of_its_class(
    recipe: str, model: str, changes: dict[str, Any], filtered: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    weights = request.getfixturevalue(model)
    options = {**SMALL, **changes, "model_name_or_path": str(weights), "output_dir": str(tmp_path / "out")}
    out = train(filtered, config=recipe, held_out=0.3, eval_rows=1, preflight_rows=1, **options)
    log = json.loads((out / "run.json").read_text())
    assert log["method"] == changes.get("method", "sdft")
    assert [entry["step"] for entry in log["log_history"]] == [1, 2]
    assert log["evaluation"]["split"] == "1 of 4 sessions"
    assert log["rollouts"]
    assert load_file(out / "adapter" / "adapter_model.safetensors")


@pytest.mark.parametrize(("method", "made"), [("sft", steps), ("dpo", pairs)])
def test_rows_with_answers_start_the_recipe_for_a_cpu(
    method: str, made: Any, tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(tmp_path / "rows", made())
    options: dict[str, Any] = {
        "model_name_or_path": str(tiny_llama),
        "output_dir": str(tmp_path / "out"),
        "report_to": "none",
    }
    out = train(rows, config="cpu", max_steps=1, held_out=0.4, max_length=2048, **options)
    assert capsys.readouterr().out.startswith(f"method {method}, recipe cpu.yaml, model ")
    log = json.loads((out / "run.json").read_text())
    assert log["evaluation"]["completions"] == 2


def sdft(folder: Path, model: Path, rows: Dataset, **changes: Any) -> Any:
    base, model_args = arguments(folder, model)
    kept = (
        "use_cpu",
        "bf16",
        "max_steps",
        "learning_rate",
        "num_generations",
        "max_completion_length",
        "logging_steps",
    )
    args = GuardedSDFTConfig(
        **{name: getattr(base, name) for name in kept},
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 2,
            "gradient_checkpointing": False,
            "max_prompt_length": 96,
            "max_reprompt_len": 256,
            "save_strategy": "no",
            "disable_tqdm": True,
            **changes,
        },
    )
    job = SDFTArguments()
    run.settle(job, args)
    setup = run.set_up(job, args, model_args)
    return run.build(setup, run.fit(setup, rows).rows)


@pytest.mark.parametrize("mode", ["topk_logits", "full_logits", "sampled_token"])
def test_a_step_of_sdft_is_that_of_trl(mode: str, tiny: Path, tmp_path: Path) -> None:
    alpha = {"distillation_alpha": 1.0} if mode == "sampled_token" else {}
    trainer = sdft(tmp_path, tiny, hand_made(), distillation_mode=mode, **alpha)
    for name, parameter in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.manual_seed(len(name))
            torch.nn.init.normal_(parameter, std=0.05)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._prepare_training_batch(
        [dict(row) for row in trainer.train_dataset.select([0, 3]) for _ in range(2)]
    )
    found = []
    for kind in (type(trainer), SDFTTrainer):
        trainer.__class__ = kind
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, dict(batch))
        loss.backward()
        grads = [p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None and "default" in n]
        found.append((loss.item(), grads))
    (ours, our_grads), (theirs, their_grads) = found
    assert ours == pytest.approx(theirs, rel=1e-5) != 0
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-9) for a, b in zip(our_grads, their_grads, strict=True))


def test_a_killed_run_of_sdft_goes_on_to_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    straight = sdft(tmp_path / "straight", tiny, hand_made())
    run.run_steps(straight)
    changes = {"save_strategy": "steps", "save_steps": 4}
    first = sdft(tmp_path / "killed", tiny, hand_made(), **changes)
    first.add_callback(StopAfter(4))
    run.run_steps(first)
    second = sdft(tmp_path / "killed", tiny, hand_made(), **changes)
    run.run_steps(second)
    assert second.state.global_step == straight.state.global_step == 6
    for adapter in ("default", "teacher"):
        expected, resumed = adapter_state(straight, adapter), adapter_state(second, adapter)
        assert all(torch.equal(expected[name], resumed[name]) for name in expected), adapter


def test_rows_without_a_context_teach_sdft_nothing_and_are_left_out(tiny: Path, tmp_path: Path) -> None:
    rows = hand_made().map(
        lambda row, n: {"privileged_context": row["privileged_context"] if n else " "}, with_indices=True
    )
    assert len(sdft(tmp_path, tiny, rows).train_dataset) == 3


# The private names of libraries that this package uses or overrides.
PRIVATE = {
    "trl.experimental.sdpo.SDPOTrainer": (
        "_generate_transformers _forward_logits _compute_rollout_logps _compute_self_distillation_loss "
        "_compute_policy_loss _calculate_rewards _prepare_training_batch _tokenize_prompts _generate "
        "_log_self_distillation_metric compute_loss"
    ),
    "trl.experimental.sdft.SDFTTrainer": (
        "_generate_transformers _forward_logits _compute_rollout_logps _compute_self_distillation_loss "
        "_prepare_training_batch _log_self_distillation_metric compute_loss"
    ),
    "trl.experimental.sdpo.sdpo_trainer.SuccessfulRolloutTeacherContextBuilder": "build _build_reprompt_text",
    "trl.experimental.sdpo.teacher_sync.PEFTAdapterEMACallback": "_initialize_teacher_adapter on_step_end",
    "trl.experimental.sdft.teacher_sync.PEFTAdapterEMACallback": "_initialize_teacher_adapter on_step_end",
    "transformers.integrations.TrackioCallback": "setup on_log on_train_end",
}


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in PRIVATE.items() for name in names.split()]
)
def test_a_private_name_of_a_library_is_still_there(owner: str, name: str) -> None:
    module, _, kind = owner.rpartition(".")
    assert callable(getattr(getattr(__import__(module, fromlist=[kind]), kind), name))


def test_private_attributes_of_trainers_are_still_there(tiny: Path, tmp_path: Path) -> None:
    trainer = sdft(tmp_path, tiny, hand_made())
    for name in ("_metrics", "_tokenizer", "eos_token_ids", "model_kwarg_keys", "temperature"):
        assert hasattr(trainer, name), name
