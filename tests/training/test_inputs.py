"""Rows, models, settings and folders that cannot be trained with."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from pimono_sdpo.errors import OutputError, TrainingInputError
from pimono_sdpo.samples import write_samples
from pimono_sdpo.training import models, output, rows, train
from pimono_sdpo.training.arguments import SDPOArguments, open_parser
from pimono_sdpo.training.options import check_columns, find_recipe
from pimono_sdpo.training.rewards import Mode
from pimono_sdpo.training.sdpo import SDPO
from pimono_sdpo.training.supervised import DPO
from tests.training.setup import JOBS, arguments, hand_made, prepare


def test_rows_come_from_the_data_folder_alone(filtered: Path) -> None:
    loaded = rows.load_rows(str(filtered))
    assert len(loaded) == 4
    assert "drop_reason" not in loaded.column_names
    assert loaded[0]["session_id"] == "s0"
    assert models.public_name(str(filtered)) == "rows"
    assert models.public_name("someone/rows") == "someone/rows"
    assert rows.load_report(str(filtered)) is None


def test_rows_edited_by_hand_are_read_again(tmp_path: Path) -> None:
    card = "configs: [{config_name: default, data_files: [{path: data/train-*.parquet, split: train}]}]"
    (tmp_path / "README.md").write_text(f"---\n{card}\n---\n")
    for count in (3, 2):
        hand_made().select(range(count)).to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
        assert len(rows.load_rows(str(tmp_path))) == count


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (None, "There is no folder"),
        ({}, "doesn't contain any data files"),
        ({"prompt": []}, "corresponds to no data"),
        ("not parquet", "magic bytes not found"),
        (
            {"text": ["hi"]},
            "no column prompt and privileged_context and reward_terms, only text; give rows that `filter`",
        ),
    ],
)
def test_unusable_rows_are_one_sentence(
    tmp_path: Path, tiny: Path, columns: dict[str, list[str]] | str | None, words: str
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
        SDPO(SDPOArguments(), *arguments(tmp_path, tiny)).load_rows(str(folder))
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (None, {}, "The rows are of the type NoneType; give a folder"),
        ([{"prompt": "hi"}], {}, "The rows are of the type list"),
        (Dataset.from_dict({"prompt": []}), {}, "The rows are an empty dataset"),
        ("rows", {"reward": len}, "`reward` is a builtin_function_or_method; give its name, as module:name"),
    ],
)
def test_what_python_gives_wrongly_is_one_sentence(given: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainingInputError, match=words):
        train(given, **options)


def test_more_tokens_than_the_vocabulary_has_are_refused(tmp_path: Path, tiny: Path) -> None:
    args, model_args = arguments(tmp_path, tiny, distillation_mode="topk_logits", distillation_topk=10**7)
    with pytest.raises(TrainingInputError, match="--distillation_topk is 10000000, and the model has"):
        prepare(args, model_args, hand_made())


def test_a_loss_that_trl_does_not_have_is_refused() -> None:
    parser = open_parser(DPO.OPTIONS, DPO.CONFIG)
    plain = ["--use_cpu", "true", "--bf16", "false", "--loss_type", "sigmoid"]
    assert parser.parse_args_and_config([*plain, "sft"])[1].loss_type == ["sigmoid", "sft"]
    with pytest.raises(TrainingInputError, match="invalid choice: 'nope'"):
        parser.parse_args_and_config([*plain, "nope"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_name_or_path": "nowhere/at/all"}, "no model in the folder `nowhere/at/all`"),
        ({"model_name_or_path": None}, "There is no base model"),
        ({"use_peft": False}, "`use_peft` is off"),
    ],
)
def test_an_unusable_model_is_one_sentence(tmp_path: Path, tiny: Path, changes: dict[str, Any], words: str) -> None:
    args, model_args = arguments(tmp_path, tiny)
    for name, value in changes.items():
        setattr(model_args, name, value)
    with pytest.raises(TrainingInputError, match=words):
        prepare(args, model_args, hand_made())
    assert not any(tmp_path.iterdir())


def test_lora_layers_can_still_be_chosen(tmp_path: Path, tiny: Path) -> None:
    _, model_args = arguments(tmp_path, tiny)
    assert models.lora_config(model_args).target_modules == models.TEXT_LINEARS
    model_args.lora_target_modules = ["q_proj", "v_proj"]
    chosen = models.lora_config(model_args)
    assert chosen.target_modules == {"q_proj", "v_proj"}
    assert (chosen.r, chosen.lora_alpha) == (8, 16)


@pytest.mark.parametrize(
    ("changes", "words"), [({"hub_token": "hf_secret"}, "HF_TOKEN"), ({"push_to_hub": True}, "--hub_model_id")]
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
    SDPO(SDPOArguments(mode="smoke"), args, model_args)
    assert args.max_steps == steps
    assert args.hub_model_id is None
    assert args.push_to_hub is False
    assert args.save_strategy == "no"


def test_too_few_rows_for_a_step_are_named(tmp_path: Path, tiny: Path) -> None:
    args, model_args = arguments(tmp_path, tiny, per_device_train_batch_size=6)
    with pytest.raises(TrainingInputError, match="4 rows and each step takes 6 prompts"):
        prepare(args, model_args, hand_made())


def test_a_recipe_is_found_by_path_then_by_name(tmp_path: Path) -> None:
    assert find_recipe("tiny") == JOBS / "recipes" / "tiny.yaml"
    assert find_recipe("gemma4_12b.yaml") == JOBS / "recipes" / "gemma4_12b.yaml"
    own = tmp_path / "own.yaml"
    own.write_text("max_steps: 3\n")
    assert find_recipe(str(own)) == own
    with pytest.raises(TrainingInputError, match="gemma4_12b, qwen3_4b, qwen3_4b_dpo, qwen3_4b_sft, tiny"):
        find_recipe("gemma5")


@pytest.mark.parametrize("recipe", sorted((JOBS / "recipes").iterdir()), ids=lambda path: path.stem)
def test_a_recipe_says_what_it_is(recipe: Path) -> None:
    assert recipe.suffix == ".yaml"
    assert recipe.read_text().startswith("# ")


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    for name in ("adapter", "checkpoint-2"):
        (tmp_path / name).mkdir()
    output.check_output(tmp_path)
    output.write_json({"pimono_sdpo": "0.1.0"}, tmp_path / "run.json")
    with pytest.raises(OutputError, match="holds a finished run"):
        output.check_output(tmp_path)


def test_rows_for_testing_alone_are_told(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    hand_made().to_parquet(tmp_path / "data" / "test-00000-of-00001.parquet")
    with pytest.raises(TrainingInputError, match=r"Should be one of \['test'\]"):
        rows.load_rows(str(tmp_path))


def test_sessions_in_place_of_rows_are_sent_to_the_filter(tmp_path: Path) -> None:
    write_samples(tmp_path)
    with pytest.raises(
        TrainingInputError, match="give the output of `filter`, `steps` or `pairs`, or of `filter --merge`"
    ):
        rows.load_rows(str(tmp_path))


@pytest.mark.parametrize(
    ("method", "columns", "words"),
    [
        ("sdpo", ["prompt", "completion"], "no column privileged_context and reward_terms, only prompt, completion"),
        ("sft", ["prompt", "chosen"], "no column completion, only prompt, chosen; give rows that `steps` wrote"),
        ("dpo", ["prompt"], "no column chosen and rejected, only prompt; give rows that `pairs` wrote"),
    ],
)
def test_rows_for_another_method_are_one_sentence(method: str, columns: list[str], words: str) -> None:
    with pytest.raises(TrainingInputError, match=f"`rows` has {words}"):
        check_columns(method, columns, "rows")


@pytest.mark.parametrize(
    ("reward", "feedback", "spec", "words"),
    [
        (
            "outcome",
            None,
            None,
            "has a text in privileged_context or verifier_spec, so the teacher of --feedback both",
        ),
        ("outcome", None, '{"kind": "x"}', None),
        ("outcome", "trace", '{"kind": "x"}', "has a text in privileged_context, so the teacher of --feedback trace"),
        ("outcome", "none", None, None),
    ],
)
def test_the_teacher_has_something_to_read(
    tmp_path: Path, tiny: Path, reward: str, feedback: Mode | None, spec: str | None, words: str | None
) -> None:
    made = [{**row, "privileged_context": "", "verifier_spec": spec} for row in hand_made()]
    Dataset.from_list(made).to_parquet(tmp_path / "rows" / "data" / "train-00000-of-00001.parquet")
    method = SDPO(SDPOArguments(reward=reward, feedback=feedback), *arguments(tmp_path, tiny))
    with pytest.raises(TrainingInputError, match=words) if words else nullcontext():
        assert len(method.load_rows(str(tmp_path / "rows"))[0]) == len(made)


def test_rows_of_a_duel_have_no_report_of_a_filter(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"pimono_sdpo": "0.1.0", "stage": "sdpo"}')
    assert rows.load_report(str(tmp_path)) is None
