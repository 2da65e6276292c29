"""Render the dataset card of steps, pairs or SDPO rows from their report.

The same report gives the same bytes.
"""

import hashlib
from typing import Any

from datasets import Features

from cards.render import SIZES, config_of, environment, front_matter, type_of

Json = dict[str, Any]
WHAT = {
    "steps": "Next-action rows for supervised fine-tuning: what a coding agent had read, and its "
    "next tool call.",
    "pairs": "Preference pairs for DPO: of one beginning, the better continuation and the worse.",
    "sdpo": "Rows for SDPO: a turn, and apart from it what the teacher alone may see.",
}
TAGS = {"steps": "sft", "pairs": "dpo", "sdpo": "sdpo"}
COLUMNS = {
    "prompt": "what the model had read, a conversation",
    "privileged_context": "what only the teacher sees",
    "reward_terms": "concrete tokens of it",
    "score": "of the turn in its duel, 0 to 100",
    "completion": "the action to learn, an assistant's turn",
    "chosen": "the better continuation",
    "rejected": "the worse one",
    "tools": "definitions of the tools (native protocol)",
    "task_id": "the task of the suite, or the session",
    "run_id": "the rollout, or the session",
    "step": "number of the action in its run",
    "n_tokens": "tokens of prompt and completion, when they were counted",
    "split": "train or test, by task",
    "target": "what is compared: step, patch, last_write, truncated, summary, full, edit, branch, "
    "turn",
    "score_chosen": "the score of the better run, compared place by place",
    "score_rejected": "that of the worse run",
    "run_chosen": "the better run",
    "run_rejected": "the worse run",
    "suite": "the suite of the task",
    "model": "the model that made the runs",
    "seed_chosen": "seed of the better run",
    "seed_rejected": "seed of the worse run",
}


def render_stage_card(report: Json, features: Features) -> str:
    """Return the card of a folder of such rows."""
    stage = report["stage"]
    configs: list[Json] = []
    if report["rows"]:
        files = {split: f"data/{split}-*.parquet" for split in report["splits"]}
        config = config_of(stage, files, _digest(report["sha256"]["data"]))
        configs.append({**config, "default": True})
    if report["rejected"]:
        rejects = {"train": "rejects/rejects-*.parquet"}
        digest = _digest(report["sha256"]["rejects"])
        configs.append(config_of(f"{stage}_rejects", rejects, digest))
    count = report["rows"]
    metadata: Json = {
        "configs": configs,
        "pretty_name": f"Agent {stage} from {report['source']}",
        "size_categories": [next((name for size, name in SIZES if count < size), "n>1M")],
        "task_categories": ["text-generation"],
        "tags": ["agent-traces", "pimono-sdpo", TAGS[stage], "trl"],
    }
    if report["licence"]:
        metadata["license"] = report["licence"]
    columns = [(name, type_of(feature), COLUMNS[name]) for name, feature in features.items()]
    return (
        environment()
        .get_template("stage_card.md.j2")
        .render(metadata=front_matter(metadata), report=report, what=WHAT[stage], columns=columns)
    )


def _digest(of_files: list[str]) -> str:
    return hashlib.sha256(" ".join(of_files).encode()).hexdigest()
