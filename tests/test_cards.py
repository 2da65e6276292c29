import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import UndefinedError

from cards import (
    lint_card,
    render_dataset_card,
    render_model_card,
    write_report_plot,
    write_run_plot,
)
from cards.render import COLUMNS
from pimono_sdpo.schema import SDPO_ROW
from processors.grade import WEIGHTS

HOSTILE = "a | b\n```\n---\n{{ 7 * 7 }} {% raw %}\n# no title\n`code`"


def report(**changes: Any) -> dict[str, Any]:
    return {
        "pimono_sdpo": "0.1.0",
        "input": {
            "source": "lab/traces",
            "kind": "hub",
            "revision": "a" * 40,
            "shards": [{"path": "d/t/0000.parquet", "layout": "trace_text", "sessions": 5, "bytes": 9}],
        },
        "options": {"unit": "session", "min_score": 13.3, "max_samples": None, "seed": 42},
        "lines": {"parsed": 90, "repaired": 2, "skipped": 1},
        "stages": [{"stage": "keep", "rows_in": 5, "rows_out": 3, "dropped": {"no_prompt": 2}}],
        "sessions": 5,
        "kept": 3,
        "rejected": 2,
        "drop_reasons": {"no_prompt": 2},
        "score": {
            "min": 14.5,
            "max": 19.5,
            "mean": 16.25,
            "histogram": [{"from": 14.0, "to": 16.0, "rows": 2}, {"from": 18.0, "to": 20.0, "rows": 1}],
        },
        "category_counts": {"command_error": 3, "test_or_assertion": 2},
        "sources": {"lab/traces": 3},
        "weights": WEIGHTS,
        "secrets_redacted": {"github_token": 4},
        "licence": "mit",
        "sha256": {"data": "d" * 64, "rejects": "e" * 64},
        "first_sample": {
            "prompt": [{"role": "user", "content": "Fix the parser"}],
            "privileged_context": "Tool/environment diagnostic 1 (command_error):\nboom",
            "reward_terms": ["command_error", "promises:332"],
            "score": 19.5,
            "score_terms": [{"term": "command_error", "value": 2.0}],
        },
        **changes,
    }  # fmt: skip


def run(**changes: Any) -> dict[str, Any]:
    step = {"loss": 0.5, "self_distillation/reward_mean": 0.2, "sdpo/distillation_loss": 0.5}
    return {
        "pimono_sdpo": "0.1.0",
        "run_name": "pi-sdpo-1",
        "mode": "train",
        "recipe": "gemma4_12b.yaml",
        "command": ["--mode", "train", "--run-name", "pi-sdpo-1"],
        "base_model": "google/gemma-4-12B-it",
        "base_model_revision": "b" * 40,
        "base_model_class": "Gemma4UnifiedForConditionalGeneration",
        "dataset": {
            "id": "lab/rows",
            "rows": 64,
            "rows_used": 63,
            "prompts_shortened": 11,
            "contexts_shortened": 12,
            "special_tokens_neutralised": 13,
        },
        "hub_model_id": "me/pi-sdpo",
        "trackio": {
            "project": "pimono-sdpo",
            "space_id": "me/trackio",
            "url": "https://huggingface.co/spaces/me/trackio",
        },
        "arguments": {
            "max_steps": 24,
            "learning_rate": 5e-5,
            "num_generations": 2,
            "success_reward_threshold": 0.35,
            "max_prompt_length": 768,
            "max_completion_length": 160,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 2,
            "temperature": 0.9,
            "seed": 1234,
            "dtype": "bfloat16",
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": True,
            "lora_r": 8,
            "lora_alpha": 16,
            "lora_dropout": 0.05,
            "distillation_mode": "sampled_token",
            "teacher_model_kind": "ema",
            "teacher_update_rate": 0.01,
            "include_environment_feedback": True,
        },
        "hardware": {"device": "cuda", "name": "NVIDIA A10G", "count": 1},
        "versions": {"trl": "1.16.0", "peft": "0.21.2"},
        "started_at": "2026-01-02T03:04:05Z",
        "finished_at": "2026-01-02T03:20:05Z",
        "metrics": {
            "train_runtime": 952.7,
            "train_samples_per_second": 0.05,
            "train_steps_per_second": 0.025,
            "train_loss": 0.5,
        },
        "log_history": [{"step": n, **step} for n in range(1, 25)],
        "adapter": {"files": {"adapter_model.safetensors": 77}, "trainable_parameters": 32780},
        **changes,
    }


def front_matter(card: str) -> dict[str, Any]:
    matter: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return matter


def headings(card: str) -> list[str]:
    """Headings outside of code blocks; a block may be fenced by more than three backticks."""
    found, fence = [], ""
    for line in card.splitlines():
        mark = line[: len(line) - len(line.lstrip("`"))]
        if fence:
            fence = "" if mark == line == fence else fence
        elif len(mark) >= 3:
            fence = mark
        elif line.startswith("#"):
            found.append(line)
    assert not fence
    return found


