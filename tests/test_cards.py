import re
from typing import Any

import pytest
from jinja2 import UndefinedError

from cards.lint import lint_card
from cards.render import COLUMNS, METRICS, render_dataset_card, render_model_card
from pimono_sdpo.schema import SDPO_ROW
from tests.card_data import HOSTILE, front_matter, report, run


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
    "## Use",
    "## Limitations",
]


def test_the_model_card_has_the_reference_cards_order() -> None:
    card = render_model_card(report(), run())
    matter = front_matter(card)
    assert headings(card) == MODEL_SECTIONS
    assert lint_card(card) == []
    assert (matter["base_model"], matter["base_model_relation"]) == ("google/gemma-4-12B-it", "adapter")
    assert matter["datasets"] == ["lab/rows", "lab/traces"]
    assert matter["library_name"] == "peft"
    assert "base_model:adapter:google/gemma-4-12B-it" in matter["tags"]
    assert card == render_model_card(report(), run())


# The labels of the reference card, in its order.
LABELS = [
    *("Hub repo", "Base model", "Dataset", "Dataset split", "Selected samples", "Minimum filter score"),
    *("Average filter score", "Max steps", "Learning rate", "Training method", "LoRA rank", "LoRA alpha"),
    *("Num generations", "Success reward threshold", "Max prompt length", "Max completion length"),
    *("Trackio", "Run name", "Output directory"),
]


def test_the_training_run_has_the_labels_of_the_reference_card_in_its_order() -> None:
    card = render_model_card(report(), run())
    table = card.partition("## Training Run")[2].partition("## Data Filtering")[0]
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", table, re.MULTILINE)[1:]
    assert [label for label, _ in rows][: len(LABELS)] == LABELS
    values = dict(rows)
    assert values["Training method"] == "4-bit NF4 QLoRA + TRL SDPO"
    assert values["Selected samples"] == "63 of 64"
    assert (values["Minimum filter score"], values["Average filter score"]) == ("14.5", "16.25")
    assert (values["Max steps"], values["Learning rate"], values["LoRA rank"]) == ("24", "5e-05", "8")
    assert (values["Completions sampled"], values["Seed"], values["Temperature"]) == ("48", "1234", "0.9")
    assert values["Hardware"] == "1 x NVIDIA A10G (cuda), flavor a10g-large"


# The other statements of the card of the reference run, in its order, in our words.
REFERENCE = [
    "**A smoke test:**",
    "This is a LoRA adapter for [google/gemma-4-12B-it]",
    "feedback mined from recorded sessions of coding agents",
    "reads the same request together with what the tools and the user of that session reported",
    "(`privileged_context`)",
    "`include_environment_feedback` is True",
    "11 prompts and 12 contexts were shortened",
    "sessions of `lab/traces` (commit `aaaa",
    "at least one concrete failure that a tool or the environment reported, or by a message in",
    "dataset viewer's Parquet export: the raw session files change their fields from one version",
    "| Source sessions | 3 |",
    "| Source files | 2 |",
    "| Score range | 14.5 to 19.5 |",
    "| Average score | 16.25 |",
    "| `command_error` | 3 |",
    "Score: 19.5. Categories: `command_error`, `test_or_assertion`. Reward terms: `command_error`, `promises:332`",
    "Fix the parser",
    "Tool/environment diagnostic 1 (command_error):",
    "`trace_grounding_reward`, 0 to 1, a smoke test",
    "It is enough to try the whole path, and does not measure code. For a serious run, replace it with a reward",
    "| `epoch` | 0.375 |",
    "| `total_flos` | 0.0 |",
    "| `train_loss` | 0.5 |",
    "| `train_runtime` | 952.7 |",
    "| `train_samples_per_second` | 0.05 |",
    "| `train_steps_per_second` | 0.025 |",
    "| `self_distillation/reward_mean` | 0.2 | 0.2 | 0.2 | mean reward of the sampled completions, 0 to 1 |",
    "hf jobs uv run dist/train_sdpo.py \\ --flavor a10g-large \\ --timeout 3h \\ --secrets HF_TOKEN",
    "--env HUB_MODEL_ID=me/pi-sdpo \\ --env TRACKIO_SPACE_ID=me/trackio \\ -- \\ --mode train --run-name pi-sdpo-1",
    "AutoTokenizer.from_pretrained(adapter)",
    "model.generate(",
    "share the tasks, habits and failures of those who recorded them",
    "an experiment, not a model for general use",
    "are experimental in TRL and change between releases: pin the versions above",
    "cannot tell whether an answer is correct",
    "needs the base model named above",
]


def test_the_card_holds_all_that_the_reference_card_says() -> None:
    words = " ".join(render_model_card(report(), run()).split())
    assert [said for said in REFERENCE if said not in words] == []