MODEL_SECTIONS = [
    "# me/pi-sdpo",
    "## Training Run",
    "## Data Filtering",
    "### First sample",
    "## Reward Function",
    "## Training Metrics",
    "## Reproduce",
    "## Limitations",
]


def test_the_model_card_has_the_reference_cards_order() -> None:
    card = render_model_card(report(), run())
    matter = front_matter(card)
    assert headings(card) == MODEL_SECTIONS
    assert lint_card(card) == []
    assert (matter["base_model"], matter["base_model_relation"]) == (
        "google/gemma-4-12B-it",
        "adapter",
    )
    assert matter["datasets"] == ["lab/rows", "lab/traces"]
    assert matter["library_name"] == "peft"
    assert "base_model:adapter:google/gemma-4-12B-it" in matter["tags"]
    assert card == render_model_card(report(), run())


@pytest.mark.parametrize(
    "line",
    [
        "| run name | pi-sdpo-1 |",
        "| optimizer steps | 24 |",
        "| completions sampled | 48 |",
        "| learning rate | 5e-05 |",
        "| quantisation | 4 bit nf4 |",
        "| LoRA | r 8, alpha 16, dropout 0.05, 32780 parameters |",
        "| generations per prompt | 2 |",
        "| success threshold | 0.35 |",
        "| prompt / completion budget | 768 / 160 tokens |",
        "| temperature | 0.9 |",
        "| seed | 1234 |",
        "| hardware | 1 x NVIDIA A10G (cuda) |",
        "| versions | trl 1.16.0, peft 0.21.2 |",
        "Trained on 63 of 64 rows of `lab/rows`. To fit the budgets, 11 prompts",
        "| score | 14.5 to 19.5, mean 16.25 |",
        "| `command_error` | 3 |",
        "| `self_distillation/reward_mean` | 0.2 | 0.2 | 0.2 |",
        "    jobs/train_sdpo.py -- --mode train --run-name pi-sdpo-1",
    ],
)
def test_every_number_is_the_runs_own(line: str) -> None:
    assert line in render_model_card(report(), run()).splitlines()


def test_a_local_base_is_not_claimed_to_be_on_the_hub() -> None:
    card = render_model_card(
        None,
        run(
            base_model="/home/ann/models/tiny",
            base_model_revision=None,
            hub_model_id=None,
            trackio={"project": "pimono-sdpo", "space_id": None, "url": None},
        ),
    )
    assert lint_card(card) == []
    assert "base_model" not in front_matter(card)
    assert "/home/ann" not in card
    assert "without a report" in card
    assert "huggingface.co/google" not in card
    assert headings(card) == ["# pi-sdpo-1", *(h for h in MODEL_SECTIONS[1:] if "sample" not in h)]


def test_the_dataset_card_holds_columns_stages_and_configs() -> None:
    card = render_dataset_card(report())
    matter = front_matter(card)
    assert lint_card(card) == []
    assert [config["config_name"] for config in matter["configs"]] == ["default", "rejects"]
    assert matter["source_datasets"] == ["lab/traces"]
    assert matter["license"] == "mit"
    assert matter["size_categories"] == ["n<1K"]
    assert "| `keep` | 5 | 3 | no_prompt 2 |" in card
    assert "github_token 4" in card
    assert set(COLUMNS) == set(SDPO_ROW)
    assert all(f"| `{name}` |" in card for name in SDPO_ROW)
    nothing_dropped = render_dataset_card(report(rejected=0, licence=None))
    assert len(front_matter(nothing_dropped)["configs"]) == 1
    assert "license" not in front_matter(nothing_dropped)


def test_text_of_a_trace_cannot_change_the_card() -> None:
    sample = {**report()["first_sample"], "prompt": [{"role": "user", "content": HOSTILE}]}
    sample["privileged_context"] = HOSTILE
    sample["reward_terms"] = ["a|b", "`x`"]
    hostile = report(first_sample=sample)
    assert headings(render_model_card(hostile, run())) == MODEL_SECTIONS
    assert headings(render_dataset_card(hostile)) == headings(render_dataset_card(report()))
    assert "{{ 7 * 7 }}" in render_dataset_card(hostile)
    named = render_model_card(report(), run(run_name="x | y\n# z"))
    assert headings(named) == MODEL_SECTIONS