def test_a_job_is_reproduced_by_the_command_that_submitted_it() -> None:
    words = ["pimono-sdpo", "train", "lab/rows", "--config", "cpu", "--on", "hf:a10g-large", "--time-limit", "90m"]
    card = render_model_card(report(), run(submitted_with=[*words, "--feedback_template", "a\n```b"]))
    reproduce = card.partition("## Reproduce")[2].partition("## Use")[0]
    command = f"{' '.join(words)} --feedback_template 'a ```b'"
    assert reproduce.strip() == f"With pimono-sdpo 0.1.0:\n\n```bash\n{command}\n```"


def test_a_reward_of_ones_own_is_named_and_not_described_as_ours() -> None:
    log = run()
    log["teaching"]["reward"] = "my_reward:tests_pass"
    card = render_model_card(report(), log)
    assert "`my_reward:tests_pass`, a custom reward function" in card
    assert "trace_grounding" not in card
    assert "heuristic" not in card


def test_each_of_at_most_ten_metrics_has_a_meaning() -> None:
    assert all(len(METRICS["run"] | METRICS[method]) <= 10 for method in ("sdft", "sdpo", "sft", "dpo"))
    logged = {"step": 1, "loss": 1.0, "another": 2.0} | dict.fromkeys(METRICS["sdpo"], 0.5)
    card = render_model_card(report(), run(log_history=[logged]))
    table = card.partition("## Training Metrics")[2].partition("## Reproduce")[0]
    rows = re.findall(r"^\| `([^`]+)` \|.* \| ([^|]+) \|$", table, re.MULTILINE)
    assert dict(rows) == METRICS["run"] | METRICS["sdpo"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "| Time | 2026-01-02T03:04:05Z to 2026-01-02T03:20:05Z |"),
        (
            {"resumed_at": [8, 16]},
            "| Time | 2026-01-02T03:04:05Z to 2026-01-02T03:20:05Z; resumed after "
            "step 8, 16, excluding the interruption and repeated steps |",
        ),
        (
            {"metrics": {"train_runtime": None, "train_samples_per_second": None}},
            "| `train_samples_per_second` | unknown | completions or answers trained on per second |",
        ),
        (
            {"dataset": {**run()["dataset"], "without_reward": 40}},
            "The reward cannot score 40 rows, which were left out.",
        ),
    ],
)
def test_the_card_says_what_a_number_does_not_cover(changes: dict[str, Any], line: str) -> None:
    assert line in render_model_card(report(), run(**changes)).splitlines()
    assert "resumed" in line or "resumed" not in render_model_card(report(), run(**changes))


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
    assert set(COLUMNS["filter"]) == set(SDPO_ROW)
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


def test_held_out_scores_are_in_the_card_and_its_model_index() -> None:
    score = {"mean": 0.25, "low": 0.125, "high": 0.5}
    unsure = {"mean": 0.25, "low": None, "high": None}
    part = {"before": score, "after": {**score, "mean": 0.375}, "difference": unsure}
    evaluation = {"split": "test", "sessions": 3, "completions": 12, "reward": part, "pass_rate": part}
    card = render_model_card(report(), run(evaluation=evaluation))
    assert "| mean reward | 0.25 (0.125 to 0.5) | 0.375 (0.125 to 0.5) | 0.25 |" in card
    assert "Rows of 3 sessions or tasks (test)" in card
    assert "No held-out evaluation" not in card
    (index,) = front_matter(card)["model-index"]
    (result,) = index["results"]
    assert result["dataset"] == {"name": "lab/rows", "type": "lab/rows", "split": "test"}
    assert [metric["value"] for metric in result["metrics"]] == [0.375, 0.375]
    assert lint_card(card) == []
    assert "model-index" not in front_matter(render_model_card(report(), run()))


GAP = {"teacher": 0.4, "student": 0.3, "gap": 0.1}


@pytest.mark.parametrize(
    ("gap", "method", "said"),
    [
        (GAP, "sdpo", "comes from feedback alone"),
        ({**GAP, "gap": 0.0}, "sdpo", "nothing shows that anything was learned"),
        (None, "sdpo", "nothing shows that anything was learned"),
        (GAP, "rft", "so nothing can have been learned"),
    ],
)
def test_the_card_says_what_the_preflight_found_and_what_force_overrode(
    gap: dict[str, float] | None, method: str, said: str
) -> None:
    log = run()
    log["arguments"] |= {"method": method, "num_iterations": 1}
    log["log_history"] = [{**entry, "self_distillation/success_group_fraction": 0.0} for entry in log["log_history"]]
    log["preflight"] = {
        "rollouts": {"completions": 8, "success_share": 0.25},
        "teacher_gap": gap,
        "memory": {"total_gib": 12.5, "available_gib": 24.0},
        "stops": ["There is nothing to distil."],
    }
    card = render_model_card(report(), log)
    assert "| Preflight | 25.0 % of 8 completions were a success" in card
    assert "12.5 GiB of 24.0 estimated; advised against this training, overridden" in card
    assert "and `--force` overrode it: There is nothing to distil." in card
    assert said in card
    assert ("the model learned from feedback alone" in card) is False