def test_a_missing_value_is_an_error() -> None:
    incomplete = run()
    del incomplete["arguments"]["lora_r"]
    with pytest.raises(UndefinedError, match="lora_r"):
        render_model_card(report(), incomplete)


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        ("no front matter", "no YAML front matter"),
        ("---\na: [\n---\n# T\n", "is no YAML"),
        ("---\n- a\n---\n# T\n", "no mapping"),
        ("---\nlicense: mine\n---\n# T\n", "`license` is `mine`"),
        ("---\nbase_model: /home/a/m\n---\n# T\n", "no repository id"),
        ("---\nbase_model: a/b\n---\n# T\n", "without `base_model_relation`"),
        ("---\npipeline_tag: chat\n---\n# T\n", "`pipeline_tag` is `chat`"),
        ("---\ndatasets: ['a b']\n---\n# T\n", "`datasets` holds `a b`"),
        ("---\nlicense: mit\n---\ntext\n", "no title"),
        ("---\nlicense: [mit, mine]\n---\n# T\n", "`license` is `mine`"),
        ("---\nlicense: mit\nlicense: gemma\n---\n# T\n", "`license` stands more than once"),
        ("---\ndatasets: a--b/c\n---\n# T\n", "`datasets` holds `a--b/c`"),
        ("---\ndatasets: a/b.git\n---\n# T\n", "`datasets` holds `a/b.git`"),
        ("---\ndatasets: .a/b\n---\n# T\n", "`datasets` holds `.a/b`"),
        ("---\nlibrary_name: mine\n---\n# T\n", "`library_name` is `mine`"),
        ("---\ntags: ['base_model:adapter:/a/b']\n---\n# T\n", "names no repository id"),
    ],
)
def test_lint_names_what_is_wrong(card: str, problem: str) -> None:
    assert any(problem in found for found in lint_card(card))


@pytest.mark.parametrize("licence", ["mit", "gemma", "cc-by-nc-2.0", "[mit, apache-2.0]"])
def test_lint_lets_known_licences_pass(licence: str) -> None:
    assert (
        lint_card(
            f"---\nlicense: {licence}\nbase_model: a/b.c\nbase_model_relation: adapter\n---\n# T\n"
        )
        == []
    )


def test_a_log_without_every_step_still_counts_all_steps() -> None:
    every_fifth = run()["log_history"][4::5]
    card = render_model_card(None, run(log_history=every_fifth))
    assert [entry["step"] for entry in every_fifth] == [5, 10, 15, 20]
    assert "| optimizer steps | 24 |" in card
    assert "| completions sampled | 48 |" in card
    by_epochs = run(arguments={**run()["arguments"], "max_steps": -1})
    assert "| optimizer steps | 24 |" in render_model_card(None, by_epochs)


def test_arguments_are_not_rounded() -> None:
    arguments = {**run()["arguments"], "learning_rate": 1.23456e-05, "temperature": 0.912345}
    card = render_model_card(None, run(arguments=arguments))
    assert "| learning rate | 1.23456e-05 |" in card
    assert "| temperature | 0.912345 |" in card


@pytest.mark.parametrize(
    ("fractions", "said", "not_said"),
    [
        ([0.0, 0.0], "No rollout reached the success threshold", "was a success."),
        ([0.5, 1.0], "For 75.0 % of the prompts sampled", "No rollout reached"),
        ([], "No held-out evaluation", "was a success."),
    ],
)
def test_the_limitations_say_how_often_it_worked(
    fractions: list[float], said: str, not_said: str
) -> None:
    name = "self_distillation/success_group_fraction"
    history = [{"step": i, "loss": 0.1, name: value} for i, value in enumerate(fractions, 1)]
    limits = render_model_card(None, run(log_history=history)).split("## Limitations")[1]
    assert said in limits
    assert not_said not in limits


@pytest.mark.parametrize(
    ("changes", "tagged", "teacher"),
    [
        ({}, True, "the model's own\nmoving average"),
        ({"load_in_4bit": False, "teacher_model_kind": "base"}, False, "the base model without"),
        (
            {"load_in_4bit": False, "load_in_8bit": True, "teacher_model_kind": "live"},
            True,
            "the model itself",
        ),
    ],
)
def test_the_card_says_what_this_run_used(
    changes: dict[str, Any], tagged: bool, teacher: str
) -> None:
    card = render_model_card(None, run(arguments={**run()["arguments"], **changes}))
    assert ("qlora" in front_matter(card)["tags"]) is tagged
    assert f"A teacher, {teacher}" in card


def test_a_backslash_before_a_pipe_does_not_open_a_column() -> None:
    counts = {"a\\|b": 3}
    card = render_model_card(report(category_counts=counts), run())
    (line,) = [line for line in card.splitlines() if line.startswith("| `a")]
    assert len(re.split(r"(?<!\\)\|", line)) == 4
    assert r"\\|" not in line


def test_plots_are_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps([report(), run()]))
    script = (
        "import json, sys; from pathlib import Path; from cards import *\n"
        "report, run = json.loads(Path('in.json').read_text())\n"
        "write_report_plot(report, Path('report2.png')); write_run_plot(run, Path('run2.png'))"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    write_report_plot(report(), tmp_path / "report.png")
    write_run_plot(run(), tmp_path / "run.png")
    for name in ("report", "run"):
        drawn = (tmp_path / f"{name}.png").read_bytes()
        assert drawn.startswith(b"\x89PNG")
        assert drawn == (tmp_path / f"{name}2.png").read_bytes()
